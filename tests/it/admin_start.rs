//! Contract sections 3 and 4: where the admin listener listens, and under which token.

use std::os::unix::fs::PermissionsExt;

use crate::support::*;

pub async fn the_token_is_made_once_for_its_owner_only_and_its_thread_has_a_lower_priority(gate: &mut TestGateway) {
    let admin = gate.admin().await;
    let path = gate.world().path("admin.token");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(admin.token.len(), 43);
    assert!(admin.token.bytes().all(|b| b.is_ascii_alphanumeric()));
    let said = gate.stderr();
    assert!(said.contains("admin.token") && !said.contains(&admin.token), "{said}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    gate.restart().await;
    let again = gate.admin().await;
    assert_eq!(again.token, admin.token);
    again.get("/api/status").await.is(200);
    gate.has_said("every user of this machine may read").await;
    let checked = gate.run(&["check"]).done().stdout;
    assert!(checked.contains("admin.token: every user of this machine may read"), "{checked}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let checked = gate.run(&["check"]).done().stdout;
    assert!(!checked.contains("every user of this machine"), "{checked}");
    // What writes to the store has the priority of the others.
    again.get("/api/guilds").await.is(200);
    let threads = gate.process().nice();
    let nice_of = |name: &str| threads.iter().filter(|(of, _)| of == name).map(|(_, nice)| *nice).collect::<Vec<_>>();
    assert_eq!(nice_of("admin"), [10]);
    assert_eq!(nice_of("store-writer"), nice_of("guildgate")[..1]);
}

#[tokio::test]
async fn beyond_loopback_it_speaks_tls() {
    let gate = TestGateway::builder()
        .tls()
        .set("admin.listen", r#""0.0.0.0:0""#)
        .set("admin.tls", r#"{ certificate = "cert.pem", private_key = "key.pem" }"#)
        .start()
        .await;
    let admin = gate.admin().await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], admin.address.port()));
    let stream = gate.tls_client(&["http/1.1"]).connect(address).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let form = format!("token={}", admin.token);
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: https://localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut writer, request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut answer).await.unwrap();
    assert!(answer.contains("; HttpOnly; SameSite=Strict; Secure\r\n"), "{answer}");
    gate.has_said("url=\"https://0.0.0.0:").await;
}
