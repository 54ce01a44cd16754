//! The client and the origin, held to what the other tests take for granted of them.

use crate::support::*;

fn get_points() -> Request {
    Request::post("/getPoints", "memberID=7")
}

async fn ask(origin: &ScriptedOrigin, request: &Request) -> Option<Answer> {
    let mut connection = to(origin).await;
    connection.send(request.bytes()).await;
    connection.answer_if_any().await
}

async fn to(origin: &ScriptedOrigin) -> Connection {
    Connection::to(origin.url().strip_prefix("http://").unwrap().parse().unwrap()).await
}

#[tokio::test]
async fn the_origin_keeps_points_and_counts_what_it_saw() {
    let origin = ScriptedOrigin::start(0).await;
    origin.put_points("7", 3);
    let mut connection = to(&origin).await;
    assert_eq!(connection.ask(&get_points()).await.body, "3");
    let set = Request::post("/base/setPoints", "memberID=7&amount=-4");
    assert_eq!(connection.ask(&set).await.body, "Successfully set 'Ada' points to '-4'");
    assert_eq!(connection.ask(&get_points()).await.body, "-4");
    assert_eq!((origin.asked("getPoints"), origin.asked_about("setPoints", "7")), (2, 1));
    assert_eq!(origin.seen()[1].path, "/base/setPoints");
    assert!(origin.seen().iter().all(|s| s.connection == 0));
}

#[tokio::test]
async fn the_origin_cuts_where_it_is_told() {
    let origin = ScriptedOrigin::start(0).await;
    for cut in [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody] {
        origin.next("setPoints", Act::Cut(cut));
        let set = Request::post("/setPoints", "memberID=7&amount=5");
        assert!(ask(&origin, &set).await.is_none(), "{cut:?} gave a whole answer");
        assert_eq!(origin.points("7"), 5, "{cut:?} comes after the deed");
    }
    assert_eq!(ask(&origin, &get_points()).await.unwrap().body, "5");
}

#[tokio::test]
async fn the_origin_holds_until_the_gate_opens() {
    let origin = ScriptedOrigin::start(0).await;
    let gate = Gate::shut();
    origin.next("getPoints", Act::HoldAnswer(gate.clone()));
    origin.next("getPoints", Act::HoldAll(gate.clone()));
    let mut held = Vec::new();
    for n in 1..=2 {
        let mut connection = to(&origin).await;
        connection.send(get_points().bytes()).await;
        origin.has_been_asked("getPoints", n).await;
        held.push(connection);
    }
    origin.put_points("7", 9);
    gate.open();
    assert_eq!(held[0].answer().await.body, "0", "it had looked before");
    assert_eq!(held[1].answer().await.body, "9", "it looked after");
}

#[tokio::test]
async fn the_origin_closes_idle_connections_and_goes_away() {
    let mut origin = ScriptedOrigin::start(0).await;
    let mut connection = to(&origin).await;
    connection.ask(&get_points()).await;
    origin.close_idle();
    connection.is_closed().await;
    let mut last = to(&origin).await;
    last.ask(&get_points()).await;
    origin.refuse().await;
    last.is_closed().await;
    let address = origin.url().strip_prefix("http://").unwrap().to_owned();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
#[should_panic(expected = "the contract knows no header \"server\"")]
async fn the_client_fails_on_a_header_that_the_contract_does_not_know() {
    let origin = ScriptedOrigin::start(0).await;
    origin.always(Act::Say(200, "Server: x\r\n", b"3".to_vec()));
    ask(&origin, &get_points()).await;
}

#[test]
#[should_panic(expected = "twice")]
fn the_client_fails_on_a_header_that_comes_twice() {
    Answer::head("HTTP/1.1 200 OK\r\nAge: 1\r\nage: 2");
}

#[test]
fn a_refusal_is_told_from_an_answer() {
    let answer = |body: &str| Answer { status: 200, headers: Vec::new(), body: body.into() };
    assert_eq!(answer("12 | Too many requests! Try again in 3 s.").code(), Some(12));
    for other in ["3", "{}", "1250 | x", "02 |", "02 | two\nlines", "{a=b | c}"] {
        assert_eq!(answer(other).code(), None, "{other}");
    }
}
