//! `guildgate health`: asks the running server for its health path.

use nix::sys::signal::Signal;

use crate::support::*;

/// Asks the server that listens so.
fn health(world: &World, server: &str) -> Ran {
    world.write("health.toml", format!("[server]\n{server}\n"));
    Ran::of(&mut world.command(&["health", "--config", "health.toml"]), "")
}

#[tokio::test]
async fn a_server_is_healthy_until_it_drains_or_ends() {
    let gate = TestGateway::builder().set("server.drain_delay", r#""60s""#).set("server.health_path", r#""/up""#);
    let mut gate = gate.set("server.listen", r#"["127.0.0.1:0", "unix:gg.sock"]"#).start().await;
    let tcp = format!("health_path = \"/up\"\nlisten = [\"{}\"]", gate.address());
    for listen in [&*tcp, "health_path = \"/up\"\nlisten = [\"unix:gg.sock\"]"] {
        let ran = health(gate.world(), listen).done();
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{listen}");
    }
    health(gate.world(), &tcp.replace("up", "elsewhere")).failed(1).names(&["HTTP/1.1 404"]);
    gate.process().signal(Signal::SIGTERM);
    eventually(PATIENCE, "it drains", || async { health(gate.world(), &tcp).code != Some(0) }).await;
    health(gate.world(), &tcp).failed(1).names(&["HTTP/1.1 503", ": draining"]);
    gate.process().kill_hard();
    health(gate.world(), &tcp).failed(1).names(&["the server cannot be asked: ", "refused", "does it run?"]);
    health(gate.world(), "health_path = \"\"").failed(1).names(&["server.health_path is \"\""]);
    health(gate.world(), "lisen = 7").failed(1).names(&["lisen"]);
    // A server with TLS is asked whatever its certificate names.
    let gate = TestGateway::builder().tls().start().await;
    let server = format!("tls = {{ certificate = \"x\", private_key = \"y\" }}\nlisten = [\"{}\"]", gate.address());
    health(gate.world(), &server).done();
}
