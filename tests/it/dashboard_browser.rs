//! Contract section 4: the dashboard in a real browser, used by keyboard alone.

use std::path::PathBuf;

use fantoccini::key::Key;

use crate::support::*;

/// The folder that screenshots are written to, if this variable names one (see `scripts/screenshots`).
const SCREENSHOTS: &str = "GUILDGATE_SCREENSHOTS";

const TUNING: &str = "/tuning?tier=standard&rate=1%2Fs&burst=20";

async fn points(gate: &TestGateway, secret: &str) -> Answer {
    gate.send(&Request::post("/getPoints", "memberID=7").key(secret)).await
}

#[tokio::test]
async fn by_keyboard_an_admin_makes_a_key_and_revokes_it_and_every_page_is_whole() {
    let gate = TestGateway::builder().key("bot").key("other").points("7", 3).admin();
    let gate = gate.set("limits.tiers.standard.rate", r#""2/s""#).set("limits.tiers.standard.burst", "40");
    let gate = gate.set("limits.tiers.standard.daily", "1000").set("log.decisions", r#""d.log""#).start().await;
    let (browser, admin) = (Browser::start().await, gate.admin().await);
    let url = format!("http://{}", admin.address);
    browser.open(&url).await;
    assert_eq!(browser.text("h1").await, "Log in");
    browser.type_text(&admin.token).await; // the field has the focus
    browser.press(Key::Enter).await;
    browser.shows("the first page", "document.querySelector('h1').innerText === 'Overview'").await;
    a_key_is_made_and_revoked(&gate, &browser).await;
    every_page_is_whole_in_light_dark_and_on_a_phone(&gate, &browser, &url).await;
    browser.enter("form[action='logout'] button", "Log in").await;
}

async fn a_key_is_made_and_revoked(gate: &TestGateway, browser: &Browser) {
    assert_eq!(browser.evaluate("document.body.innerText.includes('incorrect key')").await, false);
    points(gate, "wrong").await;
    // The script refreshes the page.
    browser.shows("the refusal", "document.body.innerText.includes('incorrect key')").await;
    browser.shows("the plot", "document.querySelectorAll('.chart canvas').length === 1").await;

    browser.enter("nav a[href='./keys']", "Keys").await;
    browser.enter("main a[href='keys?make=yes']", "Make a key").await;
    browser.tab_to("#field-guild").await;
    assert_eq!(browser.evaluate("document.activeElement.value").await, GUILD);
    browser.tab_to("#field-name").await;
    browser.type_text("by keyboard").await;
    browser.enter("form[action='./keys'] button.primary", "The key was made").await;
    let secret = browser.text("#secret").await;
    assert_eq!(browser.text("button[data-copy=curl]").await, "Copy");
    assert!(browser.text("#curl").await.contains(&format!("-H 'Authorization: {secret}' http://127.0.0.1:")));
    eventually(PATIENCE, "the key works", || async { points(gate, &secret).await.status == 200 }).await;

    browser.enter("main a[href^='keys/']", &key_title(browser).await).await;
    browser.tab_to("input[name=confirmed]").await;
    browser.press(Key::Space).await;
    browser.enter("form[action$='/revoke'] button", "Keys").await;
    assert_eq!(browser.text("[role=status]").await, "The key was revoked.");
    eventually(PATIENCE, "the key is refused", || async { points(gate, &secret).await.status == 401 }).await;
}

async fn key_title(browser: &Browser) -> String {
    format!("Key {}", browser.text("main p code").await)
}

async fn every_page_is_whole_in_light_dark_and_on_a_phone(gate: &TestGateway, browser: &Browser, url: &str) {
    let folder = std::env::var_os(SCREENSHOTS).map(PathBuf::from);
    if folder.is_some() {
        traffic(gate).await;
    }
    let admin = gate.admin().await;
    for name in ["<b>\"bold\"</b>".to_owned(), "مفتاح بوت النقابة".repeat(6), "🦉".repeat(60), "long".repeat(50)]
    {
        let body = serde_json::json!({ "guild": GUILD, "name": name, "expires": "20d" });
        admin.post("/api/keys", &body.to_string()).await.is(201);
    }
    for _ in 0..60 {
        let _ = gate.get_points("bot", "7").await;
    }
    let key = format!("/keys/{}", gate.key_id("bot"));
    let (guild, member) = (format!("/guilds/{GUILD}"), format!("/guilds/{GUILD}/members/7"));
    for path in [gate.dashboard().await.pages().await, vec![key.clone(), guild.clone(), member.clone()]].concat() {
        let (path, name) = match &*path {
            "/" => ("/", "overview"),
            "/tuning" => (TUNING, "tuning"), // with its result
            path if path == key => (path, "key"),
            path if path == guild => (path, "guild"),
            path if path == member => (path, "member"),
            path => (path, &path[1..]),
        };
        for (scheme, width, kind) in [("light", 1280, "light"), ("dark", 1440, "dark"), ("light", 390, "phone")] {
            browser.emulate(scheme, width).await;
            browser.open(&format!("{url}{path}")).await;
            assert_eq!(browser.evaluate("document.querySelectorAll('h1').length").await, 1, "{path}");
            let widths = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]").await;
            assert!(widths[0].as_u64() <= widths[1].as_u64(), "{path} in {kind} is wider than its window: {widths}");
            assert_eq!(browser.evaluate(UNLABELLED).await, 0, "{path} has a control without a label");
            let hidden = browser.evaluate(HIDDEN_TEXT).await;
            assert_eq!(hidden, serde_json::json!([]), "{path} in {kind}: outside the window, or too small");
            let cut = browser.evaluate(CUT).await;
            assert_eq!(cut, serde_json::json!([]), "{path} in {kind}: beyond its element, or over another one");
            assert_eq!(browser.nameless_controls().await, Vec::<String>::new(), "{path}");
            let low = browser.evaluate(LOW_CONTRAST).await;
            assert_eq!(low, serde_json::json!([]), "{path} in {kind}: contrast below 4.5");
            if let Some(folder) = &folder {
                browser.screenshot(folder, &format!("{name}-{kind}.png")).await;
            }
        }
    }
}

/// Some minutes of the page's time cannot pass in a test; half a minute fills a part of the plot.
async fn traffic(gate: &TestGateway) {
    for n in 0..300_u32 {
        let _ = gate.get_points("bot", &(n % 30).to_string()).await;
        let _ = gate.get_points("other", &(n % 3).to_string()).await;
        if n % 9 == 0 {
            points(gate, "wrong").await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Texts of a plot, and on a phone cells of a table whose rows are blocks, that are outside the window or below 10 px.
const HIDDEN_TEXT: &str = r#"(() => {
    const hidden = [];
    if (document.querySelector('figure') && ![...document.querySelectorAll('figure text, figure canvas')].some(e => e.checkVisibility())) {
        hidden.push('the whole plot');
    }
    const seen = innerWidth < 600 ? 'figure text, td' : 'figure text';
    for (const element of document.querySelectorAll(seen)) {
        const box = element.getBoundingClientRect();
        if (!element.checkVisibility() || box.width === 0 || !element.textContent.trim()) continue;
        const scale = element.ownerSVGElement?.getScreenCTM().a;
        const height = scale ? scale * parseFloat(getComputedStyle(element).fontSize) : box.height;
        if (box.left < 0 || box.right > innerWidth || height < 10) hidden.push(element.outerHTML.slice(0, 80));
    }
    return hidden;
})()"#;

/// Texts that are wider than their cell, field or panel, or outside the window. What ends in an ellipsis has a tooltip.
const CUT: &str = r#"(() => {
    const cut = [], range = document.createRange();
    for (const element of document.querySelectorAll('th, td, dd, dt, p, li, a, button, h1, h2, label, pre, code')) {
        if (!element.checkVisibility() || element.closest('.skip, caption')) continue;
        if (element.querySelector('.cut') || element.closest('.cut')) continue;
        range.selectNodeContents(element);
        const text = range.getBoundingClientRect(), box = element.closest('th, td, dd, li, .panel, main, header').getBoundingClientRect();
        if (text.width && (text.right > box.right + 1 || text.left < box.left - 1 || text.right > innerWidth + 1)) {
            cut.push(element.outerHTML.slice(0, 120));
        }
    }
    for (const element of document.querySelectorAll('.cut')) {
        if (element.scrollWidth > element.clientWidth && !element.title) cut.push(element.outerHTML.slice(0, 120));
    }
    return cut;
})()"#;

const UNLABELLED: &str = "[...document.querySelectorAll('input:not([type=hidden]), select')]\
    .filter(control => control.labels.length === 0).length";

/// The texts whose color has a contrast below 4.5:1 to what is behind them (WCAG 2, AA).
const LOW_CONTRAST: &str = r#"(() => {
    const numbers = color => color.match(/[\d.]+/g).map(Number);
    const luminance = color => {
        const [r, g, b] = numbers(color).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const back = getComputedStyle(e).backgroundColor;
            if ((numbers(back)[3] ?? 1) === 1) return back;
        }
        return 'rgb(255, 255, 255)';
    };
    const low = [];
    for (const element of document.querySelectorAll('body *')) {
        const hasText = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!hasText || element.closest('datalist') || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const color = element.closest('svg') ? style.fill : style.color;
        const [a, b] = [luminance(color), luminance(behind(element))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) low.push(element.outerHTML.slice(0, 80) + ' ' + color);
    }
    return low;
})()"#;
