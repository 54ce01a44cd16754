//! Contract section 1, "Framing": bodies, whole and broken.

use crate::support::*;

/// A connection that is new, and one that has answered before.
async fn connections(gate: &TestGateway) -> [Connection; 2] {
    let (first, mut reused) = (gate.connect().await, gate.connect().await);
    reused.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    [first, reused]
}

async fn gate() -> TestGateway {
    TestGateway::before_http().key("bot").points("7", 3).start_here().await
}

/// setPoints of member 7 with this framing and body.
fn set(gate: &TestGateway, fields: &str, body: &str) -> String {
    let key = gate.secret("bot");
    format!("POST /setPoints HTTP/1.1\r\nHost: h\r\nAuthorization: {key}\r\n{fields}\r\n{body}")
}

fn set_in_chunks(gate: &TestGateway, body: &str) -> String {
    set(gate, "Transfer-Encoding: chunked\r\n", body)
}

/// Asserts that member 7 still has its 3 points, and that no setPoints reached the origin.
async fn nothing_was_performed(gate: &TestGateway, what: &str) {
    let answer = gate.get_points("bot", "7").await;
    assert_eq!(answer.body, "3", "{what}");
    assert_eq!(gate.origin().asked("setPoints"), 0, "{what}");
    assert_eq!(gate.origin().points("7"), 3, "{what}");
}

#[tokio::test]
async fn a_chunked_body_is_read_however_it_comes_and_a_malformed_chunk_performs_nothing() {
    let gate = gate().await;
    // The decoder's tests have the rest.
    for chunks in ["zz\r\nmemberID=7&amount=10\r\n0\r\n\r\n", "14\r\nmemberID=7&amount=10XX0\r\n\r\n"] {
        for mut connection in connections(&gate).await {
            connection.send(set_in_chunks(&gate, chunks)).await;
            connection.finish_sending().await;
            let answer = connection.answer_or_close().await.unwrap_or_else(|| panic!("no answer to {chunks:?}"));
            assert_eq!(answer.body, MALFORMED, "{chunks:?}");
            answer.is_refused(400, MALFORMED);
            connection.is_closed().await;
        }
        nothing_was_performed(&gate, chunks).await;
    }
    let mut connection = gate.connect().await;
    let trailers = "X-Trailer: a\r\nAuthorization: other\r\nContent-Length: 5\r\n";
    for byte in set_in_chunks(&gate, &format!("9\r\nmemberID=\r\nB\r\n7&amount=10\r\n0\r\n{trailers}\r\n")).bytes() {
        connection.send([byte]).await;
    }
    connection.answer().await.is("Successfully set 'Ada' points to '10'");
    // The trailers are over: what follows is the next request.
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("10");
}

#[tokio::test]
async fn chunks_and_trailers_without_end_are_refused() {
    let gate = gate().await;
    let many = "00000000000000000000000000000001\r\nx\r\n".repeat(5000);
    let size = "0".repeat(100_000);
    let trailers = format!("0\r\n{}", "X-Trailer: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n".repeat(5000));
    for (what, body) in [("chunks", many), ("size", size), ("trailers", trailers)] {
        let mut connection = gate.connect().await;
        let _ = connection.try_send(set_in_chunks(&gate, &body)).await; // it may stop reading
        if let Some(answer) = connection.answer_or_close().await {
            assert!(matches!(answer.code(), Some(14 | 16)), "{what}: {answer:#?}");
            connection.is_closed().await;
        }
        nothing_was_performed(&gate, what).await;
    }
}

#[tokio::test]
async fn a_chunked_body_over_max_body_is_refused() {
    let gate = gate().await;
    let over = gate.request("setPoints", "bot", &format!("memberID=7&amount=10&x={}", "x".repeat(5000)));
    for size in [7, 1000, 4096, 5100] {
        let answer = gate.send(&over.clone().chunked(size)).await;
        answer.is_refused(413, TOO_LARGE);
    }
    nothing_was_performed(&gate, "over max_body").await;
}

#[tokio::test]
async fn a_header_or_a_body_cut_short_performs_nothing() {
    let gate = gate().await;
    let whole = "memberID=7&amount=1000";
    let mut cut: Vec<String> = (0..whole.len())
        .map(|sent| set(&gate, &format!("Content-Length: {}\r\n", whole.len()), &whole[..sent]))
        .collect();
    let chunked = "16\r\nmemberID=7&amount=1000\r\n0\r\n\r\n";
    cut.extend((0..chunked.len()).map(|sent| set_in_chunks(&gate, &chunked[..sent])));
    let header = set(&gate, "Content-Length: 22\r\n", "");
    cut.extend([1, 10, 30, header.len() - 3, header.len() - 1].map(|sent| header[..sent].to_owned()));
    for request in cut {
        for mut connection in connections(&gate).await {
            connection.send(&request).await;
            connection.finish_sending().await;
            if let Some(answer) = connection.answer_or_close().await {
                assert!(matches!(answer.code(), Some(16 | 17)), "{request:?}: {answer:#?}");
                connection.is_closed().await;
            }
        }
    }
    nothing_was_performed(&gate, "a body cut short").await;
}
