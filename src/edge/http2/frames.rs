//! Watches the bytes between a connection and the `h2` crate, and bounds what the crate leaves to its user: floods of
//! frames that ask for nothing, frames and header blocks that do not end, and a peer that takes no answer. It reads
//! frame headers and counts the fields of trailers, and changes no byte. What it finds is reported; `http2` ends the
//! connection. `fuzz` compares it with a splitter that sees all bytes at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::trailers::Trailers;
use crate::config::Server;
use crate::edge::line::LEAST_TAKEN;
use crate::edge::pipe::Pipe;

/// Frames that a caller may send before it has been answered once. An honest one sends a handful
/// (SETTINGS, WINDOW_UPDATE, a PING); a browser's start is about twenty.
const FRAMES_AT_FIRST: u32 = 1000;

/// And the most it may save up.
const MAX_FRAMES: u32 = FRAMES_AT_FIRST;

/// Frames more for each request answered, unless it was malformed. One takes two (HEADERS, DATA), and
/// some clients add a WINDOW_UPDATE or two.
const FRAMES_PER_ANSWER: u32 = 16;

/// Frames more for each second that passed when all are used up: PINGs that keep a connection
/// alive, and whatever else is slow, go on for ever. Nothing that sends so few is a flood.
const FRAMES_PER_SECOND: u64 = 100;

/// Bytes of answers taken for which one frame more is allowed: a client may say what it took, of the stream and of
/// the connection, each time it took some. One that says so byte by byte is a flood.
const BYTES_PER_FRAME: usize = 1024;

/// What a client says before its first frame.
const PREFACE: usize = 24;

const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The highest id of a stream; the bit above it is reserved (RFC 9113, 4.1).
const MAX_STREAM: u32 = u32::MAX >> 1;

/// A connection's bytes on their way to and from the `h2` crate, watched for what the crate leaves
/// to its user: floods of frames that ask for nothing (PING, SETTINGS, resets, empty DATA, streams
/// over the limit, requests made to be refused), frames and headers that never end, and a peer that
/// takes nothing.
#[derive(Clone, Debug)]
pub(super) struct Watched(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// `None` once the connection is over.
    pipe: Option<Pipe>,
    frames: Frames,
    /// Since when the peer has not taken what is due, and what it took since then.
    stalled: Option<Instant>,
    taken: usize,
}

/// Why a connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// A frame or a header block did not end in time.
    Frame,
    /// What is due was not taken in time.
    Write,
}

impl Watched {
    pub(super) fn new(pipe: Pipe) -> Self {
        let frames = Frames::new(Instant::now());
        Watched(Arc::new(Mutex::new(Inner { pipe: Some(pipe), frames, stalled: None, taken: 0 })))
    }

    /// A good request was answered.
    pub(super) fn answered(&self) {
        self.0.lock().frames.allow(FRAMES_PER_ANSWER);
    }

    /// More frames came than are borne; nothing is read any more.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().frames.flooded
    }

    /// What is overdue first, and when.
    pub(super) fn deadline(&self, server: &Server) -> Option<(Instant, Overdue)> {
        let inner = self.0.lock();
        let frame = inner.frames.open_since.map(|since| {
            let most = if inner.frames.is_data { server.body_timeout } else { server.header_timeout };
            (since + most, Overdue::Frame)
        });
        let write = inner.stalled.map(|since| (since + server.write_timeout, Overdue::Write));
        frame.into_iter().chain(write).min_by_key(|(at, _)| *at)
    }

    /// How many fields the trailers of this stream had, pseudo-fields among them; told once.
    pub(super) fn trailer_fields(&self, stream: u32) -> Option<usize> {
        self.0.lock().frames.trailers.count(stream)
    }

    /// A request's header has begun and not ended.
    pub(super) fn is_within_header(&self) -> bool {
        self.0.lock().frames.is_header
    }

    /// The pipe itself, once the connection is over.
    pub(super) fn take_pipe(&self) -> Option<Pipe> {
        self.0.lock().pipe.take()
    }
}

