//! The shipped `gateway.toml` and the schema: that they say what is so.

use super::*;

#[test]
fn the_shipped_file_says_the_defaults() {
    let shipped = loaded(include_str!("../../../gateway.toml")).unwrap();
    assert_eq!(shipped.config, config(""));
    assert_eq!(shipped.warnings, []);
}

#[test]
fn the_schema_on_disk_is_the_files_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gateway.schema.json");
    let on_disk = fs::read_to_string(path).unwrap_or_default();
    assert!(
        on_disk == format!("{:#}\n", schema()),
        "it is out of date; run `guildgate schema > docs/gateway.schema.json`"
    );
}

#[test]
fn every_name_of_the_shipped_file_is_in_the_schema_with_a_description() {
    let schema = schema();
    let mut described = 0;
    let mut sections = vec![&schema];
    while let Some(section) = sections.pop() {
        for (name, property) in section["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].is_string(), "{name} has no description");
            described += 1;
            sections.extend([property, &property["additionalProperties"]]);
        }
    }
    assert!(described > 60, "{described}");
}

/// The shipped file with its commented names switched on.
fn uncommented(names: &[&str]) -> String {
    let lines = include_str!("../../../gateway.toml").lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if names.iter().any(|name| setting.starts_with(&format!("{name} ="))) => setting,
        _ => line,
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn every_commented_name_is_accepted() {
    assert_eq!(faults(&uncommented(&["upstreams"])).len(), 1, "kind \"builtin\" has none");
    let accepted = [
        "host",
        "connect_timeout",
        "first_byte_timeout",
        "timeout",
        "max_in_flight",
        "queue_timeout",
        "retries",
        "health",
        "file",
        "accepted_for",
        "refused_for",
        "daily",
        "in_flight",
        "candidate",
        "node",
        "read_token",
        "bot_token",
    ];
    assert_eq!(warnings(&uncommented(&accepted)), ["keys.file", "cluster"]);
    let cluster = ["redis", "node", "prefix", "when_away", "nodes"];
    assert_eq!(warnings(&uncommented(&cluster)), Vec::<String>::new());
    assert_eq!(warnings(&uncommented(&["redis"])), ["cluster.nodes"]);
}
