//! Contract section 3, the last paragraph, and guarantee 7: `gateway.toml`, the key file and the TLS pair are each
//! taken up whole or not at all, each by itself, by SIGHUP and by a change of the file alike.

use nix::sys::signal::Signal;

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
async fn each_file_is_taken_up_whole_or_not_at_all_while_the_others_have_faults() {
    for signalled in [false, true] {
        let mut gate = two_keys().key("later").tls().start().await;
        let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
        let request = gate.request("getPoints", "goes", "memberID=7");
        let next = Identity::new();
        let files: [(_, fn(&World), _); 3] = [
            ("key file", |world| world.remove_key("goes"), "key file reloaded"),
            ("TLS certificate", |_| (), "TLS certificate reloaded"),
            ("reload", |world| world.edit("gateway.toml", "/old", "/new"), "configuration reloaded"),
        ];
        let good = ["keys.toml", "key.pem", "gateway.toml"].map(|name| (name, gate.world().text(name)));
        gate.world().write("keys.toml", gate.world().keys_without("goes") + "digset = 1\n");
        gate.world().write("cert.pem", &next.certificate);
        gate.world().edit("gateway.toml", "key_command = \"/old\"", "key_comand = \"/bad\"");
        for (what, ..) in files {
            gate.has_said(&format!("{what} rejected")).await;
        }
        kept.ask(&request).await.is("3");
        kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /old");
        for ((name, text), (_, change, told)) in good.into_iter().zip(files) {
            gate.world().write(name, if name == "key.pem" { next.private_key.clone() } else { text });
            change(gate.world());
            if signalled {
                gate.process().signal(Signal::SIGHUP);
            }
            gate.has_said(told).await;
            assert_eq!(kept.ask(&request).await.code(), Some(2), "since the first was taken up");
        }
        kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
        let client = TlsClient::new(&[&next.certificate], &["http/1.1"]);
        let mut connection = Connection::over(client.connect(gate.address()).await.unwrap());
        connection.ask(&gate.request("getPoints", "stays", "memberID=7")).await.is("3");
        a_file_that_is_removed_is_told_once_and_taken_up_when_it_is_back(&mut gate, &mut kept, signalled).await;
    }
}

async fn a_file_that_is_removed_is_told_once_and_taken_up_when_it_is_back(
    gate: &mut TestGateway,
    kept: &mut Connection,
    signalled: bool,
) {
    let request = gate.request("getPoints", "later", "memberID=7");
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
            eventually(PATIENCE, told, async || count(gate, told) == 2).await;
        }
        kept.ask(&request).await.is("3");
        let reloads = count(gate, back);
        std::fs::rename(&aside, &path).unwrap();
        eventually(PATIENCE, back, async || count(gate, back) > reloads).await;
        assert_eq!(count(gate, told), 1 + usize::from(signalled), "{name} is told once:\n{}", gate.stderr());
    }
    // It is the file that came back which counts, not one that is remembered.
    gate.world().remove_key("later");
    let is_refused = async || kept.ask(&request).await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "the key that was taken out is refused", is_refused).await;
}

#[tokio::test]
async fn a_file_that_gateway_toml_newly_names_counts_once_it_can_be_used_and_any_change_in_place_is_noticed() {
    for bad in ["no such thing", ""] {
        let gate = two_keys().key("later").tls().start().await;
        let mut kept = Connection::over(gate.tls(&["http/1.1"]).await);
        let request = gate.request("getPoints", "goes", "memberID=7");
        for name in ["other.toml", "other.pem"] {
            gate.world().write(name, bad);
        }
        let next = gate.world().edited("gateway.toml", "keys.toml", "other.toml").replace("cert.pem", "other.pem");
        gate.world().write("gateway.toml", next.replace("/old", "/new"));
        for told in ["configuration reloaded", "key file rejected", "TLS certificate rejected"] {
            gate.has_said(told).await;
        }
        kept.ask(&no_key()).await.is_refused(401, "01 | No api key provided! Create it using: /new");
        kept.ask(&request).await.is("3");
        Connection::over(gate.tls(&["http/1.1"]).await).ask(&request).await.is("3");
        gate.world().write("other.toml", gate.world().keys_without("goes"));
        gate.world().write("other.pem", gate.world().read("cert.pem"));
        for told in ["key file reloaded", "TLS certificate reloaded"] {
            gate.has_said(told).await;
        }
        kept.ask(&request).await.is_refused(401, INCORRECT_KEY);
        kept.ask(&gate.request("getPoints", "stays", "memberID=7")).await.is("3");
        if bad.is_empty() {
            a_key_file_changed_in_place_is_noticed_whatever_its_length_and_time_and_a_new_one_that_is_empty(&gate)
                .await;
        }
    }
}

async fn a_key_file_changed_in_place_is_noticed_whatever_its_length_and_time_and_a_new_one_that_is_empty(
    gate: &TestGateway,
) {
    gate.get_points("later", "7").await.is("3");
    let path = gate.world().path("other.toml");
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let file = gate.world().text("other.toml");
    let at = file.rfind("sha256:").unwrap() + "sha256:".len();
    let other = if file[at..].starts_with('0') { "1" } else { "0" };
    gate.world().write("other.toml", [&file[..at], other, &file[at + 1..]].concat());
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    is_refused_soon(gate, "later").await;
    gate.get_points("stays", "7").await.is("3");
    gate.world().write("third.toml", "");
    gate.reload_with("other.toml", "third.toml");
    gate.has_said("the key file holds no key").await;
    is_refused_soon(gate, "stays").await;
}
