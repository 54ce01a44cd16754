//! Contract section 2: `key`. What it lists, makes and refuses is tested beside the command.

use std::os::unix::fs::PermissionsExt;

use crate::support::*;

/// A key is alone on stdout, and one that is typed where an id belongs is not shown.
fn a_key_is_shown_once(world: &World) {
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
async fn a_key_is_shown_once_its_last_use_is_listed_and_the_stores_files_are_for_their_owner_only() {
    let gate = TestGateway::builder().key("bot").start().await;
    a_key_is_shown_once(gate.world());
    gate.set_points("bot", "7", 1).await;
    let told = async || gate.run(&["key", "list", "--json"]).done().list().iter().any(|key| key["last_used"].is_i64());
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
