//! Contract section 3, the last paragraph, and guarantee 7: a reload of `gateway.toml` that waits for the name of an
//! upstream puts in force what the file holds after that, however often it changes meanwhile, and holds up no other file.

use tempfile::TempDir;

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

/// A gateway with TLS and two keys that waits for a name: `gateway.toml` now names its upstream by one, and another key file
/// with the same content.
async fn waiting_for_a_name(tools: &TempDir) -> (TestGateway, Connection) {
    let launcher = Vec::from(["env", preload(tools.path(), SLOW_NAMES)]).leak();
    let gate = two_keys().tls().launched_by(launcher).start().await;
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    kept.ask(&gate.request("getPoints", "goes", "memberID=7")).await.is("3");
    let world = gate.world();
    world.write("stalled", "");
    world.write("other.toml", world.read("keys.toml"));
    let slow = world.edited("gateway.toml", "http://127.0.0.1", "http://localhost");
    let slow = slow.replace("keys.toml", "other.toml").replace("/old", "/first");
    world.write("gateway.toml", slow);
    eventually(PATIENCE, "the name is looked up", async || world.path("asked").exists()).await;
    kept.ask(&no_key()).await.is_refused(401, &told("/old"));
    (gate, kept)
}

/// Has `gateway.toml` name another command, whose reload waits for the name again.
async fn waits_again(gate: &TestGateway, from: &str, to: &str) {
    let world = gate.world();
    std::fs::remove_file(world.path("asked")).unwrap();
    world.write("stalled", "");
    world.edit("gateway.toml", from, to);
    eventually(PATIENCE, "the name is looked up", async || world.path("asked").exists()).await;
}

/// What a request without a key is told.
fn told(command: &str) -> String {
    format!("01 | No api key provided! Create it using: {command}")
}

fn end_wait(gate: &TestGateway) {
    std::fs::remove_file(gate.world().path("stalled")).unwrap();
}

#[tokio::test]
async fn guarantee_7_nothing_that_was_replaced_while_the_reload_waits_comes_into_force() {
    let tools = tempfile::tempdir().unwrap();
    let (gate, mut kept) = waiting_for_a_name(&tools).await;
    let request = gate.request("getPoints", "goes", "memberID=7");
    gate.world().remove_key("goes");
    gate.world().write("other.toml", gate.world().read("keys.toml"));
    let is_refused = async || kept.ask(&request).await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "the key that was taken out is refused", is_refused).await;
    end_wait(&gate);
    let is_reloaded = async || {
        kept.ask(&request).await.is_refused(401, INCORRECT_KEY);
        gate.stderr().contains("configuration reloaded")
    };
    eventually(PATIENCE, "it is reloaded", is_reloaded).await;
    kept.ask(&request).await.is_refused(401, INCORRECT_KEY);
    kept.ask(&no_key()).await.is_refused(401, &told("/first"));
    kept.ask(&gate.request("getPoints", "stays", "memberID=7")).await.is("3");
    // A gateway.toml that was replaced while its reload waits is not put in force.
    waits_again(&gate, "/first", "/never").await;
    gate.world().edit("gateway.toml", "/never", "/second");
    end_wait(&gate);
    let is_second = async || {
        let answer = kept.ask(&no_key()).await;
        assert!([told("/first"), told("/second")].contains(&answer.body), "{answer:?}");
        answer.body == told("/second")
    };
    eventually(PATIENCE, "the last gateway.toml is in force", is_second).await;
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
    // Nor is one that was emptied, before it is written.
    waits_again(&gate, "/second", "/third").await;
    let before = gate.world().read("gateway.toml");
    gate.world().write("gateway.toml", "");
    end_wait(&gate);
    gate.has_said("gateway.toml is empty; write it, or send SIGHUP to read it").await;
    kept.ask(&no_key()).await.is_refused(401, &told("/second"));
    gate.world().write("gateway.toml", before);
    let is_third = async || kept.ask(&no_key()).await.body == told("/third");
    eventually(PATIENCE, "it is in force once it is written", is_third).await;
}

#[tokio::test]
async fn a_reload_whose_name_is_never_resolved_comes_into_force_though_the_file_changes_meanwhile() {
    let tools = tempfile::tempdir().unwrap();
    let (gate, mut kept) = waiting_for_a_name(&tools).await;
    gate.world().write("gateway.toml", [gate.world().read("gateway.toml"), b"\n# changed\n".to_vec()].concat());
    gate.has_said("configuration reloaded").await;
    kept.ask(&no_key()).await.is_refused(401, &told("/first"));
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
    end_wait(&gate);
}
