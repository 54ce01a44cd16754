//! Contract section 2: `completions`. The scripts are run by their shells, and complete tiers, scopes and key ids with
//! the values that the configuration and the store have.

use std::process::Command;

use crate::support::*;

const TIERS: &str = "[limits.tiers.standard]\nrate = \"20/s\"\n[limits.tiers.gold]\nrate = \"100/s\"\n";

#[test]
fn each_shell_completes_tiers_scopes_and_key_ids() {
    let world = World::new(TIERS);
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.run(&["key", "create", "--guild", GUILD]).done();
    let id = world.run(&["key", "list", "--json"]).done().list()[0]["id"].as_str().unwrap().to_owned();
    world.write("other.toml", "[limits.tiers.standard]\nrate = \"20/s\"\n");
    for (shell, offered) in
        [("bash", in_bash as fn(&World, &[&str]) -> Vec<String>), ("fish", in_fish), ("zsh", in_zsh)]
    {
        assert_eq!(offered(&world, &["key", "create", "--tier", ""]), ["gold", "standard"], "{shell}");
        assert_eq!(offered(&world, &["key", "create", "--scope", ""]), ["read", "write"], "{shell}");
        assert_eq!(
            offered(&world, &["--config", "other.toml", "key", "set", "a", "--tier", ""]),
            ["standard"],
            "{shell}"
        );
        for command in [["key", "show", ""], ["key", "revoke", ""], ["limits", "reset", ""]] {
            assert!(offered(&world, &command).contains(&id), "{shell}: {command:?}");
        }
        assert!(!offered(&world, &["guild", "add", ""]).contains(&id), "{shell}: the id of a guild");
    }
}

/// What a script's call prints.
fn values(world: &World, kind: &str, words: &[&str]) -> String {
    let ran = Ran::of(&mut world.command(&[&["complete-values", kind, "guildgate"], words].concat()), "").done();
    assert_eq!(ran.stderr, "");
    ran.stdout
}

#[test]
fn where_values_cannot_be_had_nothing_is_printed_or_made() {
    let world = World::new(TIERS);
    assert_eq!(values(&world, "keys", &[]), "", "there is no store");
    assert_eq!(values(&world, "tiers", &["--config=missing.toml"]), "");
    assert_eq!(values(&world, "secrets", &[]), "");
    assert_eq!(world.files().len(), 1, "something was made");
    world.write("faulty.toml", "[limits");
    assert_eq!(values(&world, "tiers", &["--config", "=", "faulty.toml"]), "");
    // A server that accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("postgres://me@{}/guilds?connect_timeout=300", silent.local_addr().unwrap());
    world.write("silent.toml", format!("[origin]\nstore = \"{store}\"\n"));
    assert_eq!(values(&world, "keys", &["--config", "silent.toml"]), "");
}

#[test]
fn ids_of_a_key_file_are_completed_but_for_those_that_a_shell_would_run() {
    let digest = format!("sha256:{}", "0".repeat(63));
    let key =
        |id: &str, end: char| format!("[[key]]\nid = \"{id}\"\nguild = \"{GUILD}\"\ndigest = \"{digest}{end}\"\n");
    let world = World::new("[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n");
    world.write("keys.toml", key("website", '1'));
    assert_eq!(values(&world, "keys", &[]), "website\n");
    world.write("keys.toml", key("website", '1') + &key("$(id)", '2'));
    assert!(!values(&world, "keys", &[]).contains('$'));
}

/// What bash offers for the last of these words.
fn in_bash(world: &World, words: &[&str]) -> Vec<String> {
    let script = world.write("guildgate.bash", world.run(&["completions", "bash"]).done().stdout);
    let driver = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _guildgate guildgate \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    offered(world, Command::new("bash").args(["-c", driver, "bash"]).arg(script).arg("guildgate").args(words))
}

/// What fish offers for the last of these words.
fn in_fish(world: &World, words: &[&str]) -> Vec<String> {
    let script = world.write("guildgate.fish", world.run(&["completions", "fish"]).done().stdout);
    let line = format!("guildgate {}", words.join(" "));
    let driver = "source $argv[1]; complete --do-complete $argv[2]";
    offered(world, Command::new("fish").args(["--no-config", "-c", driver]).arg(script).arg(line))
}

/// What zsh offers for the last of these words, typed at a terminal of its own.
fn in_zsh(world: &World, words: &[&str]) -> Vec<String> {
    world.write("_guildgate", world.run(&["completions", "zsh"]).done().stdout);
    let driver = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "fpath=($1 \$fpath); PS1=; autoload -U compinit; compinit -u -d $1/zcompdump"
# Prints what is offered between two marks.
zpty -w shell 'compadd() {
    local -a offered
    builtin compadd -O offered "$@"
    (( $#offered )) && print -r -- "<${(j: :)offered}>"
    builtin compadd "$@"
}'
zpty -w shell 'stty -echo; bindkey "^I" complete-word; print star""ted'
zpty -r shell seen '*started*'
zpty -w -n shell "guildgate $2"$'\t'
zpty -r shell seen '*>*'
print -r -- "$seen"
zpty -d shell
"#;
    let mut command = Command::new("zsh");
    command.args(["-f", "-c", driver, "zsh"]).arg(world.path("")).arg(words.join(" "));
    let seen = offered(world, &mut command).join("\n");
    let offered = seen.rsplit_once('<').and_then(|(_, rest)| rest.split_once('>')).unwrap_or_default().0;
    offered.split_whitespace().map(str::to_owned).collect()
}

fn offered(world: &World, command: &mut Command) -> Vec<String> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_guildgate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("HOME", world.path("")).env_remove("GUILDGATE_CONFIG").current_dir(world.path(""));
    let ran = Ran::of(command, "").done();
    let words = ran.stdout.lines().map(|line| line.split('\t').next().unwrap_or_default().trim().to_owned());
    let mut words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    words.sort();
    words
}
