//! Contract section 5, guarantee 3: however many callers miss at once, the origin is asked once.

use std::time::Duration;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

async fn ask_at_once(gate: &TestGateway, count: usize) -> Vec<Connection> {
    ask_at_once_with(gate, "bot", count).await
}

/// `count` connections that have each asked for member 7, the first of them as the flight's leader.
async fn ask_at_once_with(gate: &TestGateway, key: &str, count: usize) -> Vec<Connection> {
    let request = gate.request("getPoints", key, "memberID=7");
    let asked = gate.origin().asked("getPoints");
    let mut asking = Vec::new();
    for i in 0..count {
        let connection = gate.connect_and_send(request.clone()).await;
        if i == 0 {
            gate.origin().has_been_asked("getPoints", asked + 1).await;
        }
        asking.push(connection);
    }
    gate.has_read_requests().await;
    asking
}

#[tokio::test]
async fn guarantee_3_a_hundred_misses_are_one_question() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let asking = ask_at_once(&gate, 100).await;
    hold.open();
    let mut collapsed = 0;
    for mut connection in asking {
        let answer = connection.answer().await;
        collapsed += usize::from(answer.is("3").cache_status().contains("collapsed"));
    }
    assert_eq!(gate.origin().asked("getPoints"), 1);
    assert!(collapsed > 0, "no answer says that it was collapsed");
}

#[tokio::test]
async fn guarantee_3_a_leader_that_hangs_up_harms_no_follower() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = ask_at_once(&gate, 20).await;
    drop(asking.remove(0));
    gate.has_read_requests().await;
    hold.open();
    for mut connection in asking {
        connection.answer().await.is("3");
    }
    assert_eq!(gate.origin().asked("getPoints"), 1);
}

#[tokio::test]
async fn guarantee_3_an_answer_that_nobody_waits_for_any_more_is_kept_or_dropped_but_asked_once() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    drop(ask_at_once(&gate, 10).await);
    hold.open();
    gate.get_points("bot", "7").await.is("3");
    assert!(gate.origin().asked("getPoints") <= 2);
}

#[tokio::test]
async fn guarantee_3_a_failed_question_fails_its_followers_and_the_next_caller_asks_again() {
    let gate = gate().set("origin.retries", "0").set("origin.timeout", r#""1s""#).start().await;
    gate.origin().next("getPoints", Act::Stall);
    for mut connection in ask_at_once(&gate, 20).await {
        let answer = connection.answer().await;
        assert_eq!(answer.code(), Some(22), "{answer:#?}");
    }
    assert_eq!(gate.origin().asked("getPoints"), 1);
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), 2);
}

#[tokio::test]
async fn guarantee_3_different_entries_do_not_wait_for_each_other() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = ask_at_once(&gate, 1).await;
    gate.get_points("bot", "8").await.is("0");
    gate.get_warns("bot", "7").await.is("{}");
    hold.open();
    asking[0].answer().await.is("3");
}

#[tokio::test]
async fn guarantee_3_a_read_whose_connection_was_cut_unanswered_is_asked_again_once() {
    let gate = gate().set("origin.retries", "1").start().await;
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), 2);
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.get_points("bot", "8").await.is_refused(502, NO_ANSWER);
    assert_eq!(gate.origin().asked_about("getPoints", "8"), 2);
    // Where something was answered there is no asking again.
    gate.origin().next("getPoints", Act::Cut(Cut::MidBody));
    gate.get_points("bot", "9").await.is_refused(502, NO_ANSWER);
    assert_eq!(gate.origin().asked_about("getPoints", "9"), 1);
}

