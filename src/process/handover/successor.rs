//! The predecessor's side of a hand-over: gives the listening sockets to the process that takes over, and reports
//! writes to it for as long as this process lives. It sees the gateway only through its hand-over methods.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::message::{MESSAGE_TIMEOUT, Message, READY_TIMEOUT, VERSION, has_ended, no_message, unexpected};
use super::{Handover, HandoverListener, PeerConnection};
use crate::edge::ListeningSocket;
use crate::gateway::{Gateway, MAX_WRITE_NOTICES, WriteEvent, WriteNotice};
use crate::process::StopReason;

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// How long a message that may have been received already is waited for after its time limit.
const LAST_CHECK: Duration = Duration::from_millis(100);

const BUSY: &str = "another process is taking over; look at its log and try again";
const HANDED_OVER: &str = "this process has handed over already; try again";

/// A process that takes over or has taken over.
struct Successor {
    peer: PeerConnection,
    /// The writes of this process.
    notices: mpsc::Receiver<WriteNotice>,
    /// The notices that the successor has not acknowledged yet: of a write's begin, or (`true`) of its end.
    unacknowledged: HashMap<(u64, bool), oneshot::Sender<()>>,
    /// It accepts connections.
    accepts: bool,
}

/// Publishes this process's socket, hands over to the next process that connects, and reports writes to it. Ends with
/// the process, or where no successor can connect.
pub(super) async fn run(
    handover: Handover,
    gateway: Arc<Gateway>,
    end: oneshot::Sender<StopReason>,
    in_progress: Arc<AtomicBool>,
) {
    let Handover { mut listener, sockets } = handover;
    if let Err(error) = listener.publish() {
        let path = listener.path().display();
        tracing::error!(%error, %path, "cannot listen on server.handover; no other process can take over");
        return;
    }
    let mut successor = loop {
        in_progress.store(false, Ordering::SeqCst);
        let Some(peer) = accept(&listener).await else { continue };
        in_progress.store(true, Ordering::SeqCst);
        let to = peer.pid();
        tracing::info!(to, "a process asks to take over");
        let (send_notice, notices) = mpsc::channel(MAX_WRITE_NOTICES);
        let mut successor = Successor { peer, notices, unacknowledged: HashMap::new(), accepts: false };
        let result = tokio::select! {
            result = successor.hand_over(&sockets, &gateway, send_notice) => result,
            never = refuse_others(&listener, BUSY) => match never {},
        };
        let Err(error) = result else { break successor };
        gateway.handover.cancel();
        gateway.shared_limits().inspect(|limits| limits.stay());
        tracing::warn!(to, %error, "the other process did not take over; this one goes on as before");
    };
    // Open copies would keep the addresses in use as long as this process drains.
    drop(sockets);
    let _ = end.send(StopReason::HandedOver { to: successor.peer.pid() });
    tokio::select! {
        Err(error) = successor.report_writes() => tracing::warn!(%error, "lost the connection to the successor"),
        never = refuse_others(&listener, HANDED_OVER) => match never {},
    }
    drop(successor); // ends every wait for an acknowledgement
    match refuse_others(&listener, HANDED_OVER).await {}
}

