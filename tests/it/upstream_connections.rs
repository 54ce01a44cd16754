//! Contract section 1, "Upstream", and guarantee 5: what may happen on one connection to an upstream, in bytes. The
//! gateway reads answers with a parser of its own, so what it must take and what it must not is held here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::*;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n1250";

/// One thing that the upstream does on a connection.
#[derive(Clone)]
enum Step {
    /// Reads one request, whole.
    Read,
    Send(String),
    /// Sends no more; reads on.
    Finish,
    /// Waits until the test calls [`RawOrigin::proceed`].
    AwaitOrder,
    /// Waits until the gateway has closed the connection.
    AwaitClose,
}

use Step::{AwaitClose, AwaitOrder, Finish, Read, Send};

/// An upstream that does as written on its first connection, then on its second, and so on. On further ones it answers
/// each request with [`ANSWER`].
struct RawOrigin {
    url: String,
    counts: Arc<Counts>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Counts {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// A permit for each connection that may proceed, and one for each that has.
    orders: Semaphore,
    proceeded: Semaphore,
    /// A permit for each connection whose steps are done.
    done: Semaphore,
}

impl RawOrigin {
    async fn start<const N: usize>(scripts: [Vec<Step>; N]) -> RawOrigin {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, requests) = Default::default();
        let [orders, proceeded, done] = std::array::from_fn(|_| Semaphore::new(0));
        let counts = Arc::new(Counts { connections, requests, orders, proceeded, done });
        let accepting = tokio::spawn(accept(listener, scripts.into(), counts.clone()));
        RawOrigin { url, counts, accepting }
    }

    fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Waits until the steps of so many more connections are done.
    async fn done(&self, connections: u32) {
        patiently(&self.counts.done, connections).await;
    }

    /// Lets a connection that waits for it go one step further, and waits until it has.
    async fn proceed(&self) {
        self.counts.orders.add_permits(1);
        patiently(&self.counts.proceeded, 1).await;
    }

    async fn gateway(&self) -> TestGateway {
        // No retry hides a failure.
        self.gateway_with("0").await
    }

    async fn gateway_with(&self, retries: &str) -> TestGateway {
        let gate = TestGateway::before_http().key("bot").upstreams([self.url.clone()]).set("origin.retries", retries);
        gate.set("origin.timeout", r#""10s""#).start_here().await
    }

    /// A gateway through which so many reads, one after the other, have been answered as [`ANSWER`] says.
    async fn gateway_after_reads(&self, count: usize) -> TestGateway {
        let gate = self.gateway().await;
        for member in 0..count {
            gate.get_points("bot", &member.to_string()).await.is("1250");
        }
        gate
    }
}

impl Drop for RawOrigin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn patiently(permits: &Semaphore, count: u32) {
    tokio::time::timeout(PATIENCE, permits.acquire_many(count)).await.unwrap().unwrap().forget();
}

async fn accept(listener: TcpListener, scripts: Vec<Vec<Step>>, counts: Arc<Counts>) {
    let (mut scripts, mut connections) = (scripts.into_iter(), tokio::task::JoinSet::new());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        counts.connections.fetch_add(1, Ordering::SeqCst);
        let (steps, counts) = (scripts.next(), counts.clone());
        connections.spawn(async move {
            match steps {
                Some(steps) => follow(stream, steps, &counts).await,
                None => follow(stream, [Read, Send(ANSWER.into())].into_iter().cycle(), &counts).await,
            }
        });
    }
}