#[tokio::test]
async fn guarantee_3_one_keys_02_is_not_given_to_another_of_its_guild() {
    let gate = TestGateway::before_http().key("bot").key("dead").points("7", 3).start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 401, "02 | Incorrect API key!".into()));
    let mut leader = gate.connect_and_send(gate.request("getPoints", "dead", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut follower = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.has_read_requests().await;
    hold.open();
    leader.answer().await.is_refused(401, "02 | Incorrect API key!");
    follower.answer().await.is("3");
}

#[tokio::test]
async fn guarantee_3_a_refusal_of_one_key_is_one_question_and_delays_no_other_key_of_its_guild() {
    for (status, line, code) in [(401, "02 | Incorrect API key!", 2), (429, "slow down", 21)] {
        let gate = TestGateway::before_http().key("bot").key("dead").points("7", 3).set("cache.points.ttl", r#""0s""#);
        let gate = gate.start().await;
        // The first round is as any other; from the second one on, the key is known to be refused.
        for round in 1..=2 {
            let hold = Gate::shut();
            gate.origin().next("getPoints", Act::HoldThen(hold.clone(), status, line.into()));
            let asking = ask_at_once_with(&gate, "dead", 100).await;
            if round == 2 {
                gate.get_points("bot", "7").await.is("3");
            }
            hold.open();
            for mut connection in asking {
                assert_eq!(connection.answer().await.code(), Some(code));
            }
        }
        assert_eq!(gate.origin().asked("getPoints"), 3, "one for each round, and one of the other key");
        // Its questions are shared as soon as the origin answers it again, and then with the others.
        for asked in [4, 5] {
            let hold = Gate::shut();
            gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
            let mut asking = ask_at_once_with(&gate, "dead", 20).await;
            if asked == 5 {
                let other = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
                gate.has_read_requests().await;
                asking.push(other);
            }
            hold.open();
            for mut connection in asking {
                connection.answer().await.is("3");
            }
            assert_eq!(gate.origin().asked("getPoints"), asked);
        }
    }
}

#[tokio::test]
async fn guarantee_3_one_that_waits_in_vain_for_a_place_fails_no_other_of_its_refused_key() {
    let gate = TestGateway::before_http().key("bot").key("dead").points("7", 3).set("cache.points.ttl", r#""0s""#);
    let gate = gate.set("origin.max_in_flight", "2").set("origin.queue_timeout", r#""3s""#).key("other").start().await;
    gate.origin().next("getPoints", Act::say(429, "slow down"));
    gate.get_points("dead", "7").await.is_unavailable();
    let hold = Gate::shut();
    let mut held = Vec::new();
    for (n, key) in ["bot", "other"].into_iter().enumerate() {
        gate.origin().next("getWarns", Act::HoldAll(hold.clone()));
        held.push(gate.connect().await);
        held[n].send(gate.request("getWarns", key, &format!("memberID={n}")).bytes()).await;
    }
    gate.origin().has_been_asked("getWarns", 2).await;
    // No place is left. The second one comes half of `queue_timeout` after the first, and waits as long for itself.
    let request = gate.request("getPoints", "dead", "memberID=7").bytes();
    let (mut first, mut second) = (gate.connect().await, gate.connect().await);
    first.send(&request).await;
    tokio::time::sleep(Duration::from_millis(1500)).await; // the callers' pace
    second.send(&request).await;
    first.answer().await.is_unavailable();
    hold.open();
    second.answer().await.is("3");
    for mut connection in held {
        connection.answer().await.is("{}");
    }
    assert_eq!(gate.origin().asked("getPoints"), 2);
}

#[tokio::test]
async fn guarantee_6_however_many_keys_of_a_guild_are_refused_another_waits_for_one_of_them_at_most() {
    let mut gate = TestGateway::before_http().key("bot").points("7", 3).set("cache.points.ttl", r#""0s""#);
    let dead: Vec<String> = (0..10).map(|n| format!("dead{n}")).collect();
    for key in &dead {
        gate = gate.key(key);
    }
    let gate = gate.start().await;
    let holds: Vec<Gate> = dead.iter().map(|_| Gate::shut()).collect();
    gate.origin().next("getPoints", Act::HoldThen(holds[0].clone(), 429, "slow down".into()));
    let mut asking = Vec::new();
    for (n, key) in dead.iter().map(String::as_str).chain(["bot"]).enumerate() {
        let connection = gate.connect_and_send(gate.request("getPoints", key, "memberID=7")).await;
        if n == 0 {
            gate.origin().has_been_asked("getPoints", 1).await;
        }
        asking.push(connection);
    }
    gate.has_read_requests().await;
    // All but the first ask for themselves then, and are not answered.
    for hold in &holds[1..] {
        gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 429, "slow down".into()));
    }
    holds[0].open();
    gate.origin().has_been_asked("getPoints", 11).await;
    drop(holds);
}

#[tokio::test]
async fn guarantee_3_whatever_the_origin_tells_a_leader_whose_key_is_gone_the_others_ask_once_together() {
    for (is_moved, status, line) in
        [(false, 200, "3"), (true, 200, "77"), (false, 401, "02 | Incorrect API key!"), (true, 403, "03 | gone")]
    {
        let mut gate = gate().set("cache.points.ttl", r#""0s""#);
        for n in 0..5 {
            gate = gate.key(&format!("b{n}"));
        }
        let gate = gate.key("leader").start().await;
        let (hold, hold_others) = (Gate::shut(), Gate::shut());
        gate.origin().next("getPoints", Act::HoldThen(hold.clone(), status, line.into()));
        gate.origin().always(Act::HoldAnswer(hold_others.clone()));
        let mut leader = ask_at_once_with(&gate, "leader", 1).await;
        let mut others = Vec::new();
        for n in 0..10 {
            others.push(gate.connect_and_send(gate.request("getPoints", &format!("b{}", n % 5), "memberID=7")).await);
        }
        gate.has_read_requests().await;
        let file = String::from_utf8(gate.world().read("keys.toml")).unwrap();
        let at = file.find("[[key]]\nid = \"leader\"").unwrap();
        let moved = if is_moved { file[at..].replace(GUILD, "999") } else { String::new() };
        gate.edit_key_file(&file[at..], &moved).await;
        hold.open();
        assert_eq!(leader[0].answer().await.status, status);
        gate.origin().has_been_asked("getPoints", 2).await;
        gate.has_read_requests().await;
        hold_others.open();
        for mut other in others {
            other.answer().await.is("3");
        }
        assert_eq!(gate.origin().asked("getPoints"), 2, "{status} {line}");
    }
}

#[tokio::test]
async fn guarantee_3_however_many_leaders_lose_their_keys_one_after_another_the_others_ask_once_together() {
    let keys: Vec<String> = (0..9).map(|n| format!("b{n}")).collect();
    let gate = keys.iter().fold(gate(), |gate, key| gate.key(key)).start().await;
    let holds: Vec<Gate> = (0..6).map(|_| Gate::shut()).collect();
    holds.iter().for_each(|hold| gate.origin().next("getPoints", Act::HoldAnswer(hold.clone())));
    let mut asking = Vec::new();
    for key in keys.iter().chain(&keys) {
        let mut connection = gate.connect().await;
        connection.send(gate.request("getPoints", key, "memberID=7").bytes()).await;
        asking.push(connection);
    }
    for _ in 0..40 {
        assert_eq!(gate.send(&Request::bare("GET", "/healthz")).await.status, 200);
    }
    for (n, hold) in holds.iter().enumerate() {
        gate.origin().has_been_asked("getPoints", n + 1).await;
        let seen = gate.origin().seen();
        let leader = keys.iter().find(|key| seen[n].header("authorization") == Some(gate.secret(key))).unwrap();
        gate.world().remove_key(leader);
        let reloads = || gate.stderr().matches("key file reloaded").count();
        eventually(PATIENCE, "the key file is reloaded", || async { reloads() > n }).await;
        hold.open();
    }
    let mut statuses = Vec::new();
    for mut connection in asking {
        statuses.push(connection.answer().await.status);
    }
    let answered = |status| statuses.iter().filter(|s| **s == status).count();
    assert_eq!((answered(200), answered(401)), (12, 6), "each leader, and all whose keys are left: {statuses:?}");
    assert_eq!(gate.origin().asked("getPoints"), 7);
}

#[tokio::test]
async fn guarantee_3_a_leader_that_may_not_send_any_more_when_it_is_connected_fails_no_other_key() {
    let authority = Authority::new();
    for (guild, code) in [(GUILD, 2), ("999", 3)] {
        let origin = ScriptedOrigin::start_tls(authority.server("127.0.0.1")).await;
        origin.put_points("7", 3);
        let proxy = Proxy::to(origin.port()).await;
        let mut builder = TestGateway::before_http().upstreams([format!("https://127.0.0.1:{}", proxy.port())]);
        for (name, value) in [("tls", r#"{ ca = "ca.pem" }"#), ("connect_timeout", r#""20s""#), ("timeout", r#""30s""#)]
        {
            builder = builder.set(&format!("origin.{name}"), value);
        }
        // The day's count opens the store, which knows the guilds that the bot has left.
        builder = builder.set("limits.tiers.standard.daily", "1000000").key_of_guild("left", "999");
        for key in ["b0", "b1", "b2", "leader"] {
            builder = builder.key(key);
        }
        let (world, _, secrets) = builder.prepare().await;
        world.write("ca.pem", authority.pem());
        for args in [["guild", "add", "999", "--name", "Left"].as_slice(), &["guild", "leave", "999"]] {
            world.run(args).done();
        }
        let mut process = world.serve(&[]);
        let address = process.ready().await;
        let request = |key: &str| Request::post("/getPoints", "memberID=7").key(&secrets[key]);
        assert_eq!(Connection::to(address).await.ask(&request("left")).await.code(), Some(3));
        proxy.hold(Holds::Everything);
        let mut asking = Vec::new();
        for key in ["leader", "b0", "b1", "b2"] {
            let mut connection = Connection::to(address).await;
            connection.send(request(key).bytes()).await;
            process.has_read_requests(address).await;
            asking.push(connection);
        }
        let file = String::from_utf8(world.read("keys.toml")).unwrap();
        let (others, leader) = file.split_at(file.find("[[key]]\nid = \"leader\"").unwrap());
        let leader = if code == 2 { String::new() } else { leader.replace(GUILD, guild) };
        world.write("keys.toml", format!("{others}{leader}"));
        eventually(PATIENCE, "a reload", || async { process.stderr().contains("key file reloaded") }).await;
        proxy.hold(Holds::Nothing);
        assert_eq!(asking.remove(0).answer().await.code(), Some(code));
        for mut other in asking {
            other.answer().await.is("3");
        }
        assert_eq!(origin.asked("getPoints"), 1);
    }
}
