//! A TCP proxy between a gateway and PostgreSQL or Redis that can hold back traffic, slow it down, cut a connection at a
//! certain statement, or lead to another server. It recognises statements by their text in the bytes, which works only
//! without TLS.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Stands between a gateway and a server, and lets nothing through while it is told so. Connections stay open then,
/// and are taken, as on a network that swallows everything.
pub struct Proxy {
    port: u16,
    holds: watch::Sender<Holds>,
    /// The port of the server behind it.
    leads: watch::Sender<u16>,
    cuts: Cuts,
    task: JoinHandle<()>,
}

/// What ends the next connection on which it is said this way.
type Cuts = Arc<Mutex<Option<(Direction, &'static str)>>>;

/// What a proxy does not let through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holds {
    Nothing,
    /// Connections on which the store's change feed is read.
    Feed,
    /// Whatever asks for a commit.
    Commits,
    /// What is sent to the server.
    ToServer,
    /// What the server sends.
    FromServer,
    Everything,
    /// Each part for so long.
    For(Duration),
}

/// Which way a pump's bytes go.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    FromServer,
}

impl Proxy {
    /// A proxy to this port.
    pub async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (holds, told) = watch::channel(Holds::Nothing);
        let (leads, led) = watch::channel(port);
        let cuts = Cuts::default();
        let task = tokio::spawn({
            let cuts = cuts.clone();
            async move {
                while let Ok((here, _)) = listener.accept().await {
                    tokio::spawn(connect(here, led.clone(), told.clone(), cuts.clone()));
                }
            }
        });
        Proxy { port: own, holds, leads, cuts, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of what is behind this proxy at `url`.
    pub fn of(&self, url: &str, port: u16) -> String {
        url.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }

    pub fn hold(&self, what: Holds) {
        self.holds.send(what).unwrap();
    }

    /// Ends every connection, and leads new ones to this port: another server has the address now.
    pub fn lead_to(&self, port: u16) {
        self.leads.send(port).unwrap();
    }

    /// Ends the connection on which the server is told this next, and lets nothing of it through.
    pub fn cut_at(&self, word: &'static str) {
        *self.cuts.lock().unwrap() = Some((Direction::ToServer, word));
    }

    /// The same of what the server answers.
    pub fn cut_answer(&self, word: &'static str) {
        *self.cuts.lock().unwrap() = Some((Direction::FromServer, word));
    }

    /// Whether the connection was ended that [`Proxy::cut_at`] meant.
    pub fn has_cut(&self) -> bool {
        self.cuts.lock().unwrap().is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(here: TcpStream, mut led: watch::Receiver<u16>, told: watch::Receiver<Holds>, cuts: Cuts) {
    let port = *led.borrow_and_update();
    let Ok(there) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let ((read, write), (read_back, write_back)) = (here.into_split(), there.into_split());
    let (is_feed, cut) = (AtomicBool::new(false), Notify::new());
    let both = async {
        tokio::join!(
            pump(Direction::ToServer, read, write_back, told.clone(), &is_feed, &cuts, &cut),
            pump(Direction::FromServer, read_back, write, told.clone(), &is_feed, &cuts, &cut)
        )
    };
    tokio::select! {
        _ = both => {}
        _ = led.changed() => {}
        () = cut.notified() => {}
    }
}

async fn pump(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut holds: watch::Receiver<Holds>,
    is_feed: &AtomicBool,
    cuts: &Cuts,
    cut: &Notify,
) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        let says = |word: &str| chunk[..read].windows(word.len()).any(|part| part == word.as_bytes());
        if says("FROM change WHERE seq >=") || says("max(seq), 0) FROM change") {
            is_feed.store(true, Ordering::SeqCst);
        }
        if cuts.lock().unwrap().take_if(|(way, word)| *way == direction && says(word)).is_some() {
            return cut.notify_one();
        }
        let commits = says("COMMIT\0");
        let passes = |holds: &Holds| match holds {
            Holds::Nothing | Holds::For(_) => true,
            Holds::ToServer => direction != Direction::ToServer,
            Holds::FromServer => direction != Direction::FromServer,
            Holds::Commits => !commits,
            Holds::Feed => !is_feed.load(Ordering::SeqCst),
            Holds::Everything => false,
        };
        let Ok(held) = holds.wait_for(passes).await.map(|holds| *holds) else { return };
        if let Holds::For(time) = held {
            sleep(time).await; // the slowness itself
        }
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}
