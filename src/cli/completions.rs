//! `guildgate completions`: the scripts by which shells complete a command line. clap_complete writes them; its engine
//! that asks the command itself is unstable (`unstable-dynamic`). So the tiers and key ids are marks at first, and a call
//! of `guildgate complete-values KIND WORDS…` takes their place. It is no subcommand, because the scripts would offer it.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;

use super::runtime;
use crate::config::{self, Keys};
use crate::keys::read_key_file;
use crate::store::{IfMissing, Store, StoreState};

/// The first argument of the scripts' own calls.
const COMPLETE_VALUES: &str = "complete-values";

/// How long a shell waits for values at a key press.
const PATIENCE: Duration = Duration::from_secs(1);

/// The subcommands whose positional argument is the id of a key.
const TAKE_KEY_ID: [(&str, &[&str]); 2] = [("key", &["show", "rotate", "set", "revoke"]), ("limits", &["reset"])];

/// The script for a shell.
pub(super) fn script(shell: Shell, command: Command) -> String {
    let mut command = with_marks(command);
    for (group, subcommands) in TAKE_KEY_ID {
        command = command.mut_subcommand(group, |group| {
            subcommands.iter().fold(group, |group, name| {
                group.mut_subcommand(*name, |command| command.mut_arg("id", |id| one_of(id, ["@keys@"])))
            })
        });
    }
    let mut script = Vec::new(); // the generator panics if its output cannot be written
    clap_complete::generate(shell, &mut command, "guildgate", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    for kind in ["tiers", "keys"] {
        let call = |words: &str| format!("(guildgate {COMPLETE_VALUES} {kind} {words} 2>/dev/null)");
        let (mark, values) = match shell {
            Shell::Bash => (format!("@{kind}@"), format!("${}", call("\"${COMP_WORDS[@]}\""))),
            Shell::Zsh => (format!("(@{kind}@)"), format!("{{compadd -- ${}}}", call("${(Q)${(z)BUFFER}}"))),
            Shell::Fish => (format!("@{kind}@\\t''"), call("(commandline -opc)")),
            _ => continue, // values are not completed there
        };
        script = script.replace(&mark, &values);
        if shell == Shell::Fish && kind == "keys" {
            // clap_complete's scripts for fish have no positional arguments.
            for (group, subcommands) in TAKE_KEY_ID {
                let subcommands = subcommands.join(" ");
                script += &format!(
                    "complete -c guildgate -n \"__fish_guildgate_using_subcommand {group}; \
                     and __fish_seen_subcommand_from {subcommands}\" -f -a \"{values}\"\n"
                );
            }
        }
    }
    script
}

/// The command with its scopes, and with marks where its tiers are to be.
fn with_marks(command: Command) -> Command {
    let mark = |arg: Arg| match arg.get_id().as_str() {
        "scope" => one_of(arg, ["read", "write"]),
        "tier" => one_of(arg, ["@tiers@"]),
        _ => arg,
    };
    command.mut_args(mark).mut_subcommands(with_marks)
}

fn one_of<const N: usize>(arg: Arg, values: [&'static str; N]) -> Arg {
    arg.value_parser(PossibleValuesParser::new(values))
}

/// If these are the arguments of a script's call, prints the values, a line each. Where they cannot be had in time,
/// nothing is printed, because it would appear amid the line that is being typed.
pub(super) fn answer_script(args: &[OsString], out: &mut dyn Write) -> bool {
    let args: Vec<String> = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [COMPLETE_VALUES, kind, words @ ..] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return false;
    };
    let (kind, config) = ((*kind).to_owned(), config_among(words));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(values(&kind, config)));
    for value in receiver.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default() {
        // Bash expands each word, so one with other characters could be a command.
        if value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b))
            && writeln!(out, "{value}").is_err()
        {
            break;
        }
    }
    true
}

/// The configuration that a command line names, by `--config FILE`, `--config=FILE`, or, as bash splits it,
/// `--config = FILE`; or else the environment.
fn config_among(words: &[&str]) -> Option<PathBuf> {
    let mut words = words.iter().skip_while(|word| **word != "--config" && !word.starts_with("--config="));
    let named = words.next().and_then(|word| match word.strip_prefix("--config=") {
        Some(path) => Some(path.to_owned()),
        None => words.find(|word| **word != "=").map(|path| (*path).to_owned()),
    });
    named
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("GUILDGATE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// The values of a kind. The store is neither made nor brought up to date.
fn values(kind: &str, config: Option<PathBuf>) -> Option<Vec<String>> {
    let config = config::load(config.as_deref()).ok()?.config;
    match (kind, &config.keys) {
        ("tiers", _) => Some(config.limits.tiers.iter().map(|tier| tier.name.to_string()).collect()),
        ("keys", Keys::File(path)) => Some(read_key_file(path).ok()?.iter().map(|key| key.id.to_string()).collect()),
        ("keys", Keys::Store | Keys::Origin { .. }) => runtime().ok()?.block_on(async {
            let at = &config.origin.store;
            if Store::state(at).await.ok()? != StoreState::Current {
                return None;
            }
            let keys = Store::open(at, IfMissing::Refuse).await.ok()?.keys().await.ok()?;
            Some(keys.iter().map(|key| key.id.to_string()).collect())
        }),
        _ => None,
    }
}
