//! docs/operating.md: its log lines are those of the source.

use std::fs;
use std::path::Path;

#[test]
fn every_line_in_the_table_of_log_lines_is_one_that_the_source_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/operating.md")).unwrap();
    let (_, table) = page.split_once("\n## Troubleshooting by log line\n").unwrap();
    let rows = table.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    // Double backticks hold a line that has single ones.
    let lines: Vec<String> = rows
        .flat_map(|row| {
            let cell = row[1..].split(" | ").next().unwrap().trim();
            match cell.strip_prefix("``").and_then(|cell| cell.strip_suffix("``")) {
                Some(line) => vec![line.to_owned()],
                None => cell.split("`, `").map(|line| line.trim_matches('`').to_owned()).collect(),
            }
        })
        .collect();
    assert!(lines.len() > 50, "only {} were found", lines.len());
    let mut source = String::new();
    read_all(&root.join("src"), &mut source);
    for line in lines {
        assert!(source.contains(&line), "no source file has: {line}");
    }
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
