//! How a connection ends whose caller asked for that (RFC 9112, 9.6): at once where the whole answer has arrived, and
//! without a reset, which would lose an answer, in every other case.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
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
async fn a_connection_is_closed_at_once_after_the_answer_where_its_caller_asked_for_the_close() {
    let gate = gate().start_here().await;
    let http_10 = gate.request("getPoints", "bot", "memberID=7").bytes();
    let http_10 = String::from_utf8(http_10).unwrap().replace("HTTP/1.1", "HTTP/1.0").into_bytes();
    for request in [last(&gate, "getPoints"), http_10] {
        let mut connection = TcpStream::connect(gate.address()).await.unwrap();
        connection.write_all(&request).await.unwrap();
        assert!(rest(&mut connection).await.ends_with("\r\n\r\n3"));
        // The gateway reads no more: what is sent now is answered with a reset, before the second it would wait for.
        let began = std::time::Instant::now();
        while connection.write_all(b"\r\n").await.is_ok() {
            assert!(began.elapsed() < std::time::Duration::from_millis(500), "the connection was not closed at once");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn bytes_behind_the_last_request_do_not_reset_its_answer() {
    let gate = gate().start_here().await;
    // An empty line is read with the request; the longest of these is more than is read at once.
    for behind in [2, 1000, 20_000] {
        let mut connection = TcpStream::connect(gate.address()).await.unwrap();
        let request = [last(&gate, "getPoints"), b"\r\n".repeat(behind / 2)].concat();
        connection.write_all(&request).await.unwrap();
        assert!(rest(&mut connection).await.ends_with("\r\n\r\n3"), "{behind} bytes");
    }
}
