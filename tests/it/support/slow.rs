//! Slow clients in large numbers, of seven kinds, for tests and benchmarks of what they cost others. A client that the
//! gateway disconnects comes again, and all of them follow seeds. Only the gateway ends a connection, until the value
//! is dropped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, header};
use super::{PATIENCE, TestGateway, TlsClient, eventually};

/// A way to hold a place on a gateway with TLS and to give little for it.
#[derive(Clone, Copy, Debug)]
pub enum Slow {
    /// A header of HTTP/1.1, a byte at a time.
    Header,
    /// A body of HTTP/1.1, a byte at a time.
    Body,
    /// Requests whose answers are not read.
    Answers,
    /// One request, and then nothing.
    Idle,
    /// The beginning of a TLS handshake.
    Handshake,
    /// Streams of HTTP/2 whose answers have no window.
    Window,
    /// A CONTINUATION frame of HTTP/2, a byte at a time.
    Continuation,
}

impl Slow {
    pub const ALL: [Slow; 7] =
        [Slow::Header, Slow::Body, Slow::Answers, Slow::Idle, Slow::Handshake, Slow::Window, Slow::Continuation];
}

/// Streams that one slow client of HTTP/2 opens every ten pauses.
const STREAMS: usize = 5;

/// Pauses within which all of them have come.
const SPREAD: f64 = 20.0;

/// Slow clients of some kinds in equal parts. Whoever is shown out comes again; all leave when this
/// is dropped.
pub struct SlowClients {
    clients: Vec<JoinHandle<()>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Clients that have had their place at least once.
    came: AtomicUsize,
    shown_out: AtomicUsize,
}

/// What all of them know.
struct Target {
    address: SocketAddr,
    http_1: TlsClient,
    http_2: TlsClient,
    get_points: Vec<u8>,
    /// For an answer that is long.
    get_reviews: Vec<u8>,
    /// The header block of a getPoints.
    block: Vec<u8>,
    /// Between two bytes of what drips.
    pause: Duration,
}

impl SlowClients {
    /// This many, which drip a byte each `pause`. The gateway needs TLS and the key `bot`.
    pub fn start(gate: &TestGateway, kinds: &[Slow], count: usize, pause: Duration) -> SlowClients {
        let target = Arc::new(Target {
            address: gate.address(),
            http_1: gate.tls_client(&["http/1.1"]),
            http_2: gate.tls_client(&["h2"]),
            get_points: gate.request("getPoints", "bot", "memberID=7").bytes(),
            get_reviews: gate.request("getReviews", "bot", "memberID=7").bytes(),
            block: header(gate, "/getPoints"),
            pause,
        });
        let counts = Arc::<Counts>::default();
        let clients = kinds.iter().copied().cycle().take(count).zip(1..).map(|(kind, seed)| {
            let (target, counts) = (target.clone(), counts.clone());
            let mut random = fastrand::Rng::with_seed(seed);
            tokio::spawn(async move {
                let mut came = false;
                // They come one by one and not as a storm, which would be no slow client's way.
                tokio::time::sleep(target.pause.mul_f64(SPREAD * random.f64())).await;
                loop {
                    let mut arrived = || {
                        counts.came.fetch_add(usize::from(!came), Ordering::Relaxed);
                        came = true;
                    };
                    // However a connection ends, it is the gateway that ends it.
                    let _ = target.hold(kind, &mut arrived).await;
                    counts.shown_out.fetch_add(usize::from(came), Ordering::Relaxed);
                    tokio::time::sleep(target.pause.mul_f64(random.f64())).await;
                }
            })
        });
        SlowClients { clients: clients.collect(), counts }
    }

    /// Waits until each of them has had its place.
    pub async fn have_come(&self) {
        let all = self.clients.len();
        eventually(4 * PATIENCE, "all slow clients are there", || async {
            self.counts.came.load(Ordering::Relaxed) == all
        })
        .await;
    }

    /// How often one of them was shown out.
    pub fn shown_out(&self) -> usize {
        self.counts.shown_out.load(Ordering::Relaxed)
    }
}

impl Drop for SlowClients {
    fn drop(&mut self) {
        self.clients.iter().for_each(JoinHandle::abort);
    }
}

impl Target {
    /// Holds one connection until the gateway ends it.
    async fn hold(&self, kind: Slow, arrived: &mut impl FnMut()) -> io::Result<()> {
        match kind {
            Slow::Header => {
                let mut stream = self.http_1.connect(self.address).await?;
                stream.write_all(b"POST /getPoints HTTP/1.1\r\nHost: h\r\nX-Slow: ").await?;
                arrived();
                self.drip(stream).await
            }
            Slow::Body => {
                let mut stream = self.http_1.connect(self.address).await?;
                let text = String::from_utf8_lossy(&self.get_points).into_owned();
                let (head, _) = text.split_once("\r\n\r\n").expect("a header");
                stream.write_all(head.replace("Length: 10", "Length: 4000").as_bytes()).await?;
                stream.write_all(b"\r\n\r\n").await?;
                arrived();
                self.drip(stream).await
            }
            Slow::Answers => {
                // Little room on this side, or the kernel would take them all.
                let socket = TcpSocket::new_v4()?;
                socket.set_recv_buffer_size(4096)?;
                let mut stream = self.http_1.shake_hands(socket.connect(self.address).await?).await?;
                stream.write_all(&self.get_reviews).await?;
                arrived();
                loop {
                    stream.write_all(&self.get_reviews).await?;
                }
            }
            Slow::Idle => {
                let mut stream = self.http_1.connect(self.address).await?;
                stream.write_all(&self.get_points).await?;
                stream.read_u8().await?;
                arrived();
                read_all(&mut stream).await
            }
            Slow::Handshake => {
                let mut stream = TcpStream::connect(self.address).await?;
                stream.write_all(&[0x16, 0x03, 0x01, 0x01, 0x00, 1, 0]).await?;
                arrived();
                let mut end = Vec::new();
                stream.read_to_end(&mut end).await.map(drop)
            }
            Slow::Window => {
                let mut stream = self.http_2.connect(self.address).await?;
                // SETTINGS_INITIAL_WINDOW_SIZE: 0.
                stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat()).await?;
                let mut ids = (1..).step_by(2);
                loop {
                    for id in ids.by_ref().take(STREAMS) {
                        let header = frame(HEADERS, END_HEADERS, id, &self.block);
                        stream.write_all(&[header, frame(DATA, END_STREAM, id, b"memberID=7")].concat()).await?;
                    }
                    arrived();
                    // Those that are dropped are replaced.
                    match timeout(10 * self.pause, read_all(&mut stream)).await {
                        Ok(ended) => return ended,
                        Err(_) => stream.flush().await?,
                    }
                }
            }
            Slow::Continuation => {
                let mut stream = self.http_2.connect(self.address).await?;
                stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
                stream.write_all(&frame(HEADERS, 0, 1, &self.block)).await?;
                stream.write_all(&frame(CONTINUATION, END_HEADERS, 1, &[0; 10_000])[..9]).await?;
                arrived();
                self.drip(stream).await
            }
        }
    }

    /// A byte now and then until the gateway ends it.
    async fn drip(&self, mut stream: TlsStream<TcpStream>) -> io::Result<()> {
        let mut buffer = [0; 1024];
        loop {
            tokio::select! {
                read = stream.read(&mut buffer) => if read? == 0 { return Ok(()) },
                () = tokio::time::sleep(self.pause) => stream.write_all(b"x").await?,
            }
            stream.flush().await?;
        }
    }
}

async fn read_all(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    stream.flush().await?;
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}
