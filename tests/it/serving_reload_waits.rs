//! Contract section 3, the last paragraph, and guarantee 7: a reload of `gateway.toml` that waits for the name of an
//! upstream puts in force what the file holds after that, however often it changes meanwhile, and holds up no other file.

use crate::serving_reload_parts::{no_key, two_keys};
use crate::support::*;

/// Has a look-up of `localhost` wait while there is a file `stalled`; then there is a file `asked`.
const SLOW_NAMES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
int getaddrinfo(const char *name, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && !strcmp(name, "localhost") && !access("stalled", F_OK)) {
        close(creat("asked", 0600));
        while (!access("stalled", F_OK)) usleep(10000);
    }
    return next(name, port, hints, found);
}
"#;

/// The commands of a round: in force before, and in a `gateway.toml` that waits for the name of its upstream.
struct Round {
    old: String,
    first: String,
}

/// Has the server of `original` wait for a name: `gateway.toml` now names its upstream by one, and another key file with the
/// same content.
async fn wait_for_a_name(gate: &TestGateway, kept: &mut Connection, original: &str, name: &str) -> Round {
    let (world, round) = (gate.world(), Round { old: format!("/old {name}"), first: format!("/first {name}") });
    let original = original.replace("/old", &round.old);
    world.write("gateway.toml", &original);
    eventually(PATIENCE, name, async || kept.ask(&no_key()).await.body.ends_with(&round.old)).await;
    let _ = std::fs::remove_file(world.path("asked")); // of the round before
    world.write("stalled", "");
    world.write("other.toml", world.read("keys.toml"));
    let slow = original.replace("http://127.0.0.1", "http://localhost").replace("keys.toml", "other.toml");
    world.write("gateway.toml", slow.replace(&round.old, &round.first));
    eventually(PATIENCE, "the name is looked up", async || world.path("asked").exists()).await;
    assert!(kept.ask(&no_key()).await.body.ends_with(&round.old), "{name}");
    round
}

fn end_wait(gate: &TestGateway) {
    std::fs::remove_file(gate.world().path("stalled")).unwrap();
}

#[tokio::test]
async fn guarantee_7_while_a_reload_waits_for_a_name_the_last_files_count_and_it_ends_though_the_name_is_never_resolved()
 {
    let tools = tempfile::tempdir().unwrap();
    let launcher = Vec::from(["env", preload(tools.path(), SLOW_NAMES)]).leak();
    let gate = two_keys().tls().launched_by(launcher).start().await;
    let original = gate.world().text("gateway.toml");
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    let request = gate.request("getPoints", "goes", "memberID=7");
    kept.ask(&request).await.is("3");

    let round = wait_for_a_name(&gate, &mut kept, &original, "gateway.toml is replaced").await;
    let second = format!("{}, the second", round.first);
    gate.world().edit("gateway.toml", &round.first, &second);
    end_wait(&gate);
    let is_second = async || {
        let answer = kept.ask(&no_key()).await;
        let is_second = answer.body.ends_with(&second);
        assert!(is_second || answer.body.ends_with(&round.old), "{answer:?}");
        is_second
    };
    eventually(PATIENCE, "the last gateway.toml is in force", is_second).await;

    let round = wait_for_a_name(&gate, &mut kept, &original, "the name is never resolved").await;
    gate.world().write("gateway.toml", [gate.world().read("gateway.toml"), b"\n# changed\n".to_vec()].concat());
    let is_first = async || kept.ask(&no_key()).await.body.ends_with(&round.first);
    eventually(PATIENCE, "it is in force all the same", is_first).await;
    end_wait(&gate);

    let round = wait_for_a_name(&gate, &mut kept, &original, "a key is taken out").await;
    gate.world().remove_key("goes");
    gate.world().write("other.toml", gate.world().read("keys.toml"));
    let is_refused = async || kept.ask(&request).await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "the key that was taken out is refused", is_refused).await;
    end_wait(&gate);
    let is_reloaded = async || {
        kept.ask(&request).await.is_refused(401, INCORRECT_KEY);
        kept.ask(&no_key()).await.body.ends_with(&round.first)
    };
    eventually(PATIENCE, "it is reloaded", is_reloaded).await;
    kept.ask(&request).await.is_refused(401, INCORRECT_KEY);
    // On a busy machine the reload may have ended before the name was resolved.
    let stays = gate.request("getPoints", "stays", "memberID=7");
    eventually(PATIENCE, "the other key is answered", async || kept.ask(&stays).await.body == "3").await;
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
}
