//! docs/operating.md: the unit and its configuration work as they stand there, and its log lines are those of the source.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The text between the fences behind which this line stands.
fn block(first_line: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating.md")).unwrap();
    let (_, rest) = page.split_once(&format!("{first_line}\n")).unwrap_or_else(|| panic!("{first_line} is not there"));
    rest.split_once("```").unwrap().0.to_owned()
}

/// What a unit says of this name.
fn said<'u>(unit: &'u str, name: &str) -> &'u str {
    let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{name} is not in the unit"))
}

#[tokio::test]
async fn the_unit_serves_with_its_configuration_and_writes_nowhere_but_in_its_own_folder() {
    let (unit, config) = (block("# /etc/systemd/system/guildgate.service"), block("# /etc/guildgate/gateway.toml"));
    let world = World::plain();
    // The same folders below the world's own.
    let moved = |text: &str| {
        let below = |folder: &str| world.path(folder.trim_start_matches('/')).display().to_string();
        text.replace("/etc/guildgate", &below("/etc/guildgate"))
            .replace("/var/lib/guildgate", &below("/var/lib/guildgate"))
    };
    let (etc, var) = (world.path("etc/guildgate"), world.path("var/lib/guildgate"));
    for folder in [&etc, &var] {
        fs::create_dir_all(folder).unwrap();
    }
    world.write("etc/guildgate/gateway.toml", moved(&config).replace("127.0.0.1:8080", "127.0.0.1:0"));
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o550)).unwrap();
    let (command, folder) = (moved(said(&unit, "ExecStart")), moved(said(&unit, "WorkingDirectory")));
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[0], "/usr/local/bin/guildgate");
    assert!(said(&unit, "ExecReload").contains(said(&unit, "ExecStart")), "another server has the same configuration");

    let check: Vec<&str> = words[1..].iter().map(|word| if *word == "serve" { "check" } else { word }).collect();
    Ran::of(world.command(&check).current_dir(&folder), "").done();
    let mut process =
        Process::start(Command::new(env!("CARGO_BIN_EXE_guildgate")).args(&words[1..]).current_dir(&folder));
    process.ready().await;
    assert!(var.join("guildgate.db").exists());
    // It is made after the line `ready`.
    eventually(PATIENCE, "the hand-over's socket", || async { var.join("handover.sock").exists() }).await;
    let in_etc: Vec<_> = fs::read_dir(&etc).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(in_etc, ["gateway.toml"]);
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o750)).unwrap();
}

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
