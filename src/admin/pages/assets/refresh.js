// Refreshes the parts of a page that change by themselves: every five seconds, or as the page says, while the page is visible. Without it
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
    setInterval(refresh, 1000 * (part.dataset.seconds ?? 5));
    document.addEventListener("visibilitychange", refresh);
}

// A button copies a text. Without a script it is hidden, and the text is selected as a whole.
for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
        const text = document.getElementById(button.dataset.copy);
        getSelection().selectAllChildren(text);
        try {
            await navigator.clipboard.writeText(text.textContent);
        } catch {
            document.execCommand("copy"); // the page was not loaded over TLS
        }
        button.textContent = "Copied";
    });
}
