//! Tests of one connection with a peer on a socket: answers that are cut or early, large requests, and what is kept idle.

use tokio::net::TcpListener;

use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n1250";

/// A connection, and its other end.
async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = tokio::join!(Connection::open(address, None), listener.accept());
    let (peer, _) = accepted.unwrap();
    peer.set_nodelay(true).unwrap();
    (connected.unwrap(), peer)
}

/// Asks, and reads the whole answer.
async fn ask(connection: &mut Connection) -> Vec<u8> {
    connection.request().extend_from_slice(b"a request");
    let header = connection.send().await.unwrap();
    connection.read_body(&header).await.unwrap().to_vec()
}

/// Waits until it is no longer idle, which the runtime learns at its next turn.
async fn stops_being_idle(connection: &mut Connection) -> bool {
    let stops = async {
        while connection.is_quiet() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), stops).await.is_ok()
}

#[tokio::test]
async fn an_answer_that_is_cut_anywhere_is_the_same() {
    let chunked: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n2\r\n50\r\n0\r\nA: b\r\n\r\n";
    let interim = [b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n", ANSWER].concat();
    let (mut connection, mut peer) = pair().await;
    for answer in [ANSWER, chunked, &interim] {
        for cut in 0..answer.len() {
            let send = async {
                peer.read_exact(&mut [0; 9]).await.unwrap();
                peer.write_all(&answer[..cut]).await.unwrap();
                tokio::task::yield_now().await;
                peer.write_all(&answer[cut..]).await.unwrap();
            };
            let (body, ()) = tokio::join!(ask(&mut connection), send);
            assert_eq!(body, b"1250", "cut at {cut}");
            assert!(connection.may_reuse, "cut at {cut}");
            connection.answer.clear();
        }
    }
}

#[tokio::test]
async fn an_answer_before_the_request_was_taken_is_read_and_its_connection_is_not_kept() {
    let (mut connection, mut peer) = pair().await;
    // More than both ends buffer.
    connection.request().resize(64 << 20, b'x');
    peer.write_all(ANSWER).await.unwrap();
    let header = connection.send().await.unwrap();
    assert_eq!(connection.read_body(&header).await.unwrap(), b"1250");
    assert!(!connection.is_sent && !connection.may_reuse);
}

#[tokio::test]
async fn a_large_request_is_sent_whole_while_its_answer_is_waited_for() {
    let (mut connection, mut peer) = pair().await;
    connection.request().resize(16 << 20, b'x');
    let answer = async {
        let mut request = vec![0; 16 << 20];
        peer.read_exact(&mut request).await.unwrap();
        assert!(request.iter().all(|b| *b == b'x'));
        peer.write_all(ANSWER).await.unwrap();
    };
    let (header, ()) = tokio::join!(connection.send(), answer);
    assert_eq!(connection.read_body(&header.unwrap()).await.unwrap(), b"1250");
    assert!(connection.may_reuse);
}

#[tokio::test]
async fn a_connection_on_which_something_comes_or_that_is_closed_is_not_taken() {
    let idle = IdleConnections::default();
    for ending in [Some(&b"HTTP/1.1 408 Request Timeout\r\n\r\n"[..]), None] {
        let (mut connection, mut peer) = pair().await;
        let (body, ()) = tokio::join!(ask(&mut connection), async { peer.write_all(ANSWER).await.unwrap() });
        assert_eq!(body, b"1250");
        idle.put(connection, 1);
        let mut connection = idle.take(true).unwrap();
        match ending {
            Some(bytes) => peer.write_all(bytes).await.unwrap(),
            None => peer.shutdown().await.unwrap(),
        }
        assert!(stops_being_idle(&mut connection).await);
    }
}

#[tokio::test]
async fn no_more_connections_are_kept_than_may_be_and_none_whose_answer_was_not_read() {
    let (idle, mut peers) = (IdleConnections::default(), Vec::new());
    for is_read in [true, false, true, true] {
        let (mut connection, mut peer) = pair().await;
        if is_read {
            tokio::join!(ask(&mut connection), async { peer.write_all(ANSWER).await.unwrap() });
        }
        idle.put(connection, 2);
        peers.push(peer);
    }
    assert_eq!(idle.0.lock().len(), 2);
    idle.close_unusable();
    assert_eq!(idle.0.lock().len(), 2);
    peers.clear();
    let closes = async {
        while !idle.0.lock().is_empty() {
            idle.close_unusable();
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(5), closes).await.is_ok());
    assert!(idle.take(true).is_none());
}

#[tokio::test]
async fn a_connection_that_this_thread_watches_is_taken_before_those_of_others() {
    let (idle, mut peers) = (IdleConnections::default(), Vec::new());
    let other = thread::spawn(|| thread::current().id()).join().unwrap();
    let own = thread::current().id();
    for watched_by in [own, other] {
        let (mut connection, mut peer) = pair().await;
        tokio::join!(ask(&mut connection), async { peer.write_all(ANSWER).await.unwrap() });
        connection.thread = watched_by;
        idle.put(connection, 2);
        peers.push(peer);
    }
    assert_eq!([(); 2].map(|()| idle.take(false).unwrap().thread), [own, other]);
}
