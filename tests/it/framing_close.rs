//! A connection whose caller asked for its end (RFC 9112, 9.6) ends without a reset, which would lose the answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::builder().key("bot").points("7", 3)
}

fn last(gate: &TestGateway, operation: &str) -> Vec<u8> {
    gate.request(operation, "bot", "memberID=7").header("Connection", "close").bytes()
}

/// Everything up to the end of the connection, which must be no reset.
async fn rest(connection: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    timeout(PATIENCE, connection.read_to_end(&mut answer)).await.expect("no end came").expect("reset");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn bytes_behind_the_last_request_do_not_reset_its_answer() {
    let gate = gate().start().await;
    // An empty line is read with the request; the longest of these is more than is read at once.
    for behind in [2, 1000, 20_000] {
        let mut connection = TcpStream::connect(gate.address()).await.unwrap();
        let request = [last(&gate, "getPoints"), b"\r\n".repeat(behind / 2)].concat();
        connection.write_all(&request).await.unwrap();
        assert!(rest(&mut connection).await.ends_with("\r\n\r\n3"), "{behind} bytes");
    }
}

#[tokio::test]
async fn an_empty_line_that_comes_late_does_not_cut_a_long_answer() {
    let text = "x".repeat(8000);
    let gate = (1..=20).fold(gate(), |gate, id| gate.review("7", id, "Bo", 5, &text)).start().await;
    let mut connection = TcpStream::connect(gate.address()).await.unwrap();
    connection.write_all(&last(&gate, "getReviews")).await.unwrap();
    let mut start = [0; 1000];
    connection.read_exact(&mut start).await.unwrap();
    connection.write_all(b"\r\n").await.unwrap();
    assert!(rest(&mut connection).await.len() > 150_000);
}
