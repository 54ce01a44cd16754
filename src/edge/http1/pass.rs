//! Gives the connection to Pingora for one request that is passed on, and takes it back. Pingora sees the bytes of this
//! request only: what a caller sends behind it stays here. The connection is used again where the length of the body was
//! known from the header; behind chunks or an upgrade it ends.

use tokio::time::Instant;

use super::Connection;
use super::header::Header;
use crate::edge::io::Bounded;
use crate::edge::pass::{Left, Passed};
use crate::edge::timed_stream::TimedStream;
use crate::edge::transport::set_reset;
use crate::wire::Framing;

/// A request for Pingora, with what was read of it.
#[derive(Debug)]
pub(super) struct HandedOver {
    passed: Box<Passed>,
    /// Its header and what has come of its body.
    read: Vec<u8>,
    /// Bytes of it that are still to come; `None`: nobody knows.
    to_come: Option<u64>,
    /// What was read behind it.
    surplus: Vec<u8>,
}

impl HandedOver {
    /// `unread` begins with the request.
    pub(super) fn new(mut passed: Box<Passed>, header: &Header<'_>, unread: &[u8]) -> Self {
        let length = header.framing.and_then(Framing::length).filter(|_| !header.fields.upgrade);
        passed.keeps_connection = length.is_some() && header.keep_alive;
        let come = (unread.len() - header.length) as u64;
        let own = header.length + length.map_or(come, |length| length.min(come)) as usize;
        // The target goes on without its authority (RFC 9112, 3.2.1).
        let target = unread.iter().position(|b| *b == b' ').map_or(0, |space| space + 1);
        let version = target + unread[target..].iter().position(|b| *b == b' ').unwrap_or(0);
        let slash: &[u8] = if header.target.starts_with(b"/") { b"" } else { b"/" };
        let read = [&unread[..target], slash, header.target, &unread[version..own]].concat();
        let surplus = unread[own..].to_vec();
        HandedOver { passed, read, to_come: length.map(|length| length.saturating_sub(come)), surplus }
    }
}

impl<'e> Connection<'e> {
    /// Passes a request on. Returns the connection if another one may follow.
    pub(super) async fn pass(mut self, request: HandedOver) -> Option<Connection<'e>> {
        self.send().await.ok()?;
        let Connection { edge, stream, peer, stop, .. } = self;
        let HandedOver { passed, read, to_come, surplus } = request;
        let (transport, write_timeout) = stream.into_parts();
        let io = Bounded::for_one_request(transport, write_timeout, to_come, surplus);
        let mut lent = io.stream();
        lent.rewind(&read);
        let left = edge.proxy.pass(Box::new(lent), passed, Some(&stop)).await;
        let surplus = io.take_surplus();
        let transport = io.take()?;
        match left {
            Left::Open => {
                let now = Instant::now();
                let mut next = Connection::new(edge, transport, peer, stop);
                (next.buffer, next.arrived, next.header_began, next.answered) = (surplus, now, now, Some(now));
                return Some(next);
            }
            Left::Closing => TimedStream::new(transport, write_timeout).close().await,
            Left::Cut => set_reset(&transport),
        }
        None
    }
}