impl Inner {
    fn pipe(&mut self) -> io::Result<Pin<&mut Pipe>> {
        self.pipe.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn note<T>(&mut self, polled: &Poll<io::Result<T>>, taken: usize) {
        if polled.is_pending() {
            if self.stalled.is_none() {
                (self.stalled, self.taken) = (Some(Instant::now()), 0);
            }
        } else {
            self.taken += taken;
            if self.taken >= LEAST_TAKEN {
                self.stalled = None;
            }
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        if inner.frames.flooded {
            return Poll::Pending; // whoever polls this ends the connection
        }
        let before = buffer.filled().len();
        ready!(inner.pipe()?.poll_read(cx, buffer))?;
        inner.frames.take(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.lock();
        let written = inner.pipe()?.poll_write(cx, bytes);
        let taken = if let Poll::Ready(Ok(n)) = &written { *n } else { 0 };
        inner.frames.were_taken(taken);
        inner.note(&written, taken);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.lock();
        let flushed = inner.pipe()?.poll_flush(cx);
        inner.note(&flushed, LEAST_TAKEN); // nothing is due any more
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().pipe()?.poll_shutdown(cx)
    }
}

/// Follows the frames in a stream of bytes, by their headers alone (RFC 9113, 4.1).
#[derive(Debug)]
struct Frames {
    preface_left: usize,
    header: [u8; FRAME_HEADER],
    header_read: usize,
    payload_left: usize,
    /// Of what is unfinished, as far as its kind has come.
    is_data: bool,
    is_header: bool,
    /// A header block began whose last frame has not come.
    in_block: bool,
    trailers: Trailers,
    /// Since when a frame or header block is unfinished.
    open_since: Option<Instant>,
    allowed: u32,
    allowed_at: Instant,
    /// Bytes taken for which no frame was allowed yet.
    bytes_taken: usize,
    flooded: bool,
}

impl Frames {
    fn new(now: Instant) -> Self {
        Frames {
            preface_left: PREFACE,
            header: [0; FRAME_HEADER],
            header_read: 0,
            payload_left: 0,
            is_data: false,
            is_header: false,
            in_block: false,
            trailers: Trailers::default(),
            open_since: None,
            allowed: FRAMES_AT_FIRST,
            allowed_at: now,
            bytes_taken: 0,
            flooded: false,
        }
    }

    /// The peer took so many bytes of answers.
    fn were_taken(&mut self, bytes: usize) {
        self.bytes_taken += bytes;
        self.allow(u32::try_from(self.bytes_taken / BYTES_PER_FRAME).unwrap_or(u32::MAX));
        self.bytes_taken %= BYTES_PER_FRAME;
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = if self.preface_left > 0 {
                let used = bytes.len().min(self.preface_left);
                self.preface_left -= used;
                used
            } else if self.payload_left > 0 {
                let used = bytes.len().min(self.payload_left);
                self.payload_left -= used;
                if self.is_header {
                    self.trailers.take(&bytes[..used]);
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
                (self.is_data, self.is_header) = (false, false); // what comes next is not known yet
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
            HEADERS => self.trailers.headers(u32::from_be_bytes(stream) & MAX_STREAM, flags, self.payload_left),
            CONTINUATION => self.trailers.continuation(self.payload_left),
            _ => {}
        }
        self.charge();
    }

    fn charge(&mut self) {
        if self.allowed == 0 {
            let now = Instant::now();
            let earned = now.duration_since(self.allowed_at).as_secs().saturating_mul(FRAMES_PER_SECOND);
            if earned == 0 {
                self.flooded = true;
                return;
            }
            self.allowed_at = now;
            self.allow(u32::try_from(earned).unwrap_or(u32::MAX));
        }
        self.allowed -= 1;
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
        frames.take(&[0; PREFACE]);
        frames
    }

    #[tokio::test]
    async fn frames_are_told_apart_however_the_bytes_come() {
        let bytes =
            [frame(4, 0, 12), frame(HEADERS, 0, 30), frame(CONTINUATION, END_HEADERS, 0), frame(DATA, 1, 5)].concat();
        for piece in [1, 2, 5, 9, 1000] {
            let mut frames = frames();
            bytes.chunks(piece).for_each(|bytes| frames.take(bytes));
            assert!(frames.is_between() && frames.open_since.is_none());
            assert_eq!(frames.allowed, FRAMES_AT_FIRST - 4, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn what_is_unfinished_is_timed_from_its_first_byte() {
        let mut frames = frames();
        frames.take(&frame(HEADERS, 0, 30)); // the block is to go on
        let began = frames.open_since.expect("a block that did not end");
        frames.take(&frame(CONTINUATION, 0, 30)[..20]);
        assert_eq!(frames.open_since, Some(began));
        frames.take(&[&[7; 19][..], &frame(CONTINUATION, END_HEADERS, 1)].concat());
        assert_eq!(frames.open_since, None);
        frames.take(&frame(DATA, 0, 30)[..20]);
        assert!(frames.open_since.is_some() && frames.is_data);
        frames.take(&[&[7; 19][..], &frame(HEADERS, 0, 30)[..5]].concat());
        assert!(frames.open_since.is_some() && !frames.is_data, "it is no body that does not end now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_ends_and_an_honest_caller_never_does() {
        let ping = frame(6, 0, 8);
        let mut flood = frames();
        (0..FRAMES_AT_FIRST).for_each(|_| flood.take(&ping));
        assert!(!flood.flooded);
        flood.take(&ping);
        assert!(flood.flooded);

        let mut honest = frames();
        for _ in 0..100_000 {
            [frame(HEADERS, END_HEADERS, 40), frame(DATA, 1, 10), frame(8, 0, 4)].iter().for_each(|f| honest.take(f));
            honest.allow(FRAMES_PER_ANSWER);
        }
        let mut slow = frames();
        for _ in 0..10_000 {
            slow.take(&ping);
            tokio::time::advance(Duration::from_millis(20)).await;
        }
        assert!(!honest.flooded && !slow.flooded);
    }
}
