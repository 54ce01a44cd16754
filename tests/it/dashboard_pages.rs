//! Contract section 4: what the dashboard shows and changes, as a browser without scripts sees it.

use serde_json::{Value, json};

use crate::support::*;

/// The secret that a page shows.
fn secret(page: &AdminAnswer) -> String {
    let after = page.text.split("<code class=\"secret\"").nth(1).unwrap_or_else(|| panic!("{page:?}"));
    after.split_once('>').unwrap().1.split('<').next().unwrap().to_owned()
}

async fn points(gate: &TestGateway, secret: &str) -> Answer {
    gate.send(&Request::post("/getPoints", "memberID=7").key(secret)).await
}

#[tokio::test]
async fn on_a_store_pages_show_what_goes_on_and_forms_change_it() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().set("log.audit", r#""audit.log""#);
    let gate = gate.set("log.decisions", r#""d.log""#).set("log.access", r#""access.log""#);
    let gate = gate.set("limits.tiers.gold.rate", r#""5/s""#).key_of_tier("slow", "slow");
    let gate = gate.set("limits.tiers.slow.rate", r#""1/m""#).set("limits.tiers.slow.burst", "2");
    let gate = gate.set("limits.tiers.slow.daily", "100").set("limits.tiers.standard.rate", r#""600/m""#);
    let gate = gate.set("limits.tiers.standard.write_rate", r#""5/s""#);
    let gate = gate.set("limits.tiers.standard.candidate", r#"{ rate = "1/m", burst = 5 }"#).start().await;
    let dashboard = gate.dashboard().await;
    now_shows_requests_by_outcome_and_latency(&gate, &dashboard).await;
    other_limits_are_tried_on_the_recorded_decisions(&gate, &dashboard).await;
    a_key_is_made_changed_rotated_and_revoked_and_each_is_in_the_audit_log(&gate, &dashboard).await;
    a_key_shows_its_limits_and_refusals(&gate, &dashboard).await;
    the_last_refusals_are_explained(&gate, &dashboard).await;
    the_configuration_is_shown_and_reloaded(&gate, &dashboard).await;
    a_refused_form_is_shown_again_with_what_was_typed(&gate, &dashboard).await;
    guilds_are_added_changed_and_removed(&gate, &dashboard).await;
    a_members_points_warns_and_reviews_are_changed(&gate, &dashboard).await;
    the_last_lines_of_the_audit_log_are_shown(&gate, &dashboard).await;
}

#[tokio::test]
async fn before_an_http_origin_pages_show_the_cache_and_the_upstream() {
    let mut gate = TestGateway::before_http().key("bot").points("7", 3).admin().start().await;
    // Once it answers, it has read the counts for the first time.
    let dashboard = gate.dashboard().await;
    the_cache_is_shown_and_purged(&gate, &dashboard).await;
    let untried = dashboard.get("/tuning?tier=standard&rate=1%2Fs&burst=5").await;
    assert!(untried.status == 409 && untried.text.contains("Set log.decisions"), "{untried:?}");
    assert!(dashboard.get("/tuning").await.text.contains("class=\"warn\">No decisions are recorded"));
    let toml = gate.world().text("gateway.toml");
    gate.world().write("gateway.toml", toml + "\n[log]\ndecisions = \"d.log\"\n");
    let reloaded = gate.admin().await.post("/api/reload", "").await.is(200);
    assert_eq!((&reloaded["changed"], &reloaded["after_restart"]), (&json!(["log"]), &json!([])));
    gate.get_points("bot", "7").await.is("3");
    let is_recorded = async || dashboard.get("/tuning?rate=1%2Fs").await.text.contains("What it would have done");
    eventually(PATIENCE, "it is recorded without a restart", is_recorded).await;
    // Requests that fail at an upstream that answers are told.
    gate.origin().next("getPoints", Act::say(500, "<html>"));
    assert_eq!(gate.get_points("bot", "6").await.code(), Some(20));
    let told = " 1 got 20, 21 or 22: see the origin";
    // A request is counted after its answer.
    eventually(PATIENCE, told, async || dashboard.get("/").await.text.contains(told)).await;
    the_only_upstream_is_named_while_it_does_not_answer(&mut gate, &dashboard).await;
}

async fn now_shows_requests_by_outcome_and_latency(gate: &TestGateway, dashboard: &Dashboard) {
    let before = dashboard.get("/").await;
    assert!(before.text.contains("Nothing is wrong."), "{before:?}");
    assert!(dashboard.get("/refusals").await.text.contains("There are none."));
    for _ in 0..20 {
        gate.get_points("bot", "7").await.is("3");
    }
    points(gate, "wrong").await;
    let page = dashboard.get("/").await.text;
    for part in
        ["<svg", "incorrect key", "95.0 %", "hit</th><td class=\"number\" data-label=\"Requests\"><span>19<", "ready"]
    {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let part = dashboard.get("/?part=main").await.text;
    assert!(part.contains("incorrect key") && !part.contains("<html"), "{part}");
}

async fn the_only_upstream_is_named_while_it_does_not_answer(gate: &mut TestGateway, dashboard: &Dashboard) {
    let admin = gate.admin().await;
    let sample = format!("guildgate_upstream_up{{upstream=\"{}\"}}", gate.origin().url());
    gate.origin_mut().refuse().await;
    for member in 0..3 {
        gate.get_points("bot", &member.to_string()).await.is_unavailable();
    }
    let told = format!("{} failed its last requests or health checks (", gate.origin().url());
    let page = dashboard.get("/").await.text;
    assert!(page.contains("class=\"alert\">") && page.contains(&told), "{page}");
    assert!(page.contains(">out</span> since ") && page.to_lowercase().contains("connection refused"), "{page}");
    assert!(page.find("Addresses of the origin").unwrap() < page.find("<svg").unwrap(), "{page}");
    assert!(admin.get("/metrics").await.text.contains(&format!("{sample} 0")));
    assert_eq!(admin.get("/readyz").await.status, 200, "it still answers from memory");
    gate.origin_mut().come_back();
    gate.get_points("bot", "9").await.is("0");
    assert!(!dashboard.get("/").await.text.contains(&told));
    assert!(admin.get("/metrics").await.text.contains(&format!("{sample} 1")));
}

async fn a_key_is_made_changed_rotated_and_revoked_and_each_is_in_the_audit_log(
    gate: &TestGateway,
    dashboard: &Dashboard,
) {
    let made = dashboard.post("/keys", &[("guild", GUILD), ("name", "new one"), ("scope", "read"), ("tier", "")]).await;
    assert_eq!(made.status, 200, "{made:?}");
    let first = secret(&made);
    eventually(PATIENCE, "it works", || async { points(gate, &first).await.status == 200 }).await;
    let list = dashboard.get("/keys?q=NEW+one").await.text;
    assert!(list.contains("Keys 1 to 1.") && list.contains("Night Watch") && !list.contains(&first), "{list}");
    let id = list.split("href=\"keys/").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let page = format!("/keys/{id}");
    assert!(dashboard.get(&page).await.text.contains("new one"));

    let change = [("name", "renamed"), ("tier", "gold"), ("scope", "write"), ("expires", "never")];
    let changed = dashboard.post(&format!("{page}/change"), &change).await;
    assert_eq!((changed.status, changed.header("location")), (303, &*format!("{page}?done=change")), "{changed:?}");
    let text = dashboard.get(&page).await.text;
    assert!(text.contains("renamed") && text.contains("<option value=\"gold\" selected>"), "{text}");
    let unknown =
        dashboard.post(&format!("{page}/change"), &[("tier", "x"), ("scope", "read"), ("expires", "x")]).await;
    assert!(unknown.status == 400 && unknown.text.contains("<h2>Change</h2>"), "{unknown:?}");

    let rotated = dashboard.post(&format!("{page}/rotate"), &[("overlap", "1h")]).await;
    let second = secret(&rotated);
    eventually(PATIENCE, "the other works", || async { points(gate, &second).await.status == 200 }).await;
    points(gate, &first).await.is("3");

    let revoke = format!("{page}/revoke");
    let unconfirmed = dashboard.post(&revoke, &[]).await;
    assert!(
        unconfirmed.status == 400 && unconfirmed.text.contains("Tick the box to revoke the key"),
        "{unconfirmed:?}"
    );
    points(gate, &second).await.is("3");
    assert_eq!(dashboard.post(&revoke, &[("confirmed", "yes")]).await.status, 303);
    for secret in [&first, &second] {
        eventually(PATIENCE, "it is refused", || async { points(gate, secret).await.status == 401 }).await;
    }
    assert_eq!(dashboard.get(&page).await.status, 404);

    gate.has_logged("audit.log", "the last change", |line| line.contains("DELETE")).await;
    let log = gate.world().text("audit.log");
    assert!(!log.contains(&first) && !log.contains(&second), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["path"], "/login");
    let of_keys = |line: &&Value| line["path"].as_str().unwrap().starts_with("/api/keys");
    let lines: Vec<&Value> = lines.iter().filter(of_keys).collect();
    let said = lines.iter().map(|line| json!([line["method"], line["path"], line["status"], line["client"]]));
    let (api, client) = (format!("/api/keys/{id}"), "127.0.0.1");
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            json!(["POST", "/api/keys", 201, client]),
            json!(["PATCH", api, 200, client]),
            json!(["PATCH", api, 400, client]),
            json!(["POST", format!("{api}/rotate"), 200, client]),
            json!(["DELETE", api, 204, client]),
        ]
    );
    assert_eq!(lines[0]["made"], id);
}

async fn a_refused_form_is_shown_again_with_what_was_typed(gate: &TestGateway, dashboard: &Dashboard) {
    let typed = [("guild", "nope"), ("name", "A long name"), ("scope", "read"), ("tier", ""), ("expires", "90d")];
    let again = dashboard.post("/keys", &typed).await;
    let (status, form) = (again.status, again.text);
    assert!(status == 404 && form.contains(r#"<p class="alert" role="alert">"#), "{form}");
    for part in [
        r#"name="guild" aria-invalid="true" autofocus"#,
        r#"<span class="error">guild nope is not in the store"#,
        r#"value="A long name""#,
        r#"<option value="read" selected>"#,
        r#"value="90d""#,
    ] {
        assert!(form.contains(part), "{part} is not in {form}");
    }
    assert!(form.contains(&format!(r#"<option value="{GUILD}">"#)), "guilds are not listed: {form}");
    let again = dashboard.post("/keys", &[("guild", GUILD), ("expires", "soon"), ("scope", "read")]).await;
    let field = again.text.split("field-expires-hint\"><span class=\"error\">").nth(1);
    assert!(again.status == 400 && field.is_some(), "{again:?}");

    // A field that is sent as it was shown is not changed, and names are text and no markup.
    let page = format!("/keys/{}", gate.key_id("bot"));
    let typed = [("name", "<b>\"'&"), ("name-before", "bot"), ("tier", "gone"), ("tier-before", "gone")];
    assert_eq!(dashboard.post(&format!("{page}/change"), &typed).await.status, 303);
    let (key, list) = (dashboard.get(&page).await.text, dashboard.get("/keys?q=%3Cb%3E").await.text);
    assert!(
        key.contains("&lt;b&gt;&quot;'&amp;") && list.contains("Keys 1 to 1.") && !(key + &list).contains("<b>"),
        "{list}"
    );
    let typed = [("name", "other"), ("name-before", "bot"), ("expires", "x"), ("expires-before", "y")];
    let again = dashboard.post(&format!("{page}/change"), &typed).await;
    assert_eq!(again.status, 400, "{again:?}");
    let (change, rotate) = again.text.split_once("<h2>Rotate</h2>").unwrap();
    for part in [r#"role="alert""#, r#"value="other""#, r#"name="name-before" value="bot""#, r#"value="x""#] {
        assert!(change.contains(part), "{part} is not in {change}");
    }
    assert!(!rotate.contains(r#"role="alert""#) && rotate.contains(r#"value="24h""#), "{rotate}");
    let again = dashboard.post(&format!("{page}/rotate"), &[("overlap", "soon")]).await;
    assert!(again.text.contains(r#"value="soon""#) && again.text.contains("is not a duration"), "{again:?}");
    assert!(!again.text.contains("at line"), "{again:?}");
}

async fn a_key_shows_its_limits_and_refusals(gate: &TestGateway, dashboard: &Dashboard) {
    for _ in 0..5 {
        let _ = gate.get_points("slow", "7").await;
    }
    let page = format!("/keys/{}", gate.key_id("slow"));
    for path in ["/keys", &page] {
        let text = dashboard.get(path).await.text;
        assert!(text.contains("rate: 3") && text.contains("2 of 2") && text.contains("<meter "), "{path}: {text}");
    }
    assert!(dashboard.get(&page).await.text.contains("2 of 100"));
    for (query, ids) in [
        ("show=over", &["slow"][..]),
        ("show=unused&sort=name", &[]),
        ("show=read", &[]),
        ("sort=last-use", &["slow", "bot"]),
        ("show=write&sort=end&page=1", &["slow", "bot"]),
    ] {
        let text = dashboard.get(&format!("/keys?{query}")).await.text;
        let rows = text.matches("<tr><th").count() - usize::from(!ids.is_empty());
        let listed = ids.iter().all(|id| text.contains(&format!("keys/{}\"", gate.key_id(id))));
        assert!(
            listed && (rows == ids.len() || query.contains("sort=l") || query.contains("sort=e")),
            "{query}: {text}"
        );
    }
    let text = dashboard.get(&page).await.text;
    for part in ["id=\"hours\"", "id=\"days\"", "<polyline", "<td data-label=\"Rate\"><span>1/m<", "Night Watch</bdi>"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let part = dashboard.get(&format!("{page}?part=main")).await.text;
    assert!(part.contains("12 over a limit") && !part.contains("<form"), "{part}");
    let purged = dashboard.post(&format!("{page}/purge"), &[("guild", GUILD)]).await;
    assert_eq!(purged.header("location"), format!("{page}?done=purge"), "{purged:?}");
    let reset = dashboard.post(&format!("{page}/reset-day"), &[]).await;
    assert_eq!(reset.header("location"), format!("{page}?done=reset-day"), "{reset:?}");
    eventually(PATIENCE, "the day is whole", || async { dashboard.get(&page).await.text.contains("0 of 100") }).await;
}

/// At once as a whole: the server looks at the file at any time, and must not see it empty.
fn put_configuration(gate: &TestGateway, toml: &str) {
    let whole = gate.world().write("gateway.toml.new", toml);
    std::fs::rename(whole, gate.world().path("gateway.toml")).unwrap();
}

async fn the_configuration_is_shown_and_reloaded(gate: &TestGateway, dashboard: &Dashboard) {
    let page = dashboard.get("/configuration").await.text;
    assert!(page.contains("<code>admin.listen</code>") && page.contains("[limits]"), "{page}");
    let text = std::fs::read_to_string(gate.world().path("gateway.toml")).unwrap();
    put_configuration(gate, &format!("{text}\n[answers]\nservice_name = \"Tower\"\n"));
    let done = dashboard.post("/configuration/reload", &[]).await;
    let page = dashboard.get(done.header("location")).await.text;
    assert!(page.contains("The files were reloaded") && page.contains("<code>answers.service_name</code>"), "{page}");
    put_configuration(gate, &format!("{text}\n[answers]\nservice_nam = \"<b>\"\n"));
    let refused = dashboard.post("/configuration/reload", &[]).await;
    assert!(refused.status == 422 && refused.text.contains("gateway.toml:"), "{refused:?}");
    assert!(refused.text.contains("service_name"), "{refused:?}");
    assert!(refused.text.contains("gateway.toml was rejected as a whole; nothing was changed<"), "{refused:?}");
    let now = dashboard.get("/").await.text;
    let told = [
        "class=\"alert\">the last reload of gateway.toml was rejected, and what was in force stays so; mend the file (",
        "gateway.toml:",
        "service_name",
    ];
    assert!(told.iter().all(|told| now.contains(told)), "{now}");
    let page = dashboard.get("/configuration").await.text;
    let reloads = page.split("Reloads, the latest first").nth(1).unwrap().split("</table>").next().unwrap();
    let (rejected, accepted) = reloads.split_once("changed: answers").unwrap();
    assert!(rejected.contains("rejected") && rejected.contains("service_name") && !rejected.contains("<b>"), "{page}");
    assert!(!accepted.contains("rejected"), "{page}");
    put_configuration(gate, &text);
    assert_eq!(dashboard.post("/configuration/reload", &[]).await.status, 303);
    assert!(dashboard.get("/").await.text.contains("Nothing is wrong."));
}

async fn the_cache_is_shown_and_purged(gate: &TestGateway, dashboard: &Dashboard) {
    for _ in 0..4 {
        gate.get_points("bot", "7").await.is("3");
    }
    let page = dashboard.get("/cache").await.text;
    assert!(page.contains("75.0 %"), "{page}");
    let asked = gate.origin().asked("getPoints");
    for (typed, told) in [
        (&[("member", "x")][..], "<p class=\"alert\" role=\"alert\">a member id is digits, at most"),
        (&[], "Name a guild or a member, or tick the box for everything, and not both."),
        (&[("member", "7"), ("everything", "yes")], "and not both"),
    ] {
        let again = dashboard.post("/cache/purge", typed).await;
        assert!(again.status == 400 && again.text.contains(told) && !again.text.contains("at line"), "{again:?}");
        let member = typed.first().map_or("", |(_, member)| member);
        assert!(again.text.contains(&format!("name=\"member\" value=\"{member}\"")), "{again:?}");
    }
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked, "nothing was purged");
    let done = dashboard.post("/cache/purge", &[("guild", ""), ("member", "7")]).await;
    assert_eq!((done.status, done.header("location")), (303, "/cache?done=purge"), "{done:?}");
    let page = dashboard.get(done.header("location")).await.text;
    assert!(page.contains("were purged: none of them is used") && page.contains("stays in memory until"), "{page}");
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked + 1);
    assert_eq!(dashboard.post("/cache/purge", &[("everything", "yes")]).await.status, 303);
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked + 2);
}

async fn other_limits_are_tried_on_the_recorded_decisions(gate: &TestGateway, dashboard: &Dashboard) {
    for _ in 0..30 {
        gate.get_points("bot", "7").await.is("3");
    }
    let page = dashboard.get("/tuning").await.text;
    for part in [r#"name="rate" value="600/m""#, ">1/m, 5 at once<"] {
        assert!(page.contains(part) && !page.contains("gateway.toml"), "{part} is not in {page}");
    }
    let path = "/tuning?tier=standard&rate=1%2Fm&burst=5";
    let is_seen = || async { dashboard.get(path).await.text.contains("45 requests would be refused; 45 of them were") };
    eventually(PATIENCE, "the decisions are on disk", is_seen).await;
    let page = dashboard.get(path).await.text;
    for part in [
        &*gate.key_id("bot"),
        "[limits.tiers.standard]\nrate = &quot;1/m&quot;\nburst = 5\n",
        "write_rate = &quot;5/s&quot;",
        "50 decisions",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    std::fs::write(gate.world().path("new.toml"), "[limits.tiers.standard]\nrate = \"1/m\"\nburst = 5\n").unwrap();
    let planned = gate.run(&["limits", "plan", "new.toml"]).failed(3);
    assert!(planned.stdout.contains("45 requests would be refused; 45 of them were"), "{planned:?}");
    let toml = std::fs::read_to_string(gate.world().path("gateway.toml")).unwrap();
    put_configuration(gate, &(toml + "\n[limits.tiers.\"a.b\"]\nrate = \"5/s\"\nburst = 5\n"));
    gate.admin().await.post("/api/reload", "").await.is(200);
    let page = dashboard.get("/tuning?tier=a.b&rate=1%2Fm&burst=5").await.text;
    assert!(page.contains("[limits.tiers.&quot;a.b&quot;]\nrate = &quot;1/m&quot;\nburst = 5\n"), "{page}");
    let suggested = dashboard.get("/tuning?tier=standard&suggest=yes").await;
    let query = suggested.header("location");
    assert!(query.starts_with("/tuning?tier=standard&rate=") && query.contains("&burst="), "{suggested:?}");
    assert!(dashboard.get(query).await.text.contains("Nothing would be refused."), "{query}");
    for (bad, words) in [
        ("rate=0%2Fs&burst=5", "rate"),
        ("rate=1%2Fs&burst=0", "standard.burst"),
        ("rate=1%2Fs&burst=x", "standard.burst: is of type string"),
        ("rate=%3Cb%3E&burst=1", "rate"),
        ("rate=foo&burst=0", "is not a rate"),
        ("rate=foo&burst=0", "standard.burst"),
    ] {
        let answer = dashboard.get(&format!("/tuning?tier=standard&{bad}")).await;
        assert!([400, 422].contains(&answer.status) && answer.text.contains(words), "{bad}: {answer:?}");
        assert!(!answer.text.contains("<b>"), "{answer:?}");
    }
}

async fn the_last_refusals_are_explained(gate: &TestGateway, dashboard: &Dashboard) {
    let over = gate.get_points("slow", "7").await;
    assert_eq!(over.status, 429, "{over:?}");
    points(gate, "wrong").await;
    let page = dashboard.get("/refusals").await.text;
    for part in
        ["Its API key was not accepted.", "of guild", &*gate.key_id("slow"), "02 incorrect key (", "over rate of slow"]
    {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let id = over.header("x-request-id").unwrap().to_owned();
    gate.has_logged("access.log", "the refusal", |line| line.contains(&id)).await;
    let why = gate.run(&["why", &id]).done().stdout;
    assert!(why.contains("It was over the limit `rate` of its tier"), "{why}");
    for sentence in why.lines().filter(|sentence| !sentence.contains(", named ")) {
        let sentence = sentence.replace('"', "&quot;").replace('<', "&lt;");
        assert!(page.contains(&sentence), "`why` says: {sentence}\nThe page: {page}");
    }
    for q in [&*id, "12", &gate.key_id("slow")] {
        let page = dashboard.get(&format!("/refusals?q={q}")).await.text;
        assert!(page.contains(&id) && !page.contains("Its API key was not accepted."), "{q}: {page}");
    }
    let page = dashboard.get("/refusals?code=02").await.text;
    assert!(page.contains("Its API key was not accepted.") && !page.contains(&id), "{page}");
    assert!(dashboard.get("/refusals/live").await.text.contains("There are none."));
    points(gate, "wrong").await;
    let is_live =
        async || dashboard.get("/refusals/live?part=main&q=02").await.text.contains("<td data-label=\"Code\">");
    eventually(PATIENCE, "the request is shown", is_live).await;
    let other = dashboard.get("/refusals/live?q=k_none").await.text;
    assert!(other.contains("There are none.") && !other.contains("<td"), "{other}");
    assert!(dashboard.get("/refusals?q=%3Cb%3E").await.text.contains("value=\"&lt;b&gt;\""));
}

async fn guilds_are_added_changed_and_removed(gate: &TestGateway, dashboard: &Dashboard) {
    let name = format!("<b>שלום 🎉 {}", "x".repeat(200));
    let added = dashboard.post("/guilds", &[("id", "777"), ("name", &name)]).await;
    assert_eq!((added.status, added.header("location")), (303, "/guilds/777?done=guild"), "{added:?}");
    let again = dashboard.post("/guilds", &[("id", "777"), ("name", "other")]).await;
    assert!(again.status == 409 && again.text.contains("value=\"other\""), "{again:?}");
    for path in ["/guilds?q=XXX", "/guilds/777"] {
        let text = dashboard.get(path).await.text;
        assert!(text.contains("&lt;b&gt;שלום 🎉") && !text.contains("<b>"), "{path}: {text}");
    }
    assert!(!dashboard.get("/guilds?q=nowhere").await.text.contains("777"));
    let guild = async || gate.admin().await.get("/api/guilds/777").await.is(200);
    for (action, left) in [("leave", true), ("return", false)] {
        let done = dashboard.post(&format!("/guilds/777/{action}"), &[]).await;
        assert_eq!(done.header("location"), format!("/guilds/777?done={action}"), "{done:?}");
        assert_eq!(guild().await["left"], left);
        assert_eq!(dashboard.get("/guilds/777").await.text.contains("has left:"), left);
    }
    dashboard.post("/guilds/777/rename", &[("name", "Day Watch")]).await;
    assert_eq!(guild().await["name"], "Day Watch");
    let unconfirmed = dashboard.post("/guilds/777/remove", &[]).await;
    assert!(unconfirmed.status == 400 && unconfirmed.text.contains("Tick the box"), "{unconfirmed:?}");
    let removed = dashboard.post("/guilds/777/remove", &[("confirmed", "yes")]).await;
    assert_eq!(removed.header("location"), "/guilds?done=remove", "{removed:?}");
    for path in ["/guilds/777", "/guilds/777/members/7", "/guilds/%20"] {
        assert_eq!(dashboard.get(path).await.status, 404, "{path}");
    }
}

async fn a_members_points_warns_and_reviews_are_changed(gate: &TestGateway, dashboard: &Dashboard) {
    let guild = format!("/guilds/{GUILD}");
    let found = dashboard.get(&format!("{guild}?q=12")).await;
    let member = format!("{guild}/members/12");
    assert_eq!(found.header("location"), member, "{found:?}");
    assert!(dashboard.get(&member).await.text.contains("There is no such member yet"));
    let post =
        async |action: &str, fields: &[(&str, &str)]| dashboard.post(&format!("{member}/{action}"), fields).await;
    let done = format!("{member}?done=member");
    assert_eq!(post("set", &[("name", "<i>Cy"), ("points", "-5")]).await.header("location"), done);
    gate.get_points("bot", "12").await.is("-5");
    let warn = [("warn-author", "Mod"), ("warn-reason", "<i>spam"), ("warn-expires", "90d")];
    assert_eq!(post("warn", &warn).await.header("location"), done);
    let review = [("review-author", "Bo"), ("review-rating", "5"), ("review-text", "Quick")];
    assert_eq!(post("review", &review).await.header("location"), done);
    let text = dashboard.get(&member).await.text;
    for part in ["&lt;i&gt;Cy", "&lt;i&gt;spam", "Quick", "value=\"-5\""] {
        assert!(text.contains(part) && !text.contains("<i>"), "{part} is not in {text}");
    }
    for (action, fields, status, again) in [
        ("set", [("points", "much"), ("name", "")], 400, "value=\"much\""),
        ("review", [("review-rating", "9"), ("review-author", "Eve")], 400, "value=\"Eve\""),
        ("warn", [("warn-expires", "never"), ("warn-author", "Eve")], 409, "value=\"never\""),
        ("remove", [("", ""), ("", "")], 400, "Tick the box"),
    ] {
        let refused = post(action, &fields).await;
        assert!(refused.status == status && refused.text.contains(again), "{action}: {refused:?}");
        assert!(refused.text.contains("role=\"alert\""), "{action}: {refused:?}");
    }
    for one in ["warn", "review"] {
        let id =
            gate.admin().await.get(&format!("/api{guild}/{one}s?member=12")).await.is(200)["items"][0]["id"].clone();
        let removed = post(&format!("remove-{one}"), &[("id", id.as_str().unwrap())]).await;
        assert_eq!(removed.header("location"), done, "{removed:?}");
    }
    let text = dashboard.get(&member).await.text;
    assert!(!text.contains("spam") && !text.contains("Quick"), "{text}");
    assert_eq!(post("remove", &[("confirmed", "yes")]).await.header("location"), done);
    gate.get_points("bot", "12").await.is("0");
}

async fn the_last_lines_of_the_audit_log_are_shown(gate: &TestGateway, dashboard: &Dashboard) {
    let path = format!("/api/guilds/{GUILD}/members/12");
    let page = async |q: &str| dashboard.get(&format!("/audit?q={q}")).await.text;
    eventually(PATIENCE, "the last change", async || page("DELETE").await.contains(&path)).await;
    let text = page("").await;
    for part in ["/login", "POST /api/guilds: 777", "{&quot;name&quot;:&quot;Day Watch&quot;}", "127.0.0.1"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("<i>") && page("nothing-has-this").await.contains("There are none."));
    std::fs::remove_file(gate.world().path("audit.log")).unwrap();
    assert!(page("").await.contains("The file cannot be read"));
}
