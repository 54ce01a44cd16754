//! docs/operating.md: its log lines are those of the source, and each alert rule leads to a part of its runbook.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// What stands below a heading of the page.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let (_, text) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    text.split("\n## ").next().unwrap()
}

#[test]
fn every_log_line_that_the_page_quotes_is_one_that_the_source_has() {
    let page = read("docs/operating.md");
    let entries = section(&page, "Runbook").split("\n- **Log**: ").skip(1);
    let entries = entries.map(|entry| entry.split("\n- ").next().unwrap());
    let rows = section(&page, "Troubleshooting by log line").lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row[1..].split(" | ").next().unwrap());
    let cells: Vec<&str> = entries.chain(rows).map(|cell| cell.trim().trim_end_matches(',')).collect();
    let quoted = cells.join(", ").split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<&str> = quoted.trim_matches('`').split("`, `").collect();
    assert!(lines.len() > 30, "only {} were found", lines.len());
    let mut source = String::new();
    read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut source);
    for line in lines {
        assert!(source.contains(line), "no source file has: {line}");
    }
}

#[test]
fn each_alert_leads_to_the_part_of_the_runbook_that_names_it() {
    let (page, rules) = (read("docs/operating.md"), read("monitoring/alerts.yml"));
    let parts: Vec<&str> = section(&page, "Runbook").split("\n### ").skip(1).collect();
    let rules: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    for rule in &rules {
        let name = rule.lines().next().unwrap();
        let (_, link) = rule.split_once("runbook: \"docs/operating.md#").unwrap();
        let part = parts.iter().find(|part| anchor(part.lines().next().unwrap()) == link.split('"').next().unwrap());
        assert!(part.is_some_and(|part| part.contains(&format!("`{name}`"))), "{name}");
    }
    for state in [
        "up{job=\"guildgate\"} == 0",
        "guildgate_keys_stale == 1",
        "guildgate_store_write_failing == 1",
        "guildgate_redis_up == 0",
        "guildgate_bus_cut_off == 1",
        "guildgate_limits_shadow == 1",
    ] {
        assert!(rules.iter().any(|rule| rule.contains(&format!("expr: {state}\n"))), "no rule tells of {state}");
    }
}

/// What a link to this heading says after the `#`.
fn anchor(heading: &str) -> String {
    let words = heading.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ' ' || *c == '-');
    words.collect::<String>().to_ascii_lowercase().replace(' ', "-")
}

/// The text of every file in the folder and those in it; a string that goes on after a `\` is one line.
fn read_all(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, text);
        } else if let Ok(file) = fs::read_to_string(&path) {
            let mut parts = file.split("\\\n");
            text.push_str(parts.next().unwrap_or_default());
            parts.for_each(|part| text.push_str(part.trim_start()));
        }
    }
}
