//! Contract section 2: `key`. What it lists, makes and refuses is tested beside the command.

use std::os::unix::fs::PermissionsExt;

use crate::support::*;

#[test]
fn a_key_is_alone_on_stdout_and_one_typed_where_an_id_belongs_is_not_shown() {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    let created = world.run(&["key", "create", "--guild", GUILD, "--name", "a"]).done();
    let secret = created.stdout.trim_end_matches('\n');
    assert!(secret.len() == 52 && secret.starts_with("gg_"), "{created:?}");
    for args in [
        vec!["key", "show", secret],
        vec!["key", "revoke", secret],
        vec!["key", "rotate", secret],
        vec!["key", "set", secret, "--name", "b"],
        vec!["key", "create", "--guild", secret],
        vec!["key", "create", "--guild", GUILD, "--tier", secret],
        vec!["key", "create", "--guild", GUILD, "--scope", secret],
        vec!["guild", "leave", secret],
        vec![secret],
    ] {
        let ran = world.run(&args).refused();
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(&secret[3..]), "{ran:?}");
        assert!(ran.stderr.contains("gg_…"), "{args:?}: {ran:?}");
    }
    // Stdin is read where a key is asked for.
    let hash = world.run_with_input(&["key", "hash"], &created.stdout).done();
    assert_eq!(hash.stdout.trim_end(), digest(secret));
    let found = world.run_with_input(&["key", "find"], &created.stdout).done();
    assert!(found.stdout.contains(GUILD), "{found:?}");
    world.run_with_input(&["key", "find"], "another").failed(1).names(&["no key has this secret"]);
}

#[tokio::test]
async fn the_list_tells_when_a_key_was_last_used_and_the_stores_files_are_for_their_owner_only() {
    let gate = TestGateway::builder().key("bot").start().await;
    gate.set_points("bot", "7", 1).await;
    let told = || async { !gate.run(&["key", "list", "--json"]).done().list()[0]["last_used"].is_null() };
    eventually(PATIENCE, "last_used is told", told).await;
    let text = gate.run(&["key", "list"]).done().stdout;
    assert!(text.contains("never") && text.contains("Z  bot"), "{text}");
    let mut checked = 0;
    for (path, _) in gate.world().files() {
        if path.file_name().unwrap().to_string_lossy().starts_with("guildgate.db") {
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 0);
}
