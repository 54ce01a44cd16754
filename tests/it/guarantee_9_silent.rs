//! Contract section 5, guarantee 9: no key and no body reaches a log, an error or the disk.

use crate::support::*;

const BODY: &str = "canary-in-the-body";

/// Good, bad and broken requests, all of them with a canary.
async fn make_noise(gate: &TestGateway, answers: &mut Vec<Answer>) {
    let bot = gate.secret("bot").to_owned();
    let body = format!("memberID=7&amount=5&x={BODY}");
    let good = |operation: &str| gate.request(operation, "bot", &body);
    let requests = [
        good("getPoints"),
        good("setPoints"),
        good("getWarns").header("Content-Encoding", "gzip"),
        good("nothing"),
        gate.request("getPoints", "bot", &format!("memberID={BODY}")),
        gate.request("setPoints", "bot", &format!("memberID=7&amount={BODY}")),
        Request::post("/getPoints", &body).key("canary-unknown-key"),
        Request::post("/getPoints", &body).key(&format!("{bot}x")),
        Request::post("/getPoints", &body).key(&bot).key("canary-unknown-key"),
        Request::post("/getPoints", &body).key(&bot).header("Bad Name", "x"),
        Request::post("/getPoints", &body).key(&bot).header("Content-Length", "7"),
        good("getPoints").body(BODY.repeat(400)),
    ];
    for request in requests {
        answers.push(gate.send(&request).await);
    }
    let mut cut = gate.connect().await;
    let bytes = good("setPoints").bytes();
    cut.send(&bytes[..bytes.len() - 3]).await;
    cut.finish_sending().await;
    answers.extend(cut.answer_or_close().await);
}

fn holds_none(what: &str, bytes: &[u8], canaries: &[&str]) {
    for canary in canaries {
        let found = bytes.windows(canary.len()).any(|w| w == canary.as_bytes());
        assert!(!found, "{what} holds {canary:?}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]));
    }
}

#[tokio::test]
async fn guarantee_9_no_key_and_no_body_is_heard_of_again() {
    for (kind, format) in [(Kind::Builtin, "text"), (Kind::Http, "json")] {
        let mut gate = TestGateway::on(kind)
            .keys_in_store()
            .key("bot")
            .points("7", 3)
            .set("log.level", r#""trace""#)
            .set("log.format", &format!("{format:?}"))
            .set("log.access", r#""access.log""#)
            .set("log.decisions", r#""d.log""#)
            .start()
            .await;
        let id = gate.key_id("bot");
        let mut answers = Vec::new();
        make_noise(&gate, &mut answers).await;
        assert!(
            answers.iter().any(|a| a.status == 200) && answers.iter().any(|a| a.code() == Some(16)),
            "{answers:#?}"
        );
        if kind == Kind::Http {
            gate.origin().always(Act::Raw(format!("{BODY}\r\n\r\n").into_bytes()));
            answers.push(gate.get_points("bot", "99").await);
            gate.origin().always(Act::say(500, BODY));
            answers.push(gate.get_points("bot", "98").await);
        }
        gate.has_logged("access.log", "the key's id", |line| line.contains(&id)).await;
        assert_eq!(gate.stop().await, Some(0));

        let secret = gate.secret("bot").to_owned();
        // The random part alone would do for a thief.
        let canaries = [&*secret, &secret[3..46], BODY, "canary-unknown-key"];
        for answer in &answers {
            holds_none("an answer", format!("{answer:?}").as_bytes(), &canaries);
        }
        holds_none("stderr", gate.stderr().as_bytes(), &canaries);
        holds_none("stdout", gate.process().stdout().as_bytes(), &canaries);
        let files = gate.world().files();
        assert!(files.iter().any(|(path, _)| path.ends_with("guildgate.db")), "the keys are in a file");
        let recorded = gate.world().decisions("d.log");
        assert!(recorded.contains(&*id), "the key's id is in the record");
        holds_none("the record", recorded.as_bytes(), &canaries);
        for (path, bytes) in files {
            holds_none(&path.display().to_string(), &bytes, &canaries);
        }
    }
}
