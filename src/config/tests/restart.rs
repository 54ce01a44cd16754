//! What of a configuration takes effect only after a restart.

use super::*;

#[test]
fn what_needs_a_restart_is_said_by_name() {
    let reloaded = |before: &str, next: &str, has_store| {
        let Reloaded { config: after, changed, after_restart } = config(before).reloaded(config(next), has_store);
        (after, changed.join(" "), after_restart.join(" "))
    };
    let unchanged = |next: &str| {
        let (after, changed, after_restart) = reloaded("", next, true);
        assert_eq!((after, changed), (config(""), String::new()), "{next}");
        after_restart
    };
    let next = "server = { threads = 1023, max_connections = 5 }\norigin.store = \"b.db\"\n";
    assert_eq!(unchanged(next), "server.threads server.max_connections origin.store");
    assert_eq!(unchanged("server.listen = [\"[::1]:1\"]"), "server.listen");
    assert_eq!(unchanged("log.level = \"warn\"\nadmin.listen = \"\""), "admin log");
    assert_eq!(unchanged("origin = { kind = \"http\", upstreams = [\"http://a\"] }"), "origin.kind");
    let recorded = "log.decisions = \"d.log\"";
    assert_eq!(reloaded("", recorded, true), (config(recorded), "log".to_owned(), String::new()));
    let next =
        "limits.shadow = true\nserver.listen = [\"[::1]:1\"]\n[server.tls]\ncertificate = \"a\"\nprivate_key = \"b\"";
    let (after, changed, after_restart) = reloaded("", next, true);
    assert_eq!((&*changed, &*after_restart), ("limits", "server.listen server.tls"));
    assert_eq!(after, config("limits.shadow = true"));
}

#[test]
fn gateway_toml_names_all_that_takes_effect_after_a_restart() {
    let kept = include_str!("../reload.rs").split("keep(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let kept: BTreeSet<_> =
        kept.map(|name| if name.contains('.') { name.to_owned() } else { format!("[{name}]") }).collect();
    let (_, list) = include_str!("../../../gateway.toml").split_once("take effect after a restart").unwrap();
    let words = list.split("\n\n").next().unwrap().split_whitespace().map(|word| word.trim_matches([',', '.']));
    let named = words.filter(|word| word.starts_with('[') || word.contains('.')).map(str::to_owned).collect();
    assert_eq!(kept, named);
}

#[test]
fn another_source_of_keys_needs_a_restart_and_another_key_file_does_not() {
    let http = |keys: &str| format!("origin = {{ kind = \"http\", upstreams = [\"http://a\"] }}\nkeys = {{ {keys} }}");
    let file = |name: &str| http(&format!("source = \"file\", file = \"{name}\""));
    let [store, origin] = ["source = \"store\"", "source = \"origin\""].map(http);
    for (before, next, follows) in [
        (&store, &file("k"), false),
        (&file("k"), &store, false),
        (&file("k"), &origin, false),
        (&origin, &file("k"), false),
        (&file("k"), &file("l"), true),
    ] {
        let (before, next) = (config(before), config(next));
        let Reloaded { config: after, after_restart, .. } = before.reloaded(next.clone(), true);
        assert_eq!(after.keys, if follows { next.keys } else { before.keys });
        assert_eq!(after_restart.is_empty(), follows, "{after_restart:?}");
    }
}

#[test]
fn a_first_limit_by_the_day_needs_a_restart_where_no_store_is_open() {
    let before = config("keys = { source = \"file\", file = \"k\" }");
    let next = config("keys = { source = \"file\", file = \"k\" }\nlimits.tiers.standard.daily = 5\n");
    let Reloaded { config: after, after_restart, .. } = before.reloaded(next, false);
    assert_eq!(after_restart, ["limits"]);
    assert_eq!(after.limits, before.limits);
}
