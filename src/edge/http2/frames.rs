//! Monitors the bytes between a connection and the `h2` crate, for what the crate does not bound: floods of frames that
//! request nothing, frames and header blocks that do not end, and a peer that takes no answer. It reads frame headers,
//! counts the fields of trailers, and changes no byte. It only reports; `http2` ends the connection. `fuzz` compares it
//! with a splitter that sees all bytes at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::Reason;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::OnTimeout;
use super::trailers::Trailers;
use crate::config::Server;
use crate::edge::timed_stream::WRITE_PART;
use crate::edge::transport::Transport;

/// The allowance of frames with which a connection begins, and its upper bound. A client begins with a handful
/// (SETTINGS, WINDOW_UPDATE, a PING), a browser with about twenty.
pub(super) const MAX_FRAMES: u32 = 1000;

/// Frames that each answered request adds, unless it was malformed. A request takes two (HEADERS, DATA), and some
/// clients send a WINDOW_UPDATE or two.
const FRAMES_PER_ANSWER: u32 = 16;

/// Frames that each second adds once the allowance is used up, so that PINGs may keep a connection alive for ever.
const FRAMES_PER_SECOND: u64 = 100;

/// Bytes of answers taken that add one frame. Bytes of a frame that asks for nothing that cost as much as another.
const BYTES_PER_FRAME: usize = 1024;

/// Bytes of answers taken for which a WINDOW_UPDATE may come that takes nothing of the allowance: a client may send one for the
/// stream and one for the connection with each DATA frame, which are short where a hundred answers share the connection's
/// window, but not for each byte.
const BYTES_PER_UPDATE: usize = 32;

/// The most such bytes: more than are on the way to a client whose windows are as large as they begin.
const MAX_TO_UPDATE: usize = 8 * 1024 * 1024;

/// Empty DATA frames, but those that end a body, after which the peer is asked to open another connection. The crate ends a
/// connection with the 101st, and 100 requests may be under way.
const MAX_EMPTY_DATA: u32 = 10;

/// Length of the connection preface, which comes before the first frame.
const PREFACE: usize = 24;

const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The highest id of a stream; the bit above it is reserved (RFC 9113, 4.1).
const MAX_STREAM: u32 = u32::MAX >> 1;

/// A connection's transport, shared by the `h2` crate, which reads and writes through it, and by those who ask what it
/// has seen.
#[derive(Clone, Debug)]
pub(super) struct MonitoredTransport(Arc<Mutex<Monitored>>);

#[derive(Debug)]
struct Monitored {
    /// `None` once the connection is over.
    transport: Option<Transport>,
    frames: Frames,
    /// Since when the peer has not taken what is due, and how many bytes it took since then.
    stalled: Option<Instant>,
    taken: usize,
}

impl MonitoredTransport {
    pub(super) fn new(transport: Transport) -> Self {
        let frames = Frames::new(Instant::now());
        let monitored = Monitored { transport: Some(transport), frames, stalled: None, taken: 0 };
        MonitoredTransport(Arc::new(Mutex::new(monitored)))
    }

    /// The requests under way, each of which has a clone; the connection has two.
    pub(super) fn requests(&self) -> usize {
        Arc::strong_count(&self.0).saturating_sub(2)
    }

    /// Records that a well-formed request was answered.
    pub(super) fn answered(&self) {
        self.0.lock().frames.allow(FRAMES_PER_ANSWER);
    }

    /// Whether more frames came than were allowed. Nothing is read any more then.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().frames.flooded
    }

    /// Whether the connection should take no more requests than are under way.
    pub(super) fn is_used_up(&self) -> bool {
        self.0.lock().frames.empty_data >= MAX_EMPTY_DATA
    }

    /// The next deadline of an unfinished frame or write.
    pub(super) fn deadline(&self, server: &Server) -> Option<(Instant, OnTimeout)> {
        let monitored = self.0.lock();
        let frame = monitored.frames.open_since.map(|since| {
            let timeout = if monitored.frames.is_data { server.body_timeout } else { server.header_timeout };
            (since + timeout, OnTimeout::GoAway(Reason::ENHANCE_YOUR_CALM))
        });
        let write = monitored.stalled.map(|since| (since + server.write_timeout, OnTimeout::Drop));
        frame.into_iter().chain(write).min_by_key(|(deadline, _)| *deadline)
    }

    /// Returns once how many fields the trailers of this stream had, pseudo-fields included.
    pub(super) fn trailer_fields(&self, stream: u32) -> Option<usize> {
        self.0.lock().frames.trailers.take_count(stream)
    }

    /// Whether the header of a request has begun and not ended.
    pub(super) fn is_within_header(&self) -> bool {
        self.0.lock().frames.is_header
    }

    /// The transport itself, once the connection is over.
    pub(super) fn take(&self) -> Option<Transport> {
        self.0.lock().transport.take()
    }
}

