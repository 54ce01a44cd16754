//! What `[cluster]` says, and what is wrong with it.

use super::*;

#[test]
fn nodes_before_an_http_origin_need_one_primary_and_are_told_what_its_absence_means() {
    let cluster = |redis: &str| {
        let http = "origin.kind = \"http\"\norigin.upstreams = [\"http://a\"]\n";
        format!("{http}cluster.nodes = 2\ncluster.redis = \"{redis}\"\n")
    };
    let faults = faults(&cluster("redis-cluster://:hunter2@127.0.0.1"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("one primary") && !faults[0].contains("hunter2"), "{faults:?}");
    let one = cluster("redis://127.0.0.1");
    assert_eq!(warnings(&one), Vec::<String>::new());
    let sentinels = cluster("redis-sentinel://127.0.0.1?master=m");
    assert_eq!(warnings(&sentinels), ["cluster.replicas"]);
    let loaded = loaded(&format!("{sentinels}cluster.replicas = 1\n")).unwrap();
    assert!(loaded.warnings.is_empty() && report(&loaded).contains("replicas = 1"), "{}", report(&loaded));
    assert_eq!(loaded.config.cluster.unwrap().replicas, Some(1));
}

#[test]
fn a_cluster_is_checked_and_shown_without_its_password() {
    let text = "cluster.redis = \"rediss://me:hunter2@cache.example\"\ncluster.node = \"edge-1\"\ncluster.nodes = 3\n";
    let loaded = loaded(text).unwrap();
    let shown = format!("{}\n{loaded:?}", report(&loaded));
    assert!(shown.contains("rediss://cache.example") && !shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("over all nodes") && shown.contains("burst 13 at 20/s / 3"), "{shown}");
    let own = "server.listen = [\"10.0.0.2:80\"]\nserver.tls = { certificate = \"c\", private_key = \"k\" }\n\
               admin.listen = \"\"\nlog.access = \"a.log\"\norigin.store = \"b.db\"\n";
    let other = own.to_owned() + &text.replace("edge-1", "edge-2").replace("cache.", "other.");
    assert_eq!(loaded.config.hash.to_string(), config(&other).hash.to_string(), "nodes differ in these");
    for (bad, path) in [
        ("node = \"a b\"", "cluster.node"),
        ("node = \"\"", "cluster.node"),
        ("node = \"café\"", "cluster.node"),
        ("node = \"a\\nb\"", "cluster.node"),
        ("node = \"a:b\"", "cluster.node"),
        ("prefix = \"\"", "cluster.prefix"),
        ("timeout = \"2s\"", "cluster.timeout"),
        ("lease = \"10s\"", "cluster.lease"),
        ("redis = \"redsi://:hunter2@h\"", "cluster.redis"),
        ("redis = \"env:NOWHERE\"", "cluster.redis"),
    ] {
        let url = if bad.starts_with("redis") { "" } else { "redis = \"redis://127.0.0.1\"\n" };
        let list = super::load_str(&format!("[cluster]\n{url}{bad}\n"), Path::new("/"), "t").unwrap_err().list;
        assert_eq!(list.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), [path], "{bad}");
        assert!(!list[0].message.contains("hunter2"), "{list:?}");
    }
}
