//! docs/cluster.md, "Behind HAProxy": the page's own configuration, before three real nodes that are restarted in turn.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;

#[tokio::test]
async fn no_request_fails_while_three_nodes_behind_haproxy_are_restarted_in_turn() {
    let mut nodes = HaProxy::nodes(TestGateway::before_http().key("bot").points("7", 3).points("8", 3)).await;
    let haproxy = HaProxy::before(&nodes, "50ms").await;
    let crowd = Arc::new(Crowd::default());
    let reader = Caller {
        crowd: crowd.clone(),
        address: haproxy.address,
        tls: Some(Arc::new(haproxy.client())),
        ask: nodes[0].request("getPoints", "bot", "memberID=7"),
        answer: "3",
        rest: Duration::from_millis(20),
    };
    let ask = nodes[0].request("setPoints", "bot", "memberID=8&amount=5");
    let writer = Caller { ask, answer: "Successfully set 'Ada' points to '5'", ..reader.clone() };
    let mut tasks = Vec::new();
    for rest in [0, 5, 20, 50].map(Duration::from_millis) {
        tasks.push(tokio::spawn(Caller { rest, ..reader.clone() }.keeps()));
    }
    for caller in [reader, writer] {
        tasks.push(tokio::spawn(caller.clone().keeps()));
        tasks.push(tokio::spawn(caller.clone().reconnects()));
    }
    for (node, server) in nodes.iter_mut().zip(["node1", "node2", "node3"]) {
        crowd.answers(200).await;
        assert_eq!(node.restart().await, Some(0), "{server}");
        eventually(PATIENCE, "HAProxy uses the node again", async || haproxy.stat(server)["status"] == "UP").await;
    }
    crowd.answers(200).await;
    crowd.end();
    Crowd::all(tasks).await;
    assert_eq!(crowd.told.load(std::sync::atomic::Ordering::Relaxed), 0, "HAProxy keeps its callers' connections");
    for server in ["node1", "node2", "node3"] {
        let stat = haproxy.stat(server);
        let [requests, downs, failures @ ..] = ["stot", "chkdown", "wretr", "wredis", "econ", "eresp", "hrsp_5xx"]
            .map(|name| stat[name].parse::<u32>().unwrap());
        assert!(requests > 50 && downs > 0, "{server} got no part of the load, or was never out: {stat:?}");
        // Not even a retry: HAProxy had stopped using the node before its listener closed.
        assert_eq!(failures, [0; 5], "{server}: {stat:?}\n{}", haproxy.stderr());
    }
}
