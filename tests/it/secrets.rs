//! Contract section 3: a secret is the same text wherever it comes from: without what editors and commands add to it
//! unseen, and refused where more cannot be seen.

use std::process::Command;

use crate::support::*;

const LISTEN: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n";

/// A secret that is part of none of these tests' messages.
const SECRET: &str = "hunter2-hunter2-hunter2";

/// What is added unseen, and what a secret may not have.
const ADDED: [(&str, &str); 4] = [("", "\n"), ("", "\r\n"), ("\u{feff}", ""), ("\u{feff}", "\r\n")];
const REFUSED: [(&str, &str, &str); 8] = [
    (" ", "", "blanks"),
    ("", " ", "blanks"),
    ("", "\u{a0}", "blanks"),
    ("", "\u{200b}\n", "blanks"),
    ("\u{feff}\u{feff}", "", "blanks"),
    ("", "\t", "control"),
    ("", "\n\n", "control"),
    ("\u{1b}[A", "", "control"),
];

/// A text as TOML writes it, which is as JSON does.
fn toml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A command of this world, with `SECRET` in the environment.
fn command(world: &World, args: &[&str], secret: &str) -> Command {
    let mut command = world.command(args);
    command.arg("--config").arg(world.path("gateway.toml")).env("SECRET", secret);
    command
}

#[tokio::test]
async fn a_token_with_a_line_end_is_the_one_without_it() {
    let [admin, read, bot] = ["admin", "read", "bot"].map(|role| format!("{SECRET}-{role}"));
    for (before, after) in ADDED {
        let added = |token: &str| format!("{before}{token}{after}");
        let world = World::new(&format!(
            "{LISTEN}[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"env:SECRET\"\nread_token = \"file:read.txt\"\n\
             bot_token = {}\n",
            toml(&added(&bot))
        ));
        world.write("read.txt", added(&read));
        let mut process = Process::start(&mut command(&world, &["serve"], &added(&admin)));
        process.ready().await;
        process.has_said("admin listener ready").await;
        let said = process.stderr();
        let address = said.split("url=\"http://").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        for (token, status) in [(&admin, 200), (&read, 200), (&bot, 403)] {
            AdminClient { address, token: token.clone() }.get("/api/config").await.is(status);
        }
    }
}

#[test]
fn a_secret_with_what_cannot_be_seen_is_refused_by_its_setting_and_place_and_a_key_on_stdin_is_hashed_as_sent() {
    for setting in ["origin.store", "cluster.redis", "admin.token", "admin.read_token", "admin.bot_token"] {
        let (section, name) = setting.split_once('.').unwrap();
        // Each text from one of the three sources in turn.
        for (n, (before, after, words)) in REFUSED.into_iter().enumerate() {
            let secret = format!("{before}{SECRET}{after}");
            let written = toml(&secret);
            let sources = [
                ("\"env:SECRET\"", "environment variable `SECRET`"),
                ("\"file:secret.txt\"", "secret.txt"),
                (&*written, "its value"),
            ];
            let (source, place) = sources[n % 3];
            let world = World::new(&format!("[{section}]\n{name} = {source}\n"));
            world.write("secret.txt", &secret);
            let ran = Ran::of(&mut command(&world, &["check"], &secret), "");
            assert_eq!(ran.code, Some(2), "{setting} = {source}: {ran:#?}");
            let ran = ran.names(&["gateway.toml:2:", setting, place, words]);
            assert!(!ran.stderr.contains(SECRET), "{ran:#?}");
        }
    }
    // A key on standard input is held to the same.
    let world = World::plain();
    let hash = |input: &str| world.run_with_input(&["key", "hash"], input);
    let digest = hash(SECRET).done().stdout;
    for (before, after) in ADDED {
        assert_eq!(hash(&format!("{before}{SECRET}{after}")).done().stdout, digest, "{before:?} {after:?}");
    }
    for (before, after, words) in REFUSED {
        let ran = hash(&format!("{before}{SECRET}{after}")).failed(1).names(&["stdin", words]);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains(SECRET), "{ran:#?}");
    }
}