impl Monitored {
    fn transport(&mut self) -> io::Result<Pin<&mut Transport>> {
        self.transport.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Records the result of a write or flush, after which the peer has taken `taken` bytes more.
    fn wrote<T>(&mut self, polled: &Poll<io::Result<T>>, taken: usize) {
        if polled.is_pending() {
            if self.stalled.is_none() {
                (self.stalled, self.taken) = (Some(Instant::now()), 0);
            }
        } else {
            self.taken += taken;
            if self.taken >= WRITE_PART {
                self.stalled = None;
            }
        }
    }
}

impl AsyncRead for MonitoredTransport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let monitored = &mut *self.0.lock();
        if monitored.frames.flooded {
            return Poll::Pending; // the connection is being ended
        }
        let before = buffer.filled().len();
        ready!(monitored.transport()?.poll_read(cx, buffer))?;
        monitored.frames.read(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MonitoredTransport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let monitored = &mut *self.0.lock();
        let written = monitored.transport()?.poll_write(cx, bytes);
        let taken = if let Poll::Ready(Ok(n)) = &written { *n } else { 0 };
        monitored.frames.bytes_taken(taken);
        monitored.wrote(&written, taken);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let monitored = &mut *self.0.lock();
        let flushed = monitored.transport()?.poll_flush(cx);
        monitored.wrote(&flushed, WRITE_PART); // nothing is due after a flush
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().transport()?.poll_shutdown(cx)
    }
}

/// Finds the frames in a stream of bytes by their headers alone (RFC 9113, 4.1).
#[derive(Debug)]
struct Frames {
    header: [u8; FRAME_HEADER],
    header_read: usize,
    payload_left: usize,
    /// The kind of the unfinished frame, if its header has come.
    is_data: bool,
    is_header: bool,
    /// A header block has begun and its last frame has not come.
    in_block: bool,
    trailers: Trailers,
    /// Empty DATA frames that ended no body.
    empty_data: u32,
    /// Since when a frame or header block is unfinished.
    open_since: Option<Instant>,
    allowed: u32,
    allowed_at: Instant,
    /// Bytes taken that have not added a frame yet.
    taken: usize,
    /// Bytes taken for which WINDOW_UPDATEs may still come.
    to_update: usize,
    flooded: bool,
}

impl Frames {
    fn new(now: Instant) -> Self {
        Frames {
            header: [0; FRAME_HEADER],
            header_read: 0,
            payload_left: PREFACE, // skipped like a payload
            is_data: false,
            is_header: false,
            in_block: false,
            trailers: Trailers::default(),
            empty_data: 0,
            open_since: None,
            allowed: MAX_FRAMES,
            allowed_at: now,
            taken: 0,
            to_update: 0,
            flooded: false,
        }
    }

    /// Records that the peer took `bytes` bytes of answers.
    fn bytes_taken(&mut self, bytes: usize) {
        self.to_update = self.to_update.saturating_add(bytes).min(MAX_TO_UPDATE);
        self.taken += bytes;
        self.allow(u32::try_from(self.taken / BYTES_PER_FRAME).unwrap_or(u32::MAX));
        self.taken %= BYTES_PER_FRAME;
    }

