//! Callers that ask all the time, none of whose requests may fail, and what they count together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Connection, PATIENCE, Request, TlsClient, eventually};

/// What the callers of one test share.
#[derive(Default)]
pub struct Crowd {
    done: AtomicBool,
    pub answered: AtomicUsize,
    /// Connections that an answer told to be over.
    pub told: AtomicUsize,
}

impl Crowd {
    pub fn goes_on(&self) -> bool {
        !self.done.load(Ordering::Relaxed)
    }

    /// Lets each caller end after its next answer.
    pub fn end(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Waits until this many more requests were answered.
    pub async fn answers(&self, more: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually(PATIENCE, "answers", || async { self.answered.load(Ordering::Relaxed) >= goal }).await;
    }

    /// Waits for these callers, and asserts that no request failed.
    pub async fn all(tasks: Vec<JoinHandle<()>>) {
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.expect("a caller hangs").expect("a request failed");
        }
    }
}

/// A caller that sends one request again and again.
#[derive(Clone)]
pub struct Caller {
    pub crowd: Arc<Crowd>,
    pub address: SocketAddr,
    pub tls: Option<Arc<TlsClient>>,
    pub ask: Request,
    /// What each answer must be.
    pub answer: &'static str,
    /// How long it idles after an answer.
    pub rest: Duration,
}

impl Caller {
    /// Asks over kept connections, each for as long as nothing says that it is over.
    pub async fn keeps(self) {
        while self.crowd.goes_on() {
            let mut connection = self.connect().await;
            while self.crowd.goes_on() {
                if self.asks(&mut connection).await {
                    self.crowd.told.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
    }

    /// Asks each time over a new connection.
    pub async fn reconnects(self) {
        while self.crowd.goes_on() {
            self.asks(&mut self.connect().await).await;
        }
    }

    async fn connect(&self) -> Connection {
        match &self.tls {
            Some(tls) => Connection::over(tls.connect(self.address).await.unwrap()),
            None => Connection::to(self.address).await,
        }
    }

    /// Whether the answer says that the connection is over.
    async fn asks(&self, connection: &mut Connection) -> bool {
        let answer = connection.ask(&self.ask).await;
        answer.is(self.answer);
        self.crowd.answered.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.rest).await; // the caller's pace, not a wait
        answer.closes()
    }
}
