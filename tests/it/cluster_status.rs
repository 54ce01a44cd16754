//! Contract section 2, `cluster status`, and what the API and the dashboard show of the same: real nodes before one
//! HTTP origin, which share a real Redis.

use std::time::Duration;

use serde_json::Value;

use crate::support::*;

fn node(redis_url: &str) -> Builder {
    TestGateway::before_http()
        .set("cluster.redis", &format!("{redis_url:?}"))
        .set("cluster.node", r#""edge-1""#)
        .set("cluster.nodes", "2")
        // The longest there is, because tests share a machine.
        .set("cluster.timeout", r#""1s""#)
        .set("server.handover", r#""handover.sock""#)
        .admin()
        .key("bot")
        .points("7", 3)
}

/// Two nodes with names of their own.
async fn two_nodes(redis: &RedisDatabase) -> (TestGateway, TestGateway) {
    let here = node(&redis.url()).start().await;
    let mut there = here.node("").await;
    there.world().edit("gateway.toml", "edge-1", "edge-2");
    there.restart().await;
    (here, there)
}

fn status(gate: &TestGateway) -> Ran {
    gate.run(&["cluster", "status"])
}

fn status_json(gate: &TestGateway) -> Value {
    serde_json::from_str(&gate.run(&["cluster", "status", "--json"]).stdout).unwrap()
}

/// Waits until the command ends with this code and says these words.
async fn says(gate: &TestGateway, code: i32, words: &[&str]) {
    let is_said = async || {
        let ran = status(gate);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        ran.code == Some(code) && words.iter().all(|word| text.contains(word))
    };
    eventually(PATIENCE, &format!("exit {code} and {words:?}"), is_said).await;
}

#[tokio::test]
async fn each_node_is_shown_and_configurations_and_key_files_that_differ_are_named_by_the_command_the_dashboard_and_a_metric_until_they_agree()
 {
    let redis = RedisDatabase::new().await;
    let (mut here, mut there) = two_nodes(&redis).await;
    for gate in [&here, &there] {
        says(gate, 0, &["edge-1", "edge-2", "2 nodes", "serving", &format!("Redis at {} (version", redis.url())]).await;
    }
    let connected = |age: &Value| age.as_u64().is_some_and(|age| age < 950);
    let is_whole = async || {
        let nodes = status_json(&here)["nodes"].as_array().unwrap().clone();
        let holds = |node: &Value| {
            let hears = connected(&node["writes_age_ms"]) && node["cut_off"] == false;
            hears && node["state"] == "serving" && node["age_ms"].as_u64().unwrap() < 3000
        };
        nodes.len() == 2 && nodes.iter().all(holds) && nodes[0]["config_hash"] == nodes[1]["config_hash"]
    };
    eventually(PATIENCE, "both nodes serve and hear each other", is_whole).await;
    let told = status_json(&there);
    let admin = here.admin().await;
    let is_same = async || {
        let of_api = admin.get("/api/cluster").await.is(200);
        let paths =
            ["/redis", "/warnings", "/nodes/0/incarnation", "/nodes/1/pid", "/nodes/1/node", "/nodes/1/version"];
        paths.iter().all(|path| of_api.pointer(path).is_some() && of_api.pointer(path) == told.pointer(path))
    };
    eventually(PATIENCE, "the API has the same", is_same).await;
    assert_eq!(told["nodes"][1]["pid"], there.process_id());
    let configurations = async || admin.metric("guildgate_cluster_configurations").await;
    eventually(PATIENCE, "one configuration", async || configurations().await == 1.0).await;
    there.reload_with("burst = 1000000", "burst = 999999");
    says(&here, 1, &["the configurations of the nodes differ"]).await;
    eventually(PATIENCE, "two configurations", async || configurations().await == 2.0).await;
    let page = here.dashboard().await.get("/").await.text;
    assert!(page.contains("class=\"warn\">the configurations of the nodes differ"), "{page}");
    assert!(page.contains(">edge-2</th><td data-label=\"State\"><span>serving</span></td>"), "{page}");
    there.reload_with("burst = 999999", "burst = 1000000");
    says(&here, 0, &["edge-2"]).await;
    // So are key files, until each node has read the same keys.
    let file = here.world().text("keys.toml");
    let more = format!("[[key]]\nid = \"more\"\ndigest = {:?}\nguild = {GUILD:?}\n", digest("more"));
    there.world().write("keys.toml", format!("{file}{more}"));
    says(&here, 1, &["the key files of the nodes differ"]).await;
    let two = async || admin.metric("guildgate_cluster_key_files").await == 2.0;
    eventually(PATIENCE, "two key files", two).await;
    let page = here.dashboard().await.get("/").await.text;
    assert!(page.contains("class=\"warn\">the key files of the nodes differ"), "{page}");
    here.world().write("keys.toml", format!("# in another order\n{more}{file}"));
    says(&here, 0, &["edge-1", "edge-2"]).await;
    // What may differ between nodes is no difference.
    there.world().edit("gateway.toml", "handover.sock", "h.sock");
    there.world().edit("gateway.toml", "[server]", "[log]\naccess = \"access.log\"\n[server]");
    there.restart().await;
    let same = async || {
        let nodes = status_json(&here)["nodes"].as_array().unwrap().clone();
        nodes.len() == 2 && nodes.iter().all(|node| node["state"] == "serving")
    };
    eventually(PATIENCE, "both serve", same).await;
    status(&here).done();
    the_two_processes_of_a_hand_over_are_shown_without_a_warning(&mut here).await;
    a_node_that_is_killed_is_named_until_another_takes_its_place(&redis, &here, &mut there).await;
}

async fn the_two_processes_of_a_hand_over_are_shown_without_a_warning(here: &mut TestGateway) {
    let request = here.request("getPoints", "bot", "memberID=7");
    let held = HeldBody::begin(here, request).await;
    let mut before = here.replace().await;
    let both = async || {
        let ran = status(here).done();
        ran.stdout.contains("draining") && ran.stdout.contains("serving")
    };
    eventually(PATIENCE, "both are shown", both).await;
    held.release().await.is("3");
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
    assert!(status(here).done().stdout.contains("; 2 nodes\n"));
}

async fn a_node_that_is_killed_is_named_until_another_takes_its_place(
    redis: &RedisDatabase,
    here: &TestGateway,
    there: &mut TestGateway,
) {
    let serves = async || status(here).stdout.matches("serving").count() == 2;
    eventually(PATIENCE, "both serve", serves).await;
    there.process().kill_hard();
    let named = async || status(here).stderr.contains("node edge-2 (process ");
    eventually(Duration::from_secs(20), "it is named", named).await;
    says(here, 1, &["was last heard", "it was killed"]).await;
    there.restart_after_kill().await;
    says(here, 0, &["edge-2", "serving"]).await;
    redis.ask("HSET guildgate:nodes another x"); // something that is no record of a node
    says(here, 0, &["2 nodes"]).await;
    let is_gone = async || !redis.ask("HKEYS guildgate:nodes").contains("another");
    eventually(PATIENCE, "it is removed", is_gone).await;
}

#[tokio::test]
async fn a_node_that_hears_nothing_of_the_others_is_named_as_cut_off_and_without_redis_the_command_ends_with_2() {
    let mut redis = Redis::start(&["--user", "gate", "on", ">hunter2", "~*", "+@all"]).await;
    let here = node(&redis.url().replace("redis://", "redis://gate:hunter2@")).start().await;
    says(&here, 0, &["edge-1", "serving"]).await;
    redis.ask("ACL SETUSER gate -xread");
    says(&here, 1, &["CUT OFF", "yes", "node edge-1", "answers nothing from memory"]).await;
    let warned = here.admin().await.get("/api/cluster").await.is(200)["warnings"].to_string();
    assert!(warned.contains("the other nodes are not heard over Redis"), "{warned}");
    redis.ask("ACL SETUSER gate +xread");
    says(&here, 0, &["edge-1", "serving"]).await;
    let ran = status(&here);
    assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
    redis.kill_hard();
    let address = format!("127.0.0.1:{} cannot be used", redis.port());
    status(&here).failed(2).names(&["gateway.toml", "cluster.redis", "Redis at ", &address]);
    here.has_said("is away; until it answers").await;
    let warnings = here.admin().await.get("/api/cluster").await.is(200)["warnings"].clone();
    assert!(warnings[0].as_str().unwrap().starts_with("the other nodes are not heard"), "{warnings}");
    let alone = TestGateway::builder().admin().start().await;
    status(&alone).failed(2).names(&["cluster.redis", "is not set"]);
    alone.admin().await.get("/api/cluster").await.is_problem(409, "cluster.redis is not set");
    assert!(!alone.dashboard().await.get("/").await.text.contains("Nodes that share"));
    World::new("[cluster]\nredis = \"redsi://h\"\n")
        .run(&["cluster", "status"])
        .failed(2)
        .names(&["no usable Redis URL"]);
}