    /// Follows the next bytes from the peer.
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = if self.payload_left > 0 {
                let used = bytes.len().min(self.payload_left);
                self.payload_left -= used;
                if self.is_header {
                    self.trailers.read(&bytes[..used]);
                }
                used
            } else {
                let used = bytes.len().min(FRAME_HEADER - self.header_read);
                self.header[self.header_read..][..used].copy_from_slice(&bytes[..used]);
                self.header_read += used;
                if self.header_read == FRAME_HEADER {
                    self.begin();
                }
                used
            };
            bytes = &bytes[used..];
            if self.is_between() {
                if self.is_header {
                    self.trailers.end();
                }
                self.open_since = None;
                (self.is_data, self.is_header) = (false, false);
            }
        }
        if !self.is_between() && self.open_since.is_none() {
            self.open_since = Some(Instant::now());
        }
    }

    fn is_between(&self) -> bool {
        self.header_read == 0 && self.payload_left == 0 && !self.in_block
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.header;
        self.header_read = 0;
        self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
        self.is_data = kind == DATA;
        self.is_header = matches!(kind, HEADERS | CONTINUATION);
        if self.is_header {
            self.in_block = flags & END_HEADERS == 0;
        }
        match kind {
            HEADERS => self.trailers.begin_headers(u32::from_be_bytes(stream) & MAX_STREAM, flags, self.payload_left),
            CONTINUATION => self.trailers.begin_continuation(self.payload_left),
            DATA if self.payload_left == 0 && flags & END_STREAM == 0 => self.empty_data += 1,
            _ => {}
        }
        if kind == WINDOW_UPDATE && self.to_update >= BYTES_PER_UPDATE {
            self.to_update -= BYTES_PER_UPDATE;
            return;
        }
        // A frame that asks for nothing costs as much as its bytes do; those that the crate knows are short.
        let asks_for_something = self.is_data || self.is_header;
        self.charge(if asks_for_something { 1 } else { 1 + self.payload_left / BYTES_PER_FRAME });
    }

    fn charge(&mut self, frames: usize) {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        if self.allowed < frames {
            let now = Instant::now();
            let earned = now.duration_since(self.allowed_at).as_secs().saturating_mul(FRAMES_PER_SECOND);
            self.allowed_at = if earned == 0 { self.allowed_at } else { now };
            self.allow(u32::try_from(earned).unwrap_or(u32::MAX));
            self.flooded |= self.allowed < frames;
        }
        self.allowed = self.allowed.saturating_sub(frames);
    }

    fn allow(&mut self, more: u32) {
        self.allowed = self.allowed.saturating_add(more).min(MAX_FRAMES);
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let [_, a, b, c] = (payload as u32).to_be_bytes();
        [vec![a, b, c, kind, flags, 0, 0, 0, 1], vec![7; payload]].concat()
    }

    fn frames() -> Frames {
        let mut frames = Frames::new(Instant::now());
        frames.read(&[0; PREFACE]);
        frames
    }

    #[tokio::test]
    async fn frames_are_told_apart_however_the_bytes_come() {
        let bytes =
            [frame(4, 0, 12), frame(HEADERS, 0, 30), frame(CONTINUATION, END_HEADERS, 0), frame(DATA, 1, 5)].concat();
        for piece in [1, 2, 5, 9, 1000] {
            let mut frames = frames();
            bytes.chunks(piece).for_each(|bytes| frames.read(bytes));
            assert!(frames.is_between() && frames.open_since.is_none());
            assert_eq!(frames.allowed, MAX_FRAMES - 4, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn what_is_unfinished_is_timed_from_its_first_byte() {
        let mut frames = frames();
        frames.read(&frame(HEADERS, 0, 30)); // the block is to go on
        let began = frames.open_since.expect("a block that did not end");
        frames.read(&frame(CONTINUATION, 0, 30)[..20]);
        assert_eq!(frames.open_since, Some(began));
        frames.read(&[&[7; 19][..], &frame(CONTINUATION, END_HEADERS, 1)].concat());
        assert_eq!(frames.open_since, None);
        frames.read(&frame(DATA, 0, 30)[..20]);
        assert!(frames.open_since.is_some() && frames.is_data);
        frames.read(&[&[7; 19][..], &frame(HEADERS, 0, 30)[..5]].concat());
        assert!(frames.open_since.is_some() && !frames.is_data, "it is no body that does not end now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_ends_and_an_honest_caller_never_does() {
        let ping = frame(6, 0, 8);
        let mut flood = frames();
        (0..MAX_FRAMES).for_each(|_| flood.read(&ping));
        assert!(!flood.flooded);
        flood.read(&ping);
        assert!(flood.flooded);

        let mut large = frames();
        let unknown = frame(0x55, 0, 16 * BYTES_PER_FRAME);
        (0..MAX_FRAMES / 17).for_each(|_| large.read(&unknown));
        assert!(!large.flooded, "it costs as much as its bytes");
        large.read(&unknown);
        assert!(large.flooded);

        let mut honest = frames();
        for _ in 0..100_000 {
            [frame(HEADERS, END_HEADERS, 40), frame(DATA, 1, 10), frame(8, 0, 4)].iter().for_each(|f| honest.read(f));
            honest.allow(FRAMES_PER_ANSWER);
        }
        let (mut gives_back, update) = (frames(), frame(WINDOW_UPDATE, 0, 4));
        gives_back.bytes_taken(1024 * 1024);
        (0..20_000).for_each(|_| gives_back.read(&update));
        assert!(!gives_back.flooded, "each has 52 bytes");
        (0..20_000).for_each(|_| gives_back.read(&update));
        assert!(gives_back.flooded);
        let mut slow = frames();
        for _ in 0..10_000 {
            slow.read(&ping);
            tokio::time::advance(Duration::from_millis(20)).await;
        }
        assert!(!honest.flooded && !slow.flooded);
    }
}
