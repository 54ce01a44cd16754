use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Stands between a gateway and PostgreSQL, and lets nothing through while it is told so. Connections stay open then,
/// and are taken, as on a network that swallows everything.
pub struct Proxy {
    port: u16,
    holds: watch::Sender<Holds>,
    task: JoinHandle<()>,
}

/// What a proxy does not let through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holds {
    Nothing,
    /// Connections on which somebody listens for notices.
    Listeners,
    /// Whatever asks for a commit.
    Commits,
    Everything,
}

impl Proxy {
    /// A proxy to this port.
    pub async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (holds, told) = watch::channel(Holds::Nothing);
        let task = tokio::spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let Ok(there) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
                    let ((read, write), (read_back, write_back)) = (here.into_split(), there.into_split());
                    let listens = Arc::new(AtomicBool::new(false));
                    tokio::spawn(pump(read, write_back, told.clone(), listens.clone()));
                    pump(read_back, write, told, listens).await;
                });
            }
        });
        Proxy { port: own, holds, task }
    }

    /// The URL of what is behind this proxy at `url`.
    pub fn of(&self, url: &str, port: u16) -> String {
        url.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }

    pub fn hold(&self, what: Holds) {
        self.holds.send(what).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut holds: watch::Receiver<Holds>,
    listens: Arc<AtomicBool>,
) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        if chunk[..read].windows(6).any(|word| word == b"LISTEN") {
            listens.store(true, Ordering::SeqCst);
        }
        let commits = chunk[..read].windows(6).any(|word| word == b"COMMIT");
        let passes = |holds: &Holds| match holds {
            Holds::Nothing => true,
            Holds::Commits => !commits,
            Holds::Listeners => !listens.load(Ordering::SeqCst),
            Holds::Everything => false,
        };
        if holds.wait_for(passes).await.is_err() || to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}