async fn accept(listener: &HandoverListener) -> Option<PeerConnection> {
    match listener.accept().await {
        Ok(peer) => Some(peer),
        Err(error) => {
            tracing::warn!(%error, path = %listener.path().display(), "cannot accept a connection at server.handover");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

/// Refuses every process that connects, for ever.
async fn refuse_others(listener: &HandoverListener, why: &str) -> Infallible {
    loop {
        let Some(mut peer) = accept(listener).await else { continue };
        let why = why.to_owned();
        tokio::spawn(async move {
            // Its message is read first: closing a connection with unread data may discard the refusal.
            if peer.message_within(MESSAGE_TIMEOUT).await.is_ok() {
                let _ = peer.send_message(&Message::Refused { why }).await; // the process may have ended
            }
        });
    }
}

impl Successor {
    /// The exchange up to the moment from which the addresses are the successor's.
    async fn hand_over(
        &mut self,
        sockets: &[ListeningSocket],
        gateway: &Gateway,
        send_notice: mpsc::Sender<WriteNotice>,
    ) -> io::Result<()> {
        let result = async {
            self.give_sockets(sockets).await?;
            if let Some(limits) = gateway.shared_limits() {
                limits.leave().await; // the successor's callers need what this process holds for them
            }
            let writes = gateway.handover.begin(send_notice);
            self.peer.send_message(&Message::Accept).await?;
            for (write, member, event) in writes {
                let (acknowledged, _) = oneshot::channel(); // nobody waits: the write began before the hand-over
                self.send_notice(WriteNotice { write, member, event, acknowledged }).await?;
            }
            self.wait_until_it_accepts().await?;
            self.peer.send_message(&Message::Committed).await
        };
        let result = result.await;
        // A process that continues too late must not serve together with this one.
        if let Err(error) = &result
            && !has_ended(error)
        {
            let why = format!("the process that serves goes on: {error}");
            let _ = self.peer.send_message(&Message::Refused { why }).await;
        }
        result
    }

    /// Gives the listening sockets, and waits until the successor has prepared everything else.
    async fn give_sockets(&mut self, sockets: &[ListeningSocket]) -> io::Result<()> {
        let peer = &mut self.peer;
        match peer.message_within(MESSAGE_TIMEOUT).await?.0 {
            Message::Hello { version: VERSION } => {}
            Message::Hello { version } => {
                return Err(io::Error::other(format!(
                    "this process hands over by version {VERSION} and the new one by {version}; stop this one and start \
                     the new one"
                )));
            }
            other => return Err(unexpected(&other)),
        }
        for socket in sockets {
            let message = Message::Socket { asked: socket.name().to_owned() };
            peer.sender().send_message(&message, Some(socket.socket())).await?;
        }
        peer.send_message(&Message::SocketsSent { sockets: sockets.len() }).await?;
        match peer.message_within(READY_TIMEOUT).await?.0 {
            Message::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Reports writes until the successor accepts connections.
    async fn wait_until_it_accepts(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        while !self.accepts {
            let left = deadline.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                received = self.peer.message_within(left) => {
                    let (message, _) = match received {
                        // If this process itself was stopped, the message may have been received already.
                        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                            timeout(LAST_CHECK, self.peer.message()).await.map_err(|_| no_message(MESSAGE_TIMEOUT))??
                        }
                        received => received?,
                    };
                    self.take(message)?;
                }
                Some(notice) = self.notices.recv() => self.send_notice(notice).await?,
            }
        }
        Ok(())
    }

    /// Reports writes until the connection ends.
    async fn report_writes(&mut self) -> io::Result<Infallible> {
        loop {
            tokio::select! {
                received = self.peer.message() => self.take(received?.0)?,
                Some(notice) = self.notices.recv() => self.send_notice(notice).await?,
            }
        }
    }

    async fn send_notice(&mut self, notice: WriteNotice) -> io::Result<()> {
        let WriteNotice { write, member, event, acknowledged } = notice;
        let member = member.get();
        let (message, ended) = match event {
            WriteEvent::Begun => (Message::WriteBegun { write, member }, false),
            WriteEvent::Ended { settled } => (Message::WriteEnded { write, member, settled }, true),
        };
        self.unacknowledged.insert((write, ended), acknowledged);
        let sender = self.peer.sender();
        let mut sending = pin!(sender.send_message(&message, None));
        loop {
            // It acknowledges meanwhile: if neither read while it sends, both would wait for each other.
            tokio::select! {
                biased;
                sent = &mut sending => return sent,
                received = self.peer.message() => self.take(received?.0)?,
            }
        }
    }

    /// Takes a message of the successor that is not its first.
    fn take(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Accepting if !self.accepts => self.accepts = true,
            Message::Acknowledged { write, over } => {
                if let Some(acknowledged) = self.unacknowledged.remove(&(write, over)) {
                    let _ = acknowledged.send(()); // the write may have given up waiting
                }
            }
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }
}
