//! Contract section 3, `keys.source = "file"`: read whole or not at all, and watched.

use std::fmt::Write as _;

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::support::*;

const CONFIG: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[keys]\nsource = \"file\"\n\
                      file = \"keys.toml\"\n";

fn entry(id: &str, secret: &str, rest: &str) -> String {
    let digest: String = Sha256::digest(secret).iter().map(|b| format!("{b:02x}")).collect();
    format!("[[key]]\nid = {id:?}\ndigest = \"sha256:{digest}\"\nguild = {GUILD:?}\n{rest}")
}

#[tokio::test]
async fn a_bad_or_missing_key_file_ends_check_and_serve_with_every_fault_by_its_place() {
    let world = World::new(CONFIG);
    let two = entry("a", "one", "tear = \"x\"\n") + &entry("a", "two", "expires = \"90d\"\nscope = \"reed\"\n");
    world.write("keys.toml", two);
    let checked = world.run(&["check"]).failed(2);
    for named in ["5:1: ", "did you mean `tier`?", "7:6: ", "line 2", "10:11: ", "11:9: ", "did you mean `read`?"] {
        assert!(checked.stderr.contains(named), "{named} is not named:\n{}", checked.stderr);
    }
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    let told = World::new(CONFIG).run(&["check"]).failed(2).stderr;
    assert!(told.contains("gateway.toml:7:8: keys.file: ") && told.contains("keys.toml cannot be read"), "{told}");
    let says = "keys.toml: the key file holds no key, so every request is refused";
    world.write("keys.toml", "# none for now\n");
    assert!(world.run(&["check"]).done().stdout.contains(says));
    let mut process = world.serve(&[]);
    process.ready().await;
    let said = process.stderr();
    assert!(said.lines().any(|line| line.contains(" WARN ") && line.contains(says)), "{said}");
}

#[tokio::test]
async fn a_key_file_is_taken_up_while_running_whatever_it_becomes_and_a_bad_one_is_reported() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).start().await;
    let good = gate.world().read("keys.toml");
    let twice = [good.clone(), good.clone()].concat();
    gate.world().write("keys.toml", twice);
    gate.has_said("is already on line 2").await;
    gate.get_points("bot", "7").await.is("3");
    gate.world()
        .write("keys.toml", format!("{}{}", String::from_utf8(good.clone()).unwrap(), entry("new", "new-secret", "")));
    let request = Request::post("/getPoints", "memberID=7").key("new-secret");
    eventually(SECOND_AND_SLACK, "the new key is known", || async { gate.send(&request).await.status == 200 }).await;
    gate.world().write("keys.toml", "# none for now\n");
    gate.has_said("the key file holds no key").await;
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
    let mut gate = gate;
    gate.world().write("keys.toml", &good);
    let mut many = gate.world().text("keys.toml");
    for n in 0..20_000 {
        let _ = write!(many, "{}", entry(&format!("k{n}"), &format!("secret-{n}"), ""));
    }
    gate.world().write("keys.toml", &many);
    gate.process().signal(Signal::SIGHUP);
    let last = Request::post("/getPoints", "memberID=7").key("secret-19999");
    eventually(PATIENCE, "the last key is known", || async { gate.send(&last).await.status == 200 }).await;
    gate.get_points("bot", "7").await.is("3");
    // A file behind a link is followed when the link moves.
    gate.world().write("keys.toml", &good);
    let path = gate.world().path("keys.toml");
    // As a mounted ConfigMap does it: the file is a link into a folder that is itself a link.
    for (folder, content) in [("..1", gate.world().read("keys.toml")), ("..2", entry("b", "b-secret", "").into_bytes())]
    {
        std::fs::create_dir(gate.world().path(folder)).unwrap();
        gate.world().write(&format!("{folder}/keys.toml"), content);
        let config = gate.world().text("gateway.toml") + &format!("[answers]\nkey_command = \"/in/{folder}\"\n");
        gate.world().write(&format!("{folder}/gateway.toml"), config);
    }
    let link = |target: &str, name: &str| {
        let made = gate.world().path("new-link");
        std::os::unix::fs::symlink(target, &made).unwrap();
        std::fs::rename(made, gate.world().path(name)).unwrap();
    };
    link("..1", "..data");
    std::fs::remove_file(path).unwrap();
    link("..data/keys.toml", "keys.toml");
    link("..data/gateway.toml", "gateway.toml");
    let no_key = Request::bare("POST", "/getPoints");
    let command = async |folder: &str| gate.send(&no_key).await.body.ends_with(&format!("/in/{folder}"));
    eventually(PATIENCE, "the linked gateway.toml is in force", async || command("..1").await).await;
    gate.get_points("bot", "7").await.is("3");
    link("..2", "..data");
    let request = Request::post("/getPoints", "memberID=7").key("b-secret");
    eventually(SECOND_AND_SLACK, "the other file's key is known", || async { gate.send(&request).await.status == 200 })
        .await;
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
    eventually(PATIENCE, "the other gateway.toml is in force", async || command("..2").await).await;
}

#[tokio::test]
async fn files_that_cannot_be_opened_for_a_while_are_read_once_they_can_be() {
    let gate =
        TestGateway::before_http().key("bot").key("gone").points("7", 3).set("limits.tiers.standard.burst", "1000");
    let gate = gate.start().await;
    let process = Pid::from_raw(gate.process_id().cast_signed());
    let limit = |limit| prlimit(process, Resource::Nofile, limit).unwrap();
    let before = limit(Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) });
    let file = gate.world().text("keys.toml");
    gate.world().write("keys.toml", &file[..file.find("[[key]]\nid = \"gone\"").unwrap()]);
    gate.world().edit("gateway.toml", "burst = 1000", "burst = 500");
    for what in ["key file rejected", "reload rejected"] {
        gate.has_said(what).await;
    }
    assert!(gate.stderr().contains("Too many open files"), "{}", gate.stderr());
    limit(before);
    let refused = || async { gate.get_points("gone", "7").await.body == INCORRECT_KEY };
    eventually(SECOND_AND_SLACK, "the removed key is refused", refused).await;
    gate.has_said("configuration reloaded").await;
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_7_callers_with_more_connections_than_files_may_be_open_keep_no_key_file_from_being_read() {
    let gate = TestGateway::before_http().key("bot").key("gone").points("7", 3);
    let gate = gate.launched_by(&["prlimit", "--nofile=300:300"]).start().await;
    let mut kept = gate.connect().await;
    kept.ask(&gate.request("getPoints", "gone", "memberID=7")).await.is("3");
    let mut callers = Vec::new();
    for _ in 0..400 {
        callers.push(tokio::net::TcpStream::connect(gate.address()).await.unwrap());
    }
    // The last one is closed, once those before it have their connections.
    let closed = timeout(PATIENCE, callers.last_mut().unwrap().read(&mut [0])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
    gate.world().remove_key("gone");
    let request = gate.request("getPoints", "gone", "memberID=7");
    let is_refused = async || kept.ask(&request).await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "the removed key is refused", is_refused).await;
}
