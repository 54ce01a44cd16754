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
async fn now_shows_requests_by_outcome_and_latency() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().start().await;
    let dashboard = gate.dashboard().await;
    let before = dashboard.get("/").await;
    assert!(before.text.contains("Nothing is wrong."), "{before:?}");
    for _ in 0..20 {
        gate.get_points("bot", "7").await.is("3");
    }
    points(&gate, "wrong").await;
    let page = dashboard.get("/").await.text;
    for part in ["<svg", "incorrect key", "95.0 %", "<th scope=\"row\">hit</th><td class=\"number\">19</td>", "ready"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let part = dashboard.get("/?part=main").await.text;
    assert!(part.contains("incorrect key") && !part.contains("<html"), "{part}");
}

#[tokio::test]
async fn a_code_keeps_its_color_whichever_is_the_most_frequent() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin();
    let gate = gate.set("limits.tiers.standard.rate", r#""1/m""#).set("limits.tiers.standard.burst", "1").start().await;
    let dashboard = gate.dashboard().await;
    let rows = || async {
        let page = dashboard.get("/").await.text;
        let rows = page.split(r#"<span class="swatch line-"#).skip(1);
        rows.map(|row| (row[..1].to_owned(), row.split("</span>").nth(1).unwrap()[..2].to_owned())).collect::<Vec<_>>()
    };
    let row = |color: &str, code: &str| (color.to_owned(), code.to_owned());
    gate.get_points("bot", "7").await.is("3");
    points(&gate, "wrong").await;
    assert_eq!(rows().await, [row("0", "ok"), row("1", "02")]);
    for _ in 0..2 {
        assert_eq!(gate.get_points("bot", "7").await.code(), Some(12));
    }
    assert_eq!(rows().await, [row("0", "ok"), row("2", "12"), row("1", "02")]);
    assert!(!dashboard.get("/").await.text.contains("grey mark"));
    for _ in 0..3 {
        assert_eq!(gate.send(&Request::post("/getPoint", "").key("bot")).await.code(), Some(10));
    }
    assert_eq!(rows().await, [row("0", "ok"), row("7", "10"), row("2", "12"), row("1", "02")]);
    assert!(dashboard.get("/").await.text.contains("those with a grey mark are one line"));
}

#[tokio::test]
async fn now_says_what_is_wrong_and_what_to_do() {
    let gate = TestGateway::builder().key("bot").admin().start().await;
    let dashboard = gate.dashboard().await;
    let (store, away) = (gate.world().path("guildgate.db"), gate.world().path("away.db"));
    std::fs::rename(&store, &away).unwrap();
    let is_said = || async {
        let page = dashboard.get("/").await.text;
        page.contains("role=\"alert\">") && page.contains("see the disk or the database")
    };
    eventually(PATIENCE, "the red line", is_said).await;
    std::fs::rename(&away, &store).unwrap();
    eventually(PATIENCE, "no red line", || async { !is_said().await }).await;
}

#[tokio::test]
async fn an_upstream_that_is_out_is_named() {
    let origin = ScriptedOrigin::start(0).await;
    let upstreams = [origin.url(), "http://127.0.0.1:9".to_owned()];
    let gate = TestGateway::before_http().upstreams(upstreams).key("bot").admin().start().await;
    for member in 0..40 {
        let _ = gate.get_points("bot", &member.to_string()).await;
    }
    let dashboard = gate.dashboard().await;
    let page = dashboard.get("/").await.text;
    assert!(page.contains("127.0.0.1:9 gets no requests") && page.contains("<td>out</td>"), "{page}");
}

#[tokio::test]
async fn the_only_upstream_is_named_while_it_does_not_answer() {
    let mut gate = TestGateway::before_http().key("bot").admin().start().await;
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let sample = format!("guildgate_upstream_up{{upstream=\"{}\"}}", gate.origin().url());
    gate.origin_mut().refuse().await;
    for member in 0..3 {
        gate.get_points("bot", &member.to_string()).await.is_unavailable();
    }
    let told = format!("{} failed its last requests or health checks, and is still asked", gate.origin().url());
    let page = dashboard.get("/").await.text;
    assert!(page.contains("role=\"alert\">") && page.contains(&told), "{page}");
    assert!(page.contains("<td>failing, in use as the last one</td>"), "{page}");
    assert!(admin.get("/metrics").await.text.contains(&format!("{sample} 0")));
    assert_eq!(admin.get("/readyz").await.status, 200, "it still answers from memory");
    gate.origin_mut().come_back();
    gate.get_points("bot", "7").await.is("0");
    assert!(!dashboard.get("/").await.text.contains(&told));
    assert!(admin.get("/metrics").await.text.contains(&format!("{sample} 1")));
}

#[tokio::test]
async fn requests_that_fail_at_an_upstream_that_answers_are_told() {
    let gate = TestGateway::before_http().key("bot").admin().start().await;
    // Once it answers, it has read the counts for the first time.
    let dashboard = gate.dashboard().await;
    gate.origin().always(Act::say(500, "<html>"));
    assert_eq!(gate.get_points("bot", "7").await.code(), Some(20));
    let told = "role=\"alert\">of the last 1 request, 1 got 20, 21 or 22: see the origin";
    // A request is counted after its answer.
    eventually(PATIENCE, told, async || dashboard.get("/").await.text.contains(told)).await;
}

#[tokio::test]
async fn a_key_is_made_changed_rotated_and_revoked_and_each_is_in_the_audit_log() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().set("log.audit", r#""audit.log""#);
    let gate = gate.set("limits.tiers.gold.rate", r#""5/s""#).start().await;
    let dashboard = gate.dashboard().await;
    let made = dashboard.post("/keys", &[("guild", GUILD), ("name", "new one"), ("scope", "read"), ("tier", "")]).await;
    assert_eq!(made.status, 200, "{made:?}");
    let first = secret(&made);
    eventually(PATIENCE, "it works", || async { points(&gate, &first).await.status == 200 }).await;
    let list = dashboard.get("/keys?q=NEW+one").await.text;
    assert!(list.contains("Keys: 1,") && list.contains("Night Watch") && !list.contains(&first), "{list}");
    let id = list.split("href=\"/keys/").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let page = format!("/keys/{id}");
    assert!(dashboard.get(&page).await.text.contains("new one"));

    let change = [("name", "renamed"), ("tier", "gold"), ("scope", "write"), ("expires", "never")];
    let changed = dashboard.post(&format!("{page}/change"), &change).await;
    assert_eq!((changed.status, changed.header("location")), (303, &*format!("{page}?done=changed")), "{changed:?}");
    let text = dashboard.get(&page).await.text;
    assert!(text.contains("renamed") && text.contains("<option value=\"gold\" selected>"), "{text}");
    let unknown =
        dashboard.post(&format!("{page}/change"), &[("tier", "x"), ("scope", "read"), ("expires", "x")]).await;
    assert!(unknown.status == 400 && unknown.text.contains("<h2>Change</h2>"), "{unknown:?}");

    let rotated = dashboard.post(&format!("{page}/rotate"), &[("overlap", "1h")]).await;
    let second = secret(&rotated);
    eventually(PATIENCE, "the other works", || async { points(&gate, &second).await.status == 200 }).await;
    points(&gate, &first).await.is("3");

    let revoke = format!("{page}/revoke");
    let unconfirmed = dashboard.post(&revoke, &[]).await;
    assert!(
        unconfirmed.status == 400 && unconfirmed.text.contains("Tick the box to revoke the key"),
        "{unconfirmed:?}"
    );
    points(&gate, &second).await.is("3");
    assert_eq!(dashboard.post(&revoke, &[("confirmed", "yes")]).await.status, 303);
    for secret in [&first, &second] {
        eventually(PATIENCE, "it is refused", || async { points(&gate, secret).await.status == 401 }).await;
    }
    assert_eq!(dashboard.get(&page).await.status, 404);

    gate.has_logged("audit.log", "the last change", |line| line.contains("DELETE")).await;
    let log = gate.world().text("audit.log");
    assert!(!log.contains(&first) && !log.contains(&second), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["path"], "/login");
    let lines = &lines[1..];
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

#[tokio::test]
async fn a_key_that_is_sent_as_it_was_shown_stays_as_it_is() {
    let gate = TestGateway::builder().admin().start().await;
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let file = gate.world().path("gateway.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{before}\n[limits.tiers.gold]\nrate = \"5/s\"\nburst = 5\n")).unwrap();
    admin.post("/api/reload", "").await.is(200);
    let key = json!({ "guild": GUILD, "tier": "gold", "name": " two  blanks ", "expires": "2090-01-01" }).to_string();
    let id = admin.post("/api/keys", &key).await.is(201)["id"].as_str().unwrap().to_owned();
    std::fs::write(&file, before).unwrap();
    admin.post("/api/reload", "").await.is(200);
    let made = admin.get(&format!("/api/keys/{id}")).await;
    let page = format!("/keys/{id}");
    let text = dashboard.get(&page).await.text;
    assert!(text.contains(r#"<option value="gold" selected>gold (not in the configuration)"#), "{text}");
    let mut fields = Vec::new();
    for (name, before) in
        [("name", "name-before"), ("tier", "tier-before"), ("scope", "scope-before"), ("expires", "expires-before")]
    {
        let shown = dashboard.hidden(&page, before).await;
        fields.extend([(name, shown.clone()), (before, shown)]);
    }
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(dashboard.post(&format!("{page}/change"), &fields).await.status, 303);
    let after = admin.get(&format!("/api/keys/{id}")).await;
    assert_eq!(after.is(200), made.is(200));
}

#[tokio::test]
async fn a_refused_form_is_shown_again_with_what_was_typed() {
    let gate = TestGateway::builder().key("bot").admin().start().await;
    let dashboard = gate.dashboard().await;
    let typed = [("guild", "nope"), ("name", "A long name"), ("scope", "read"), ("tier", ""), ("expires", "90d")];
    let again = dashboard.post("/keys", &typed).await;
    let form = again.text.split("<h2>Make a key</h2>").nth(1).unwrap_or_else(|| panic!("{again:?}"));
    assert!(again.status == 404 && form.contains(r#"<p class="alert" role="alert">"#), "{form}");
    for part in [r#"value="nope""#, r#"value="A long name""#, r#"<option value="read" selected>"#, r#"value="90d""#] {
        assert!(form.contains(part), "{part} is not in {form}");
    }
    assert!(form.contains(&format!(r#"<option value="{GUILD}">"#)), "guilds are not listed: {form}");

    let page = format!("/keys/{}", gate.key_id("bot"));
    let typed = [("name", "other"), ("name-before", "bot"), ("expires", "x"), ("expires-before", "y")];
    let again = dashboard.post(&format!("{page}/change"), &typed).await;
    assert_eq!(again.status, 400, "{again:?}");
    let (change, rotate) = again.text.split_once("<h2>Rotate</h2>").unwrap();
    for part in [r#"role="alert""#, r#"value="other""#, r#"name="name-before" value="bot""#, r#"value="x""#] {
        assert!(change.contains(part), "{part} is not in {change}");
    }
    assert!(!rotate.contains(r#"role="alert""#) && rotate.contains(r#"value="24h""#), "{rotate}");
    let again = dashboard.post(&format!("{page}/rotate"), &[("overlap", "soon")]).await;
    let rotate = again.text.split("<h2>Rotate</h2>").nth(1).unwrap_or_else(|| panic!("{again:?}"));
    assert!(rotate.contains(r#"value="soon""#) && rotate.contains("is not a duration"), "{rotate}");
    assert!(!again.text.contains("at line"), "{again:?}");
}

#[tokio::test]
async fn names_from_the_store_are_text_and_no_markup() {
    let gate = TestGateway::builder().key("bot").admin().start().await;
    let dashboard = gate.dashboard().await;
    let name = "<script>alert(1)</script>\"'&";
    let made = dashboard.post("/keys", &[("guild", GUILD), ("name", name), ("scope", "read")]).await;
    assert_eq!(made.status, 200, "{made:?}");
    let admin = gate.admin().await;
    let rename = json!({ "name": "<img src=x onerror=1>" }).to_string();
    assert!(admin.json("PATCH", &format!("/api/guilds/{GUILD}"), &rename).await.status < 300);
    let list = dashboard.get("/keys").await.text;
    let id = list.split("&lt;script&gt;").next().unwrap().rsplit("href=\"/keys/").next().unwrap();
    let key = format!("/keys/{}", id.split('"').next().unwrap());
    for path in ["/keys", "/keys?q=%22%3E%3Cscript%3E", &key, "/keys/%3Cscript%3E"] {
        let page = dashboard.get(path).await.text;
        assert!(!page.contains("<script>") && !page.contains("<img"), "{path}: {page}");
    }
    assert!(list.contains("&lt;img src=x onerror=1&gt;") && list.contains("&lt;script&gt;alert(1)"), "{list}");
}

#[tokio::test]
async fn a_key_shows_its_limits_and_refusals() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin();
    let gate = gate.set("limits.tiers.standard.rate", r#""1/m""#).set("limits.tiers.standard.burst", "2");
    let gate = gate.set("limits.tiers.standard.daily", "100").start().await;
    for _ in 0..5 {
        let _ = gate.get_points("bot", "7").await;
    }
    let dashboard = gate.dashboard().await;
    let page = format!("/keys/{}", gate.key_id("bot"));
    for path in ["/keys", &page] {
        let text = dashboard.get(path).await.text;
        assert!(text.contains("rate: 3") && text.contains("2 of 2") && text.contains("2 of 100"), "{path}: {text}");
        assert!(text.contains("<meter "), "{text}");
    }
    let reset = dashboard.post(&format!("{page}/reset-day"), &[]).await;
    assert_eq!(reset.header("location"), format!("{page}?done=reset"), "{reset:?}");
    eventually(PATIENCE, "the day is whole", || async { dashboard.get(&page).await.text.contains("0 of 100") }).await;
}

#[tokio::test]
async fn the_configuration_is_shown_and_reloaded() {
    let gate = TestGateway::builder().admin().start().await;
    let dashboard = gate.dashboard().await;
    let page = dashboard.get("/configuration").await.text;
    assert!(page.contains("<code>admin.listen</code>") && page.contains("[limits]"), "{page}");
    assert!(page.contains("There were none since the start."), "{page}");
    let file = gate.world().path("gateway.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[answers]\nservice_name = \"Tower\"\n")).unwrap();
    let done = dashboard.post("/configuration/reload", &[]).await;
    assert!(done.status == 200 && done.text.contains("The files were reloaded"), "{done:?}");
    assert!(dashboard.get("/configuration").await.text.contains("answers.service_name"));
    std::fs::write(&file, format!("{text}\n[answers]\nservice_nam = \"<b>\"\n")).unwrap();
    let refused = dashboard.post("/configuration/reload", &[]).await;
    assert!(refused.status == 422 && refused.text.contains("gateway.toml:"), "{refused:?}");
    assert!(refused.text.contains("service_name"), "{refused:?}");
    assert!(refused.text.contains("gateway.toml was rejected as a whole; nothing was changed<"), "{refused:?}");
    let now = dashboard.get("/").await.text;
    let told = [
        "role=\"alert\">the last reload of gateway.toml was rejected, and what was in force stays so; mend the file (",
        "gateway.toml:",
        "service_name",
    ];
    assert!(told.iter().all(|told| now.contains(told)), "{now}");
    let page = dashboard.get("/configuration").await.text;
    let reloads = page.split("Reloads, the latest first").nth(2).unwrap().split("</table>").next().unwrap();
    let (rejected, accepted) = reloads.split_once("changed: answers").unwrap();
    assert!(rejected.contains("rejected") && rejected.contains("service_name") && !rejected.contains("<b>"), "{page}");
    assert!(!accepted.contains("rejected"), "{page}");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(dashboard.post("/configuration/reload", &[]).await.status, 200);
    assert!(dashboard.get("/").await.text.contains("Nothing is wrong."));
}

#[tokio::test]
async fn the_cache_is_shown_and_purged() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).admin().start().await;
    let dashboard = gate.dashboard().await;
    for _ in 0..4 {
        gate.get_points("bot", "7").await.is("3");
    }
    let page = dashboard.get("/cache").await.text;
    assert!(page.contains("75.0 %"), "{page}");
    let asked = gate.origin().asked("getPoints");
    for (typed, told) in [
        (&[("member", "x")][..], "<p class=\"alert\" role=\"alert\">a member id is digits, at most"),
        (&[], "Name a guild or a member, or tick the box for everything."),
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
    assert_eq!((done.status, done.header("location")), (303, "/cache?done"), "{done:?}");
    let page = dashboard.get("/cache?done").await.text;
    assert!(page.contains("were purged: none of them is used") && page.contains("stays in memory until"), "{page}");
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked + 1);
    assert_eq!(dashboard.post("/cache/purge", &[("everything", "yes")]).await.status, 303);
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked + 2);
}

#[tokio::test]
async fn keys_that_are_not_in_the_store_are_shown_without_controls() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).admin().start().await;
    gate.get_points("bot", "7").await.is("3");
    let dashboard = gate.dashboard().await;
    let page = dashboard.get("/keys").await;
    assert!(page.text.contains("key file") && !page.text.contains("Make a key"), "{page:?}");
    let refused = dashboard.post("/keys", &[("guild", GUILD), ("scope", "read")]).await;
    assert!(refused.status == 409 && refused.text.contains("key file"), "{refused:?}");
}

#[tokio::test]
async fn other_limits_are_tried_on_the_recorded_decisions() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().set("log.decisions", r#""d.log""#);
    let gate = gate.set("limits.tiers.standard.rate", r#""600/m""#).start().await;
    let dashboard = gate.dashboard().await;
    for _ in 0..30 {
        gate.get_points("bot", "7").await.is("3");
    }
    let page = dashboard.get("/tuning").await.text;
    assert!(page.contains(r#"name="rate" value="600/m""#) && !page.contains("gateway.toml"), "{page}");
    let path = "/tuning?tier=standard&rate=1%2Fm&burst=5";
    let is_seen = || async { dashboard.get(path).await.text.contains("25 requests would be refused; 25 of them were") };
    eventually(PATIENCE, "the decisions are on disk", is_seen).await;
    let page = dashboard.get(path).await.text;
    for part in [&*gate.key_id("bot"), "[limits.tiers.standard]\nrate = &quot;1/m&quot;\nburst = 5\n", "30 decisions"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    std::fs::write(gate.world().path("new.toml"), "[limits.tiers.standard]\nrate = \"1/m\"\nburst = 5\n").unwrap();
    let planned = gate.run(&["limits", "plan", "new.toml"]).failed(3);
    assert!(planned.stdout.contains("25 requests would be refused; 25 of them were"), "{planned:?}");
    let toml = std::fs::read_to_string(gate.world().path("gateway.toml")).unwrap();
    gate.world().write("gateway.toml", toml + "\n[limits.tiers.\"a.b\"]\nrate = \"5/s\"\nburst = 5\n");
    gate.admin().await.post("/api/reload", "").await.is(200);
    let page = dashboard.get("/tuning?tier=a.b&rate=1%2Fm&burst=5").await.text;
    assert!(page.contains("[limits.tiers.&quot;a.b&quot;]\nrate = &quot;1/m&quot;\nburst = 5\n"), "{page}");
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

#[tokio::test]
async fn the_lines_of_a_trial_have_all_limits_that_were_tried() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().set("log.decisions", r#""d.log""#);
    let gate = gate.set("limits.tiers.standard.write_rate", r#""5/s""#).start().await;
    for _ in 0..80 {
        let _ = gate.set_points("bot", "7", 4).await;
    }
    let dashboard = gate.dashboard().await;
    let path = "/tuning?tier=standard&rate=1000%2Fs&burst=1000";
    let is_seen = || async { dashboard.get(path).await.text.contains("80 decisions") };
    eventually(PATIENCE, "the decisions are on disk", is_seen).await;
    let page = dashboard.get(path).await.text;
    let summary = page.split(r#"<p role="status">"#).nth(1).unwrap().split('<').next().unwrap();
    let lines = page.rsplit("<code>").next().unwrap().split("</code>").next().unwrap().replace("&quot;", "\"");
    assert!(lines.contains("write_rate = \"5/s\"") && lines.contains("write_burst = 10"), "{lines}");
    gate.world().write("new.toml", lines);
    let planned = gate.run(&["limits", "plan", "new.toml"]).done();
    assert!(planned.stdout.contains(summary) && summary.contains("would be refused"), "{summary}: {planned:?}");
}

#[tokio::test]
async fn limits_in_force_are_shown_as_the_file_has_them() {
    let gate = TestGateway::builder().admin().set("limits.tiers.standard.rate", r#""1000/d""#);
    let gate = gate.set("limits.tiers.standard.burst", "40");
    let gate = gate.set("limits.tiers.standard.candidate", r#"{ rate = "1/m", burst = 5 }"#).start().await;
    let page = gate.dashboard().await.get("/tuning").await.text;
    assert!(page.contains(">1000/d, 40 at once<") && page.contains(">1/m, 5 at once<"), "{page}");
}

#[tokio::test]
async fn without_a_record_there_is_nothing_to_try() {
    let gate = TestGateway::builder().admin().start().await;
    let answer = gate.dashboard().await.get("/tuning?tier=standard&rate=1%2Fs&burst=5").await;
    assert!(answer.status == 409 && answer.text.contains("Set log.decisions"), "{answer:?}");
}

#[tokio::test]
async fn the_last_refusals_are_explained() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().set("log.access", r#""access.log""#);
    let gate = gate.set("limits.tiers.standard.rate", r#""1/m""#).set("limits.tiers.standard.burst", "1").start().await;
    let dashboard = gate.dashboard().await;
    assert!(dashboard.get("/log").await.text.contains("There are none."));
    gate.get_points("bot", "7").await.is("3");
    let over = gate.get_points("bot", "7").await;
    assert_eq!(over.status, 429, "{over:?}");
    points(&gate, "wrong").await;
    let page = dashboard.get("/log").await.text;
    for part in ["Refusals: 2", "Its API key was not accepted.", "of guild", &*gate.key_id("bot")] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let id = over.header("x-request-id").unwrap().to_owned();
    gate.has_logged("access.log", "the refusal", |line| line.contains(&id)).await;
    let why = gate.run(&["why", &id]).done().stdout;
    assert!(why.contains("It was over the limit `rate` of its tier"), "{why}");
    for sentence in why.lines() {
        let sentence = sentence.replace('"', "&quot;").replace('<', "&lt;");
        assert!(page.contains(&sentence), "`why` says: {sentence}\nThe page: {page}");
    }
    for q in [&*id, "12", &gate.key_id("bot")] {
        let page = dashboard.get(&format!("/log?q={q}")).await.text;
        assert!(page.contains("Refusals: 1,") && page.contains(&id), "{q}: {page}");
    }
    assert!(dashboard.get("/log?q=%3Cb%3E").await.text.contains("value=\"&lt;b&gt;\""));
}
