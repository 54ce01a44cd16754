// Refreshes the parts of a page that change by themselves: every five seconds, while the page is visible. Without it
// the page shows the moment at which it was loaded.
"use strict";

const part = document.querySelector("[data-refresh]");

async function refresh() {
    if (document.hidden || part.contains(document.activeElement)) {
        return;
    }
    try {
        const answer = await fetch(part.dataset.refresh, { credentials: "same-origin" });
        if (answer.status === 401) {
            location.reload(); // the session has ended, which the page for logging in says
        } else if (answer.ok) {
            const open = [...part.querySelectorAll("details")].map((details) => details.open);
            part.innerHTML = await answer.text();
            part.querySelectorAll("details").forEach((details, at) => { details.open = open[at] ?? details.open; });
            document.dispatchEvent(new Event("refreshed"));
        }
    } catch {
        // The server cannot be reached for now; the next try comes.
    }
}

if (part) {
    setInterval(refresh, 5000);
    document.addEventListener("visibilitychange", refresh);
}
