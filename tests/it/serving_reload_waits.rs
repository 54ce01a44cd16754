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
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
    (gate, kept)
}

fn end_wait(gate: &TestGateway) {
    std::fs::remove_file(gate.world().path("stalled")).unwrap();
}

#[tokio::test]
async fn guarantee_7_a_key_that_was_taken_out_while_the_reload_waits_does_not_come_back() {
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
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /first");
    kept.ask(&gate.request("getPoints", "stays", "memberID=7")).await.is("3");
}

#[tokio::test]
async fn a_gateway_toml_that_was_replaced_while_its_reload_waits_is_not_put_in_force() {
    let tools = tempfile::tempdir().unwrap();
    let (gate, mut kept) = waiting_for_a_name(&tools).await;
    gate.world().edit("gateway.toml", "/first", "/second");
    end_wait(&gate);
    let is_second = async || {
        let answer = kept.ask(&no_key()).await;
        let is_second = answer.body.ends_with("/second");
        assert!(is_second || answer.body.ends_with("/old"), "{answer:?}");
        is_second
    };
    eventually(PATIENCE, "the last gateway.toml is in force", is_second).await;
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
}

#[tokio::test]
async fn a_reload_whose_name_is_never_resolved_comes_into_force_though_the_file_changes_meanwhile() {
    let tools = tempfile::tempdir().unwrap();
    let (gate, mut kept) = waiting_for_a_name(&tools).await;
    gate.world().write("gateway.toml", [gate.world().read("gateway.toml"), b"\n# changed\n".to_vec()].concat());
    gate.has_said("configuration reloaded").await;
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /first");
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
    end_wait(&gate);
}
