//! Contract section 4: who may see the dashboard, who may change anything there, and what keeps other sites out.

use std::process::Command;

use tokio::net::TcpStream;

use crate::support::*;

const READ: &str = "read-token-0123456789";
const BOT: &str = "bot-token-01234567890";

#[tokio::test]
async fn who_sees_a_page_and_whose_forms_change_something() {
    let builder = TestGateway::builder().key("bot").points("7", 3).admin().set("log.audit", r#""audit.log""#);
    let builder = builder.set("admin.read_token", &format!("{READ:?}")).set("admin.bot_token", &format!("{BOT:?}"));
    let gate = builder.set("admin.hosts", r#"["ops.example"]"#).start().await;
    pages_need_a_session_and_a_session_a_token(&gate).await;
    after_the_end_of_a_session_a_log_in_leads_back_to_the_page(&gate).await;
    a_form_that_is_not_of_the_dashboard_changes_nothing(&gate).await;
    a_read_token_sees_everything_and_changes_nothing(&gate).await;
    only_its_own_names_are_answered(&gate).await;
    no_page_has_foreign_or_inline_code(&gate).await;
    each_log_in_and_log_out_is_in_the_audit_log_and_a_flood_is_not(&gate).await;
}

async fn pages_need_a_session_and_a_session_a_token(gate: &TestGateway) {
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let (nobody, pages) = (admin.with_token(""), dashboard.pages().await);
    for path in &pages {
        let login = if path == "/" { "/login".to_owned() } else { format!("/login?from=%2F{}", &path[1..]) };
        for client in [&nobody, &admin] {
            let answer = client.get(path).await;
            assert_eq!((answer.status, answer.header("location")), (303, &*login), "{path}: {answer:?}");
        }
        let answer = nobody.send("GET", path, &[("cookie", "guildgate_session=x")], "").await;
        assert_eq!((answer.status, answer.header("location")), (303, &*login), "{path}: {answer:?}");
    }
    let page = nobody.get("/login").await;
    assert!(page.status == 200 && page.text.contains("<h1>Log in</h1>"), "{page:?}");
    for (token, status, words) in [("wrong", 401, "The token is wrong"), ("", 401, "wrong"), (BOT, 403, "bot token")] {
        let answer = Dashboard::try_log_in(&nobody, token).await;
        assert!(answer.status == status && answer.text.contains(words), "{token}: {answer:?}");
        assert_eq!(answer.header("set-cookie"), "");
    }
    let answer = Dashboard::try_log_in(&nobody, &admin.token).await;
    let cookie = answer.header("set-cookie");
    let (id, flags) = cookie.split_once("; ").unwrap();
    assert!(id.strip_prefix("guildgate_session=").unwrap().len() >= 43, "{cookie}");
    assert_eq!(flags, "HttpOnly; SameSite=Strict");
    for path in &pages {
        let page = dashboard.get(path).await;
        assert!(page.status == 200 && page.text.contains("Log out"), "{page:?}");
    }
    assert!(!gate.stderr().contains(&admin.token));
}

async fn after_the_end_of_a_session_a_log_in_leads_back_to_the_page(gate: &TestGateway) {
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let key = format!("/keys/{}", gate.key_id("bot"));
    let answer = dashboard.post("/logout", &[]).await;
    assert_eq!((answer.status, answer.header("location")), (303, "/login"), "{answer:?}");
    assert!(answer.header("set-cookie").contains("Max-Age=0"), "{answer:?}");
    assert_eq!(dashboard.get("/?part=main").await.status, 401);
    // A session is a cookie, and no token of the API.
    admin.with_token(dashboard.cookie.split('=').nth(1).unwrap()).get("/api/status").await.is(401);
    // The page stands open still, with the cookie and the form of the session that has ended.
    let shown = dashboard.get(&format!("{key}?done=change")).await;
    let shown = dashboard.get(shown.header("location")).await.text;
    assert!(shown.contains("Your session has ended, and nothing was changed since. Log in again."), "{shown}");
    assert!(shown.contains(&format!(r#"name="from" value="{key}?done=change""#)), "{shown}");
    let sent = dashboard.post(&format!("{key}/change"), &[("name", "other")]).await;
    let sent = dashboard.get(sent.header("location")).await.text;
    assert!(sent.contains("nothing was changed"), "{sent}");
    let client = admin.with_token("");
    assert!(!client.get("/login").await.text.contains("session has ended"));
    let form = |from: &str| format!("token={}&from={}", admin.token, from.replace('/', "%2F"));
    for (from, page) in [(&*key, &*key), ("//evil.example", "/")] {
        let answer = client.send("POST", "/login", &[OWN], &form(from)).await;
        assert_eq!((answer.status, answer.header("location")), (303, page), "{from}");
        let answer = client.send("POST", "/login", &[OWN], &format!("token=wrong&{}", form(from))).await;
        assert!(answer.status == 401 && answer.text.contains(&format!(r#"name="from" value="{from}""#)), "{answer:?}");
    }
}

async fn each_log_in_and_log_out_is_in_the_audit_log_and_a_flood_is_not(gate: &TestGateway) {
    let nobody = gate.admin().await.with_token("");
    let before = gate.world().text("audit.log").lines().count();
    let reader = Dashboard::log_in(&gate.admin().await, READ).await;
    assert_eq!(Dashboard::try_log_in(&nobody, BOT).await.status, 403);
    assert_eq!(reader.post("/logout", &[]).await.status, 303);
    let mut counted = 0;
    for _ in 0..200 {
        counted += usize::from(Dashboard::try_log_in(&nobody, "a wrong token").await.status == 401);
    }
    assert!((1..100).contains(&counted), "{counted} of 200 attempts were not throttled");
    let api = nobody.with_token("wrong");
    eventually(PATIENCE, "the API is throttled with it", async || {
        api.get("/api/status").await.header("retry-after") == "1"
    })
    .await;
    Dashboard::log_in(&gate.admin().await, READ).await;
    let lines = || -> Vec<serde_json::Value> {
        let log = gate.world().text("audit.log");
        assert!(!log.contains(READ) && !log.contains(BOT) && !log.contains("a wrong token"), "{log}");
        log.lines().skip(before).map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    eventually(PATIENCE, "all lines", || async { lines().len() >= counted + 4 }).await;
    let said = |line: &serde_json::Value| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("client"), text("role"), text("path"), line["status"].as_u64().unwrap())
    };
    let expected = |role: &str, path: &str, status| ("127.0.0.1".to_owned(), role.to_owned(), path.to_owned(), status);
    let said: Vec<_> = lines().iter().map(said).collect();
    let (first, wrong) = said.split_at(3);
    let log_in = expected("read", "/login", 303);
    assert_eq!(first, [log_in.clone(), expected("bot", "/login", 403), expected("read", "/logout", 303)]);
    let (last, wrong) = wrong.split_last().unwrap();
    assert_eq!((last, wrong), (&log_in, &*vec![expected("none", "/login", 401); counted]));
}

async fn a_form_that_is_not_of_the_dashboard_changes_nothing(gate: &TestGateway) {
    let dashboard = gate.dashboard().await;
    let revoke = format!("/keys/{}/revoke", gate.key_id("bot"));
    let (cookie, own) = (("cookie", &*dashboard.cookie), "http://localhost");
    let says = [
        None,
        Some(("sec-fetch-site", "cross-site")),
        Some(("sec-fetch-site", "same-site")),
        Some(("origin", "null")),
        Some(("origin", "https://evil.example")),
        Some(("origin", "http://localhost:1")),
    ];
    for said in says {
        let headers: Vec<_> = said.into_iter().chain([cookie]).collect();
        for path in ["/keys", "/cache/purge", "/configuration/reload", "/logout", "/login", &revoke] {
            let answer = dashboard.client.send("POST", path, &headers, "confirmed=yes").await;
            assert!(answer.status == 403 && answer.text.contains("not of this dashboard"), "{path}: {answer:?}");
        }
    }
    // What a browser says of the site counts before the origin.
    let both = [("origin", own), ("sec-fetch-site", "cross-site"), cookie];
    assert_eq!(dashboard.client.send("POST", "/cache/purge", &both, "everything=yes").await.status, 403);
    let nobody = Dashboard { cookie: String::new(), ..dashboard.clone() };
    assert_eq!(nobody.post("/cache/purge", &[]).await.header("location"), "/login");
    assert_eq!(gate.admin().await.get("/api/keys").await.is(200)["items"].as_array().unwrap().len(), 1);
    assert_eq!(dashboard.get("/").await.status, 200);
    for said in [("origin", own), ("sec-fetch-site", "none"), OWN] {
        let answer = dashboard.client.send("POST", "/cache/purge", &[said, cookie], "everything=yes").await;
        assert_eq!((answer.status, answer.header("location")), (303, "/cache?done=purge"), "{said:?}: {answer:?}");
    }
}

async fn a_read_token_sees_everything_and_changes_nothing(gate: &TestGateway) {
    let reader = Dashboard::log_in(&gate.admin().await, READ).await;
    let key = format!("/keys/{}", gate.key_id("bot"));
    for path in &[reader.pages().await, vec![key.clone()]].concat() {
        let page = reader.get(path).await;
        assert_eq!(page.status, 200, "{path}: {page:?}");
        let forms = page.text.matches(r#"method="post""#).count();
        assert_eq!(forms, 1, "{path} has other forms than that to log out: {page:?}");
    }
    for path in ["/keys", "/cache/purge", "/configuration/reload", &format!("{key}/revoke"), &format!("{key}/rotate")] {
        let answer = reader.post(path, &[("guild", GUILD)]).await;
        assert!(answer.status == 403 && answer.text.contains("read token"), "{path}: {answer:?}");
    }
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(reader.post("/logout", &[]).await.status, 303);
}

async fn only_its_own_names_are_answered(gate: &TestGateway) {
    let dashboard = gate.dashboard().await;
    for (host, path, status) in [
        ("ops.example", "/", 200),
        ("evil.example", "/", 421),
        ("evil.example", "/keys", 421),
        ("evil.example", "/login", 421),
        ("evil.example", "/assets/style.css", 421),
    ] {
        let headers = [("host", host), ("cookie", &dashboard.cookie)];
        let answer = dashboard.client.send("GET", path, &headers, "").await;
        assert_eq!(answer.status, status, "{host} {path}: {answer:?}");
    }
    assert_eq!(dashboard.client.send("GET", "/healthz", &[("host", "any.example")], "").await.status, 200);
}

async fn no_page_has_foreign_or_inline_code(gate: &TestGateway) {
    let dashboard = gate.dashboard().await;
    gate.get_points("bot", "7").await.is("3");
    let key = format!("/keys/{}", gate.key_id("bot"));
    let policy = "default-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'";
    let others =
        [&*key, "/keys/none", "/assets/style.css", "/assets/refresh.js", "/assets/chart.js"].map(str::to_owned);
    for path in dashboard.pages().await.iter().chain(&others) {
        let page = dashboard.get(path).await;
        assert_eq!(page.header("content-security-policy"), policy, "{path}");
        assert_eq!(page.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(page.header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(page.header("cache-control"), "no-store", "{path}");
        for code in ["style=", "<style", "javascript:", " onclick", " onload", "http://", "https://"] {
            let text = page.text.replace("http://www.w3.org/2000/svg", "");
            let text = text.split("<pre").next().unwrap(); // the configuration names addresses
            assert!(!text.contains(code), "{path} has {code}: {page:?}");
        }
        let scripts = page.text.matches("<script").count();
        assert_eq!(scripts, page.text.matches(r#"<script src="assets/"#).count(), "{path}");
    }
    assert_eq!(dashboard.get("/keys/none").await.status, 404);
    let page = dashboard.get("/").await.text;
    let library = page.split('"').find(|path| path.contains("uplot") && path.ends_with(".js")).unwrap();
    let library = dashboard.get(&format!("/{library}")).await;
    assert_eq!((library.status, library.header("cache-control")), (200, "max-age=31536000, immutable"));
}

#[tokio::test]
async fn behind_a_proxy_pages_work_below_its_path_and_the_cookie_is_for_tls_alone() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin();
    let gate = gate.set("server.trusted_proxies", r#"["127.0.0.1"]"#).start().await;
    let (admin, world) = (gate.admin().await, World::plain());
    let listen = free_address();
    let config = format!(
        "daemon off; master_process off; error_log stderr; pid {pid}; events {{}} http {{ access_log off; client_body_temp_path {temp}; \
         proxy_temp_path {temp}; fastcgi_temp_path {temp}; uwsgi_temp_path {temp}; scgi_temp_path {temp}; server {{ listen \
         {listen}; location /gg/ {{ proxy_pass http://{to}/; proxy_set_header Host $http_host; proxy_set_header \
         X-Forwarded-Proto https; }} }} }}",
        pid = world.path("nginx.pid").display(),
        temp = world.path("temp").display(),
        to = admin.address,
    );
    let config = world.write("nginx.conf", config);
    let _nginx = Process::start(Command::new("/usr/sbin/nginx").arg("-c").arg(config).arg("-e").arg("stderr"));
    eventually(PATIENCE, "nginx accepts", async || TcpStream::connect(listen).await.is_ok()).await;
    let nobody = AdminClient { address: listen, token: String::new() };
    let answer = nobody.get("/gg/keys").await;
    assert_eq!((answer.status, answer.header("location")), (303, "/gg/login?from=%2Fkeys"), "{answer:?}");
    let form = format!("token={}&from=%2Fkeys", admin.token);
    let answer = nobody.send("POST", "/gg/login", &[OWN], &form).await;
    assert_eq!((answer.status, answer.header("location")), (303, "/gg/keys"), "{answer:?}");
    let (cookie, flags) = answer.header("set-cookie").split_once("; ").unwrap();
    assert_eq!(flags, "HttpOnly; SameSite=Strict; Secure");
    let browser = Browser::start().await;
    browser.open(&format!("http://{listen}/gg/login")).await;
    let (name, id) = cookie.split_once('=').unwrap();
    let set = format!("document.cookie = '{name}={id}; path=/gg'");
    browser.evaluate(&set).await; // over plain HTTP, from which a browser takes no cookie for TLS
    for (path, title) in [("", "Overview"), ("keys?make=yes", "Make a key"), ("refusals/live", "Live")] {
        browser.open(&format!("http://{listen}/gg/{path}")).await;
        assert_eq!(browser.text("h1").await, title);
        let loaded = "getComputedStyle(document.querySelector('nav ul')).display === 'flex'";
        browser.shows("the style sheet", loaded).await;
    }
    browser.open(&format!("http://{listen}/gg/keys/{}", gate.key_id("bot"))).await;
    browser.enter("nav a[href='./tuning']", "Tuning").await;
}
