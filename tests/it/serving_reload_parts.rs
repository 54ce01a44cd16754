//! Contract section 3, the last paragraph, and guarantee 7: `gateway.toml`, the key file and the TLS pair are each
//! taken up whole or not at all, each by itself, by SIGHUP and by a change of the file alike.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::*;

pub async fn reloaded(gate: &TestGateway, times: usize) {
    let count = async || gate.stderr().matches("configuration reloaded").count() == times;
    eventually(PATIENCE, "configuration reloaded", count).await;
}

pub fn no_key() -> Request {
    Request::bare("POST", "/getPoints")
}

pub async fn is_refused_soon(gate: &TestGateway, key: &str) {
    let what = "the key that was taken out is refused";
    eventually(SECOND_AND_SLACK, what, || async { gate.get_points(key, "7").await.code() == Some(2) }).await;
}

pub fn two_keys() -> Builder {
    TestGateway::before_http().key("stays").key("goes").points("7", 3).set("answers.key_command", r#""/old""#)
}

#[tokio::test]
async fn a_key_taken_out_is_refused_while_gateway_toml_has_a_fault() {
    for signalled in [false, true] {
        let mut gate = two_keys().start().await;
        gate.get_points("goes", "7").await.is("3");
        // The fault names another key file, too: it is not in force, and neither is that.
        let faulty =
            gate.world().edited("gateway.toml", "key_command", "key_comand").replace("keys.toml", "other.toml");
        gate.world().write("gateway.toml", faulty);
        if !signalled {
            gate.has_said("reload rejected; still running the previous configuration").await;
        }
        gate.world().remove_key("goes");
        if signalled {
            gate.process().signal(Signal::SIGHUP);
        }
        is_refused_soon(&gate, "goes").await;
        gate.get_points("stays", "7").await.is("3");
        gate.send(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
    }
}

#[tokio::test]
async fn a_key_taken_out_is_refused_while_the_new_certificates_key_has_not_come() {
    let gate = two_keys().tls().start().await;
    let request = |key| gate.request("getPoints", key, "memberID=7");
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    kept.ask(&request("goes")).await.is("3");
    gate.world().write("cert.pem", Identity::new().certificate);
    gate.has_said("is not the key of the certificate").await;
    gate.world().remove_key("goes");
    gate.has_said("key file reloaded").await;
    kept.ask(&request("goes")).await.is_refused(401, INCORRECT_KEY);
    kept.ask(&request("stays")).await.is("3");
}

#[tokio::test]
async fn gateway_toml_is_taken_up_despite_a_key_file_and_a_tls_pair_with_faults() {
    let mut gate = two_keys().tls().start().await;
    let request = |gate: &TestGateway, key| gate.request("getPoints", key, "memberID=7");
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    gate.world().write("key.pem", "no key");
    let keys = gate.world().text("keys.toml");
    gate.world().write("keys.toml", gate.world().keys_without("goes") + "digset = 1\n");
    gate.world().edit("gateway.toml", "/old", "/new");
    gate.process().signal(Signal::SIGHUP);
    for what in ["configuration reloaded", "TLS certificate rejected", "key file rejected"] {
        gate.has_said(what).await;
    }
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
    kept.ask(&request(&gate, "goes")).await.is("3");
    // Each is taken up when it is good again.
    gate.world().write("keys.toml", keys.replace("id = \"goes\"", "id = \"goes\"\nscope = \"read\""));
    gate.has_said("key file reloaded").await;
    let write = gate.request("setPoints", "goes", "memberID=7&amount=1");
    assert_eq!(kept.ask(&write).await.code(), Some(15));
}

#[tokio::test]
async fn a_new_certificate_is_shown_while_gateway_toml_and_the_key_file_have_faults() {
    let gate = two_keys().tls().start().await;
    gate.world().write("gateway.toml", "[sever]\n");
    gate.world().write("keys.toml", "[[key]\n");
    for what in ["reload rejected", "key file rejected"] {
        gate.has_said(what).await;
    }
    let next = Identity::new();
    gate.world().put_identity(&next);
    gate.has_said("TLS certificate reloaded").await;
    let client = TlsClient::new(&[&next.certificate], &["http/1.1"]);
    let mut connection = Connection::over(client.connect(gate.address()).await.unwrap());
    connection.ask(&gate.request("getPoints", "stays", "memberID=7")).await.is("3");
}

#[tokio::test]
async fn a_gateway_toml_that_names_files_which_cannot_be_used_is_rejected_as_a_whole_until_they_can() {
    for (from, to, good) in [("keys.toml", "other.toml", "keys.toml"), ("cert.pem", "other.pem", "cert.pem")] {
        let gate = two_keys().tls().start().await;
        let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
        gate.world().write(to, "no such thing");
        gate.world().write("gateway.toml", gate.world().edited("gateway.toml", from, to).replace("/old", "/new"));
        gate.has_said("reload rejected; still running the previous configuration").await;
        kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
        gate.world().write(to, gate.world().read(good));
        gate.has_said("configuration reloaded").await;
        kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
        // From here on it is the new one that counts.
        if from == "keys.toml" {
            gate.world().write(to, gate.world().keys_without("goes"));
            gate.has_said("key file reloaded").await;
            kept.ask(&gate.request("getPoints", "goes", "memberID=7")).await.is_refused(401, INCORRECT_KEY);
        }
    }
}

#[tokio::test]
async fn a_file_that_only_a_rejected_gateway_toml_named_delays_no_later_one() {
    let gate = two_keys().tls().start().await;
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    let good = gate.world().read("gateway.toml");
    gate.world().write("other.pem", "no such thing");
    gate.world().edit("gateway.toml", "cert.pem", "other.pem");
    gate.has_said("reload rejected; still running the previous configuration").await;
    gate.world().write("other.pem", "");
    gate.world().write("gateway.toml", String::from_utf8(good).unwrap().replace("/old", "/new"));
    gate.has_said("configuration reloaded").await;
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
}

#[tokio::test]
async fn a_file_that_is_removed_is_told_once_and_taken_up_when_it_is_back() {
    for signalled in [false, true] {
        let mut gate = two_keys().tls().start().await;
        let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
        let request = gate.request("getPoints", "goes", "memberID=7");
        for (name, told, back) in [
            ("gateway.toml", "gateway.toml is missing", "configuration reloaded"),
            ("keys.toml", "keys.toml cannot be read", "key file reloaded"),
            ("cert.pem", "cert.pem cannot be read", "TLS certificate reloaded"),
            ("key.pem", "key.pem cannot be read", "TLS certificate reloaded"),
        ] {
            let (path, aside) = (gate.world().path(name), gate.world().path("aside"));
            let count = |gate: &TestGateway, what: &str| gate.stderr().matches(what).count();
            std::fs::rename(&path, &aside).unwrap();
            gate.has_said(told).await;
            if signalled {
                gate.process().signal(Signal::SIGHUP);
                eventually(PATIENCE, told, async || count(&gate, told) == 2).await;
            }
            kept.ask(&request).await.is("3");
            let reloads = count(&gate, back);
            std::fs::rename(&aside, &path).unwrap();
            eventually(PATIENCE, back, async || count(&gate, back) > reloads).await;
            assert_eq!(count(&gate, told), 1 + usize::from(signalled), "{name} is told once:\n{}", gate.stderr());
        }
        // It is the file that came back which counts, not one that is remembered.
        gate.world().remove_key("goes");
        let is_refused = async || kept.ask(&request).await.code() == Some(2);
        eventually(SECOND_AND_SLACK, "the key that was taken out is refused", is_refused).await;
    }
}

#[tokio::test]
async fn guarantee_7_a_key_taken_out_is_refused_though_each_of_many_changes_of_the_key_file_comes_with_a_sighup() {
    /// Two changes at once, and then one in the time in which a change that was refused for that is looked at again.
    const PAUSES: [u64; 2] = [100, 750];
    let gate = two_keys().start().await;
    gate.get_points("goes", "7").await.is("3");
    let (kept, process) = (gate.world().keys_without("goes"), Pid::from_raw(gate.process_id().cast_signed()));
    let changes = async {
        for n in 0.. {
            gate.world().write("keys.toml", format!("{kept}# {n}\n"));
            kill(process, Signal::SIGHUP).unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(PAUSES[usize::from(n > 0)])).await;
        }
    };
    tokio::select! {
        () = changes => {}
        () = is_refused_soon(&gate, "goes") => {}
    }
}

#[tokio::test]
async fn a_key_file_changed_in_place_is_noticed_though_its_length_and_time_are_those_of_before() {
    let gate = two_keys().start().await;
    gate.get_points("goes", "7").await.is("3");
    let path = gate.world().path("keys.toml");
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let file = gate.world().text("keys.toml");
    let at = file.rfind("sha256:").unwrap() + "sha256:".len();
    let other = if file[at..].starts_with('0') { "1" } else { "0" };
    gate.world().write("keys.toml", [&file[..at], other, &file[at + 1..]].concat());
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    is_refused_soon(&gate, "goes").await;
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn a_key_file_that_gateway_toml_newly_names_is_taken_up_once_it_is_written() {
    let gate = two_keys().start().await;
    let keys = gate.world().read("keys.toml");
    gate.world().write("other.toml", "");
    gate.world().edit("gateway.toml", "keys.toml", "other.toml");
    gate.has_said("reload waits: the file is empty; write it, or send SIGHUP to read it").await;
    gate.get_points("stays", "7").await.is("3");
    gate.world().write("other.toml", &keys);
    reloaded(&gate, 1).await;
    gate.get_points("stays", "7").await.is("3");
}

#[tokio::test]
async fn a_new_key_file_that_is_empty_is_read_at_sighup_and_the_log_says_so() {
    let gate = two_keys().start().await;
    gate.world().write("other.toml", "");
    gate.reload_with("keys.toml", "other.toml");
    gate.has_said("the key file holds no key").await;
    gate.get_points("stays", "7").await.is_refused(401, INCORRECT_KEY);
}

#[tokio::test]
async fn a_rejected_gateway_toml_is_taken_up_once_a_file_in_force_fits_it() {
    let gate = two_keys().tls().start().await;
    let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
    let next = Identity::new();
    gate.world().write("other.pem", next.certificate);
    gate.world()
        .write("gateway.toml", gate.world().edited("gateway.toml", "cert.pem", "other.pem").replace("/old", "/new"));
    gate.has_said("reload rejected; still running the previous configuration").await;
    gate.world().write("key.pem", next.private_key);
    gate.has_said("configuration reloaded").await;
    kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
}