async fn follow(mut stream: TcpStream, steps: impl IntoIterator<Item = Step>, counts: &Counts) {
    let (mut unread, mut was_ordered) = (Vec::new(), false);
    for step in steps {
        let ordered = std::mem::replace(&mut was_ordered, matches!(step, AwaitOrder));
        match step {
            Read => {
                while !is_whole(&unread) {
                    if stream.read_buf(&mut unread).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                unread.clear();
                counts.requests.fetch_add(1, Ordering::SeqCst);
            }
            Send(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
            Finish => stream.shutdown().await.unwrap(),
            AwaitOrder => patiently(&counts.orders, 1).await,
            AwaitClose => assert_eq!(stream.read_buf(&mut unread).await.unwrap_or(0), 0, "no other request comes"),
        }
        counts.proceeded.add_permits(usize::from(ordered));
    }
    counts.done.add_permits(1);
}

/// Whether this is a request with its body. The gateway sends one at a time.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((header, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = header.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    body.len() == length.parse::<usize>().unwrap()
}

#[tokio::test]
async fn a_second_answer_behind_the_first_is_nobodys() {
    let glued = |first: &str| Send(format!("{first}HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n666"));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1250\r\n0\r\n\r\n";
    let no_body = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let scripts = [ANSWER, chunked, no_body].map(|first| vec![Read, glued(first), AwaitClose]);
    let origin = RawOrigin::start(scripts).await;
    let gate = origin.gateway().await;
    gate.get_points("bot", "1").await.is("1250");
    gate.get_points("bot", "2").await.is("1250");
    gate.get_points("bot", "3").await.is_refused(502, NO_ANSWER);
    gate.set_points("bot", "4", 5).await.is("1250");
    assert_eq!((origin.connections(), origin.requests()), (4, 4));
    origin.done(3).await;
}

#[tokio::test]
async fn guarantee_5_on_an_idle_connection_that_was_closed_nothing_is_sent() {
    let steps = || vec![Read, Send(ANSWER.into()), AwaitOrder, Finish, AwaitClose];
    let origin = RawOrigin::start([steps(), steps(), steps()]).await;
    let gate = origin.gateway().await;
    for member in 0..4 {
        gate.set_points("bot", &member.to_string(), 5).await.is("1250");
        if member < 3 {
            origin.proceed().await;
        }
    }
    assert_eq!((origin.connections(), origin.requests()), (4, 4));
    origin.done(3).await;
}

#[tokio::test]
async fn a_kept_connection_that_ends_under_a_read_costs_a_retry_and_under_a_write_the_answer() {
    let steps = || vec![Read, Send(ANSWER.into()), Read, Finish, AwaitClose];
    let origin = RawOrigin::start([steps(), steps()]).await;
    let gate = origin.gateway_with("1").await;
    gate.get_points("bot", "1").await.is("1250");
    gate.get_points("bot", "2").await.is("1250"); // its retry is on the second connection
    gate.set_points("bot", "3", 5).await.is_refused(502, NO_ANSWER);
    assert_eq!((origin.connections(), origin.requests()), (2, 4));
    gate.get_points("bot", "4").await.is("1250");
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_whole_then() {
    let finished = |bytes: &str| vec![Read, Send(bytes.into()), Finish, AwaitClose];
    let origin = RawOrigin::start([
        finished("HTTP/1.1 200 OK\r\n\r\n1250"),
        finished("HTTP/1.0 200 OK\r\n\r\n1250"),
        finished(ANSWER),
        finished("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1250"),
    ])
    .await;
    let gate = origin.gateway_after_reads(3).await;
    gate.get_points("bot", "3").await.is_refused(502, NO_ANSWER);
    assert_eq!(origin.connections(), 4);
    origin.done(4).await;
}

#[tokio::test]
async fn what_is_no_answer_is_20_at_once_and_its_connection_ends() {
    // One of each kind; `origin/http/answer.rs` and `wire/chunked.rs` have the rest.
    let scripts = [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n1250",
        "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n1",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;extension\r\n1250\r\n0\r\n\r\n",
    ]
    // The connection stays open, so that the gateway's deadline would be met instead.
    .map(|bytes| vec![Read, Send(bytes.into()), AwaitClose]);
    let count = scripts.len();
    let origin = RawOrigin::start(scripts).await;
    let gate = origin.gateway_with("3").await;
    for member in 0..count {
        gate.get_points("bot", &member.to_string()).await.is_refused(502, NO_ANSWER);
    }
    origin.done(count as u32).await;
    assert_eq!((origin.connections(), origin.requests()), (count, count), "none is asked twice");
}
