//! Tests of one connection with a peer on a socket: answers that are cut or early, large requests, and what is kept idle.

use tokio::net::TcpListener;

use super::*;

const NOW: Tick = Tick(1);

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
        while connection.is_quiet(NOW) {
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
        idle.put(connection, 1, NOW);
        let mut connection = idle.take(true, NOW).unwrap();
        match ending {
            Some(bytes) => peer.write_all(bytes).await.unwrap(),
            None => peer.shutdown().await.unwrap(),
        }
        assert!(stops_being_idle(&mut connection).await);
        idle.put(connection, 1, NOW);
        assert!(idle.take(false, NOW).is_none());
    }
    // Of an end that the runtime has not heard of, the kernel tells a write (guarantee 5).
    let (mut connection, mut peer) = pair().await;
    tokio::join!(ask(&mut connection), async { peer.write_all(ANSWER).await.unwrap() });
    idle.put(connection, 1, NOW);
    peer.shutdown().await.unwrap();
    assert!(idle.take(true, NOW).is_none());
}

#[tokio::test]
async fn a_connection_is_not_used_after_a_minute_without_a_request() {
    let idle = IdleConnections::default();
    for (after, is_used) in [(IDLE_FOR - Duration::from_nanos(1), true), (IDLE_FOR, false)] {
        let (mut connection, mut peer) = pair().await;
        tokio::join!(ask(&mut connection), async { peer.write_all(ANSWER).await.unwrap() });
        idle.put(connection, 1, NOW);
        assert_eq!(idle.take(false, NOW.plus(after)).is_some(), is_used, "{after:?}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_after_an_answer_that_leaves_nothing_behind_where_the_upstream_keeps_it() {
    let chunked = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1250\r\n0\r\n\r\n"[..];
    let closes = &b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n1250"[..];
    for (answer, is_kept) in [
        (ANSWER.to_vec(), true),
        (chunked.to_vec(), true),
        (closes.to_vec(), false),
        // A second answer behind the first is nobody's.
        ([ANSWER, ANSWER].concat(), false),
        ([chunked, ANSWER].concat(), false),
    ] {
        let (mut connection, mut peer) = pair().await;
        let (body, ()) = tokio::join!(ask(&mut connection), async { peer.write_all(&answer).await.unwrap() });
        assert_eq!((&*body, connection.may_reuse), (&b"1250"[..], is_kept), "{}", answer.escape_ascii());
    }
}

#[tokio::test]
async fn what_is_no_answer_fails_at_once_and_one_without_a_length_ends_with_its_connection() {
    for (answer, ends, is_whole) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", false, false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n1250", false, false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n1", false, false),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;a\r\n1250\r\n0\r\n\r\n", false, false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1250", true, false),
        ("HTTP/1.1 200 OK\r\n\r\n1250", true, true),
        ("HTTP/1.0 200 OK\r\n\r\n1250", true, true),
    ] {
        let (mut connection, mut peer) = pair().await;
        connection.request().extend_from_slice(b"a request");
        peer.write_all(answer.as_bytes()).await.unwrap();
        if ends {
            peer.shutdown().await.unwrap();
        }
        let asks = async {
            let header = connection.send().await.ok()?;
            connection.read_body(&header).await.ok().map(<[u8]>::to_vec)
        };
        let body = tokio::time::timeout(Duration::from_secs(5), asks).await.expect("it waits for more");
        assert_eq!(body.as_deref(), is_whole.then_some(&b"1250"[..]), "{answer:?}");
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
        idle.put(connection, 2, NOW);
        peers.push(peer);
    }
    assert_eq!(idle.0.lock().len(), 2);
    idle.close_unusable(NOW);
    assert_eq!(idle.0.lock().len(), 2);
    peers.clear();
    let closes = async {
        while !idle.0.lock().is_empty() {
            idle.close_unusable(NOW);
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(5), closes).await.is_ok());
    assert!(idle.take(true, NOW).is_none());
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
        idle.put(connection, 2, NOW);
        peers.push(peer);
    }
    assert_eq!([(); 2].map(|()| idle.take(false, NOW).unwrap().thread), [own, other]);
}
