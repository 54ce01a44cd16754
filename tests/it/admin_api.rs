//! Contract section 4: the admin API does what its description says. `scripts/openapi` generates requests
//! from the description.

use std::collections::BTreeSet;

use rusqlite::Connection as Sqlite;
use serde_json::{Value, json};

use crate::admin_openapi::requests_are_answered_as_the_description_says;
use crate::support::*;

/// An operation, a request that succeeds, and its status.
type Good = (&'static str, &'static str, &'static str, u16);

/// In an order in which each of them succeeds, but for `getCluster`, which `cluster_status` asks with a Redis. `{key}` stands
/// for the id of the key that was made first.
const GOOD: [Good; 30] = [
    ("addGuild", "/api/guilds", r#"{"id":"81","name":"Night Watch"}"#, 201),
    ("listGuilds", "/api/guilds?limit=1", "", 200),
    ("getGuild", "/api/guilds/81", "", 200),
    ("changeGuild", "/api/guilds/81", r#"{"name":"Day Watch","left":true}"#, 200),
    ("changeGuild", "/api/guilds/81", r#"{"left":false}"#, 200),
    ("createKey", "/api/keys", r#"{"guild":"81","name":"bot","scope":"read","expires":"90d"}"#, 201),
    ("listKeys", "/api/keys?guild=81", "", 200),
    ("getKey", "/api/keys/{key}", "", 200),
    ("changeKey", "/api/keys/{key}", r#"{"name":"n","tier":null,"scope":"write","expires":null}"#, 200),
    ("rotateKey", "/api/keys/{key}/rotate", r#"{"overlap":"1h"}"#, 200),
    ("resetDay", "/api/keys/{key}/reset-day", "", 204),
    ("putMember", "/api/guilds/81/members/7", r#"{"name":"Ada","points":5}"#, 200),
    ("getMember", "/api/guilds/81/members/007", "", 200),
    ("listMembers", "/api/guilds/81/members", "", 200),
    ("addWarn", "/api/guilds/81/members/7/warns", r#"{"author":"M","reason":"r","expires":"30d"}"#, 201),
    ("putWarn", "/api/guilds/81/members/7/warns/9", r#"{"author":"M","reason":"r","expires":9999999999}"#, 201),
    ("listWarns", "/api/guilds/81/warns?member=7", "", 200),
    ("removeWarn", "/api/guilds/81/warns/9", "", 204),
    ("addReview", "/api/guilds/81/members/7/reviews", r#"{"author":"B","rating":5,"text":"t"}"#, 201),
    ("putReview", "/api/guilds/81/members/7/reviews/1", r#"{"author":"B","rating":4,"text":"t"}"#, 200),
    ("listReviews", "/api/guilds/81/reviews", "", 200),
    ("removeReview", "/api/guilds/81/reviews/1", "", 204),
    ("getStatus", "/api/status", "", 200),
    ("getConfig", "/api/config", "", 200),
    ("getLimits", "/api/limits", "", 200),
    ("getCluster", "/api/cluster", "", 409),
    ("listUsage", "/api/usage?limit=1", "", 200),
    ("purgeCache", "/api/cache/purge", r#"{"guild":"81"}"#, 204),
    ("reload", "/api/reload", "", 200),
    ("removeMember", "/api/guilds/81/members/7", "", 204),
];

/// The last ones, after what needs what they remove.
const LAST: [Good; 3] = [
    ("getUsage", "/api/keys/{key}/usage", "", 200),
    ("revokeKey", "/api/keys/{key}", "", 204),
    ("removeGuild", "/api/guilds/81", "", 200),
];

struct Described {
    method: String,
    operation: Value,
}

/// The operation of this id.
fn described(openapi: &Value, id: &str) -> Described {
    for item in openapi["paths"].as_object().unwrap().values() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["operationId"] == id {
                return Described { method: method.to_uppercase(), operation: operation.clone() };
            }
        }
    }
    panic!("{id} is not described");
}

impl Described {
    /// Asserts that the answer has a status and a content type that the description names.
    #[track_caller]
    fn allows(&self, answer: &AdminAnswer) {
        let declared = &self.operation["responses"][answer.status.to_string()];
        assert!(declared.is_object(), "{} is not declared: {answer:?}", answer.status);
        match declared["content"].as_object() {
            Some(content) => assert!(content.contains_key(answer.header("content-type")), "{answer:?}"),
            None => assert_eq!(answer.text, "", "{answer:?}"),
        }
        assert_eq!(answer.header("cache-control"), "no-store", "{answer:?}");
    }
}

async fn every_operation_answers_as_the_description_says(admin: &AdminClient) {
    let openapi = admin.get("/api/openapi.json").await.is(200);
    let (mut key, mut seen) = (String::new(), BTreeSet::new());
    for (id, path, body, status) in GOOD.into_iter().chain(LAST) {
        let operation = described(&openapi, id);
        let path = path.replace("{key}", &key);
        bad_input(admin, &operation, &path, body).await;
        if id == "addGuild" {
            let plain = admin.send("POST", &path, &[("content-type", "text/plain")], body).await;
            plain.is_problem(415, "JSON");
            admin.json("POST", &path, &"x".repeat(64 * 1024 + 1)).await.is_problem(413, "64 KiB");
        }
        if id == "getUsage" {
            eventually(SECOND_AND_SLACK, "the key is in force", async || admin.get(&path).await.status == 200).await;
        }
        let answer = admin.json(&operation.method, &path, body).await;
        assert_eq!(answer.status, status, "{id}: {answer:?}");
        operation.allows(&answer);
        if id == "createKey" {
            key = answer.is(201)["id"].as_str().unwrap().to_owned();
        }
        seen.insert(id);
    }
    let all = openapi["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    let all: BTreeSet<&str> = all.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(all, seen, "an operation was left out");
}

/// Sends what is wrong with a request that would succeed.
async fn bad_input(admin: &AdminClient, operation: &Described, path: &str, body: &str) {
    let method = operation.method.as_str();
    let no_token = admin.with_token("").json(method, path, body).await;
    if no_token.status != 429 {
        no_token.is_problem(401, "token");
        assert_eq!(no_token.header("www-authenticate"), "Bearer");
    }
    operation.allows(&no_token);
    let wrong_method = admin.json("TRACE", path, "").await;
    wrong_method.is_problem(405, "method");
    assert!(wrong_method.header("allow").contains(method), "{wrong_method:?}");
    if !body.is_empty() {
        for bad in ["{", "[]", r#"{"colour":1}"#] {
            admin.json(method, path, bad).await.is_problem(400, "the body");
        }
    }
    if method == "GET" && path.contains("?") {
        for bad in ["limit=0", "limit=1001", "limit=x", "colour=1"] {
            let path = format!("{}?{bad}", path.split('?').next().unwrap());
            let answer = admin.get(&path).await;
            assert_eq!(answer.status, 400, "{answer:?}");
            operation.allows(&answer);
        }
    }
    // Ids that are not there, and ids that cannot be.
    for (there, other) in [("/81", "/82"), ("/k_", "/no_"), ("/members/7", "/members/x"), ("/warns/9", "/warns/-1")] {
        if path.contains(there) {
            let answer = admin.json(method, &path.replace(there, other), body).await;
            assert!(matches!(answer.status, 400 | 404), "{answer:?}");
            operation.allows(&answer);
        }
    }
}

/// All items of a list, page by page, and the number of pages.
async fn pages(admin: &AdminClient, list: &str) -> (Vec<Value>, usize) {
    let (mut items, mut pages, mut next) = (Vec::new(), 0, String::new());
    loop {
        let page = admin.get(&format!("{list}limit=2{next}")).await.is(200);
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        pages += 1;
        match page["next"].as_str() {
            Some(after) => next = format!("&after={after}"),
            None => return (items, pages),
        }
    }
}

#[tokio::test]
async fn lists_have_pages_changes_show_to_callers_within_a_second_and_all_is_answered_as_the_description_says() {
    let gate = TestGateway::builder().key("bot").points("7", 3);
    let gate = gate.key_of_tier("daily", "daily").set("limits.tiers.daily.daily", "5").admin().start().await;
    let admin = gate.admin().await;
    warns_and_reviews_are_put_under_an_id_of_the_callers(&gate, &admin).await;
    lists_have_pages(&admin).await;
    what_is_changed_is_made_as_a_whole_and_shows_to_callers_within_a_second(&gate, &admin).await;
    every_operation_answers_as_the_description_says(&admin).await;
    requests_are_answered_as_the_description_says(&gate, &admin).await;
}

async fn lists_have_pages(admin: &AdminClient) {
    for id in ["g1", "g2", "g3"] {
        admin.post("/api/guilds", &json!({"id": id, "name": "G"}).to_string()).await.is(201);
    }
    for _ in 0..3 {
        admin.post("/api/keys", r#"{"guild":"g1"}"#).await.is(201);
    }
    admin.post("/api/keys", r#"{"guild":"g2"}"#).await.is(201);
    for member in [0, 2, 3, 5] {
        admin.json("PUT", &format!("/api/guilds/g1/members/{member}"), "{}").await.is(200);
    }
    let warn = json!({"author": "M", "reason": "r", "expires": "1d"}).to_string();
    for (member, id) in [(5, 1), (0, 2), (5, 3), (5, 0)] {
        admin.json("PUT", &format!("/api/guilds/g1/members/{member}/warns/{id}"), &warn).await.is(201);
    }
    let ids = |found: &(Vec<Value>, usize), name: &str| -> Vec<String> {
        found.0.iter().map(|item| item[name].as_str().unwrap().to_owned()).collect()
    };
    let guilds = pages(admin, "/api/guilds?").await;
    assert_eq!(ids(&guilds, "id"), [GUILD, "g1", "g2", "g3"]);
    let members = pages(admin, "/api/guilds/g1/members?").await;
    assert_eq!((ids(&members, "member"), members.1), (["0", "2", "3", "5"].map(str::to_owned).to_vec(), 2));
    let keys = pages(admin, "/api/keys?guild=g1&").await;
    assert!(keys.0.len() == 3 && keys.1 == 2 && ids(&keys, "id").is_sorted(), "{keys:?}");
    assert_eq!(pages(admin, "/api/keys?").await.0.len(), 6);
    assert_eq!(pages(admin, "/api/keys?guild=g3&").await.0.len(), 0);
    admin.get("/api/keys?guild=nope").await.is_problem(404, "guild nope is not in the store");
    let warns = pages(admin, "/api/guilds/g1/warns?").await;
    assert_eq!(ids(&warns, "id"), ["0", "1", "2", "3"]);
    let warns = pages(admin, "/api/guilds/g1/warns?member=5&").await;
    assert_eq!((ids(&warns, "id"), warns.1), (["0", "1", "3"].map(str::to_owned).to_vec(), 2));
    // A page has fewer items if they are long.
    let members = "/api/guilds/g3/members";
    let name = json!({ "name": "x".repeat(60_000) }).to_string();
    for member in 0..20 {
        admin.json("PUT", &format!("{members}/{member}"), &name).await.is(200);
    }
    let first = admin.get(&format!("{members}?limit=1000")).await;
    assert!((1_000_000..1_100_000).contains(&first.text.len()), "{} bytes", first.text.len());
    let (first, count) = (first.is(200), first.is(200)["items"].as_array().unwrap().len());
    let after = first["next"].as_str().unwrap();
    let rest = admin.get(&format!("{members}?limit=1000&after={after}")).await.is(200);
    assert_eq!((count + rest["items"].as_array().unwrap().len(), &rest["next"]), (20, &Value::Null));
}

/// How it is put, and which one is refused, is tested beside the store.
async fn warns_and_reviews_are_put_under_an_id_of_the_callers(gate: &TestGateway, admin: &AdminClient) {
    let members = format!("/api/guilds/{GUILD}/members");
    let warn = |expires: Value| json!({"author": "Mod", "reason": "r", "expires": expires}).to_string();
    for (member, expires, status, said) in [
        ("7", json!(9_999_999_999_i64), 201, ""),
        ("7", json!(9_999_999_999_i64), 200, ""),
        ("8", json!("1d"), 409, "member 7's"),
        ("7", json!(1), 409, "not in the future"),
        ("7", json!(null), 400, r#"an end is Unix seconds, or a text such as "90d""#),
    ] {
        let answer = admin.json("PUT", &format!("{members}/{member}/warns/17"), &warn(expires)).await;
        match said {
            "" => drop(answer.is(status)),
            said => answer.is_problem(status, said),
        }
    }
    admin.get(&format!("{members}/8")).await.is_problem(404, "no member 8");
    let review = |rating| json!({"author": "Bo", "rating": rating, "text": "t"}).to_string();
    admin.json("PUT", &format!("{members}/7/reviews/3"), &review(6)).await.is_problem(400, "1 to 5");
    admin.json("PUT", &format!("{members}/7/reviews/3"), &review(5)).await.is(201);
    let told = async || gate.get_reviews("bot", "7").await.body == "{reviews_7_id_3_5=Bo (5★): t}";
    eventually(SECOND_AND_SLACK, "the review", told).await;
}

async fn what_is_changed_is_made_as_a_whole_and_shows_to_callers_within_a_second(
    gate: &TestGateway,
    admin: &AdminClient,
) {
    let guild = format!("/api/guilds/{GUILD}");
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    admin.json("PUT", &format!("{guild}/members/7"), r#"{"points":9}"#).await.is(200);
    eventually(SECOND_AND_SLACK, "9", || async { gate.get_points("bot", "7").await.body == "9" }).await;
    let made = admin.post("/api/keys", &json!({"guild": GUILD, "name": "two\nlines"}).to_string()).await.is(201);
    let key = format!("/api/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(admin.get(&key).await.is(200)["name"], made["name"]);
    let request = Request::post("/getPoints", "memberID=7").key(made["key"].as_str().unwrap());
    eventually(SECOND_AND_SLACK, "the new key", || async { gate.send(&request).await.status == 200 }).await;
    // A body may be null where it may be missing.
    admin.post("/api/cache/purge", "null").await.is(204);
    assert!(admin.post(&format!("{key}/rotate"), "null").await.is(200)["previous_until"].is_i64());
    admin.json("PATCH", &key, "null").await.is_problem(400, "the body");
    admin.json("PATCH", &key, r#"{"tier":"gold"}"#).await.is_problem(409, "there is daily, standard");
    admin.send("DELETE", &key, &[], "").await.is(204);
    eventually(SECOND_AND_SLACK, "02", || async { gate.send(&request).await.code() == Some(2) }).await;
    // The commands work while it runs, and what they leave behind is whole.
    gate.run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "11"]).done();
    eventually(SECOND_AND_SLACK, "11", || async { gate.get_points("bot", "7").await.body == "11" }).await;
    gate.set_points("bot", "7", 12).await;
    assert_eq!(admin.get(&format!("{guild}/members/7")).await.is(200)["points"], 12);
    assert!(!gate.stderr().contains("ERROR"), "{}", gate.stderr());
    a_day_that_is_reset_is_a_whole_one(gate, admin).await;
    // A change of a guild is made as a whole or not at all.
    let store = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    let refuse =
        "CREATE TRIGGER refuse BEFORE UPDATE OF gone ON guild WHEN new.gone = 1 BEGIN SELECT raise(ABORT, 'no'); END";
    store.execute_batch(refuse).unwrap();
    admin.json("PATCH", &guild, r#"{"name":"Day Watch","left":true}"#).await.is(503);
    assert_eq!(admin.get(&guild).await.is(200)["name"], "Night Watch");
    store.execute_batch("DROP TRIGGER refuse").unwrap();
    let changed = admin.json("PATCH", &guild, r#"{"name":"Day Watch","left":true}"#).await.is(200);
    assert_eq!(changed, json!({"id": GUILD, "name": "Day Watch", "left": true}));
}

async fn a_day_that_is_reset_is_a_whole_one(gate: &TestGateway, admin: &AdminClient) {
    let id = gate.key_id("daily");
    let let_in = || async {
        let mut let_in = 0;
        for _ in 0..7 {
            let_in += usize::from(gate.get_points("daily", "7").await.status == 200);
        }
        let_in
    };
    assert_eq!(let_in().await, 5);
    // Once at once, when the count is not in the store yet, and once by the command.
    admin.send("POST", &format!("/api/keys/{id}/reset-day"), &[], "").await.is(204);
    for _ in 0..2 {
        let path = format!("/api/keys/{id}/usage");
        let is_reset = async || admin.get(&path).await.is(200)["daily"]["used"] == 0;
        eventually(SECOND_AND_SLACK, "the key's day is a whole one", is_reset).await;
        assert_eq!(let_in().await, 5);
        gate.run(&["limits", "reset", &id]).done();
    }
    gate.run(&["limits", "reset", "no_such"]).failed(1).names(&["there is no key no_such"]);
    admin.send("POST", "/api/keys/no_such/reset-day", &[], "").await.is_problem(404, "no_such");
}
