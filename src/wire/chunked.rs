//! Decodes a chunked body (RFC 9112, 7.1), a caller's or an origin's, from any pieces of a stream. It is strict: an edge
//! that accepts another form than its origin does is a request smuggling hole. The data and the framing around it are
//! each bounded. `fuzz` compares it with a second decoder.

use super::Fault;

/// Decodes a chunked body byte by byte and strictly: CRLF line ends, hexadecimal sizes. Extensions of a chunk are refused:
/// nobody sends them, and servers read them differently. Trailers are checked by their grammar (RFC 9112, 5) and ignored.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    /// Bytes of framing that may still come.
    framing_left: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    #[default]
    SizeStart,
    Size(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

impl Chunked {
    /// A decoder of a body that has at most `max_framing` bytes of framing (sizes, line ends, trailers) besides its data.
    pub fn new(max_framing: usize) -> Self {
        Chunked { state: State::default(), framing_left: max_framing }
    }

    /// Decodes the next piece of the stream and appends its data to `body`. Returns where in the piece the body ends;
    /// `None` if more is to come.
    ///
    /// # Errors
    /// More data than `max` (14), or a malformed body (16).
    pub fn feed(&mut self, piece: &[u8], body: &mut Vec<u8>, max: usize) -> Result<Option<usize>, Fault> {
        let mut at = 0;
        while at < piece.len() {
            if let State::Data(left) = self.state {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len() - at);
                if take > max.saturating_sub(body.len()) {
                    return Err(Fault::BodyTooLarge);
                }
                body.extend_from_slice(&piece[at..at + take]);
                at += take;
                let left = left - take as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data(left) };
                continue;
            }
            let framing_left = self.framing_left.checked_sub(1);
            let next = framing_left.and_then(|_| step(self.state, piece[at]));
            self.framing_left = framing_left.unwrap_or(0);
            at += 1;
            match next {
                None => return Err(Fault::Malformed),
                Some(State::Done) => {
                    self.state = State::Done;
                    return Ok(Some(at));
                }
                Some(State::Data(size)) if size > max.saturating_sub(body.len()) as u64 => {
                    return Err(Fault::BodyTooLarge);
                }
                Some(state) => self.state = state,
            }
        }
        Ok(None)
    }
}

fn step(state: State, byte: u8) -> Option<State> {
    let digit = (byte as char).to_digit(16).map(u64::from);
    match (state, byte) {
        (State::SizeStart, _) => digit.map(State::Size),
        (State::Size(size), b'\r') => Some(State::SizeLf(size)),
        (State::Size(size), _) => Some(State::Size(size.checked_mul(16)?.checked_add(digit?)?)),
        (State::SizeLf(0), b'\n') => Some(State::TrailerStart),
        (State::SizeLf(size), b'\n') => Some(State::Data(size)),
        (State::DataCr, b'\r') => Some(State::DataLf),
        (State::DataLf, b'\n') => Some(State::SizeStart),
        (State::TrailerStart, b'\r') => Some(State::EndLf),
        (State::TrailerName, b':') => Some(State::TrailerValue),
        (State::TrailerStart | State::TrailerName, _) => is_token_char(byte).then_some(State::TrailerName),
        (State::TrailerValue, b'\r') => Some(State::TrailerLf),
        (State::TrailerValue, _) => is_text(byte).then_some(State::TrailerValue),
        (State::TrailerLf, b'\n') => Some(State::TrailerStart),
        (State::EndLf, b'\n') => Some(State::Done),
        (State::SizeLf(_) | State::DataCr | State::DataLf | State::TrailerLf | State::EndLf, _) => None,
        (State::Data(_) | State::Done, _) => None,
    }
}

/// `tchar` (RFC 9110, 5.6.2).
fn is_token_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What a field's value consists of (RFC 9110, 5.5): anything but control characters.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_FRAMING: usize = 4096;

    fn decode(text: &[u8], max: usize) -> (Result<Option<usize>, Fault>, Vec<u8>) {
        let mut body = Vec::new();
        let progress = Chunked::new(MAX_FRAMING).feed(text, &mut body, max);
        (progress, body)
    }

    #[test]
    fn a_chunked_body_ends_where_it_says() {
        let text = "5\r\nhello\r\n01\r\n!\r\n0\r\nX-Trailer: y\u{e9}\tz\r\n\r\nPOST";
        assert_eq!(decode(text.as_bytes(), 100), (Ok(Some(text.len() - 4)), b"hello!".to_vec()));
    }

    #[test]
    fn a_body_over_its_bound_is_noticed_before_it_comes() {
        assert_eq!(decode(b"65\r\n", 100).0, Err(Fault::BodyTooLarge));
        assert_eq!(decode(b"64\r\n", 100).0, Ok(None));
        assert_eq!(decode(b"ffffffffffffffff\r\n", 100).0, Err(Fault::BodyTooLarge));
        assert_eq!(decode(b"1\r\na\r\nffffffffffffffff\r\nbb", 100).0, Err(Fault::BodyTooLarge));
    }

    #[test]
    fn what_is_no_chunk_is_malformed() {
        for text in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "5\nhello",
            "5\r\nhello!\r\n",
            "5\r\nhelloX",
            "0\r\n\n",
            "1ffffffffffffffff\r\n",
            "0\r\nX\n",
            "5\r\rhello",
            "5 \r\nhello",
            "5\t\r\nhello",
            "5 5\r\nhello",
            "5;a\r\nhello",
            "5 ;a\r\nhello",
            "0\r\nX(Y): z\r\n",
            "0\r\nX: \u{1}\r\n",
        ] {
            assert_eq!(decode(text.as_bytes(), 100).0, Err(Fault::Malformed), "{text:?}");
        }
        assert_eq!(decode(&[b"0\r\n".to_vec(), vec![b'x'; MAX_FRAMING]].concat(), 100).0, Err(Fault::Malformed));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_is_the_same_body(body in proptest::collection::vec(any::<u8>(), 1..200), size in 1usize..50, cut in 1usize..20) {
            let mut text = Vec::new();
            for chunk in body.chunks(size) {
                text.extend(format!("{:x}\r\n", chunk.len()).bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\n");
            let (mut decoder, mut out, mut last) = (Chunked::new(MAX_FRAMING), Vec::new(), Ok(None));
            for piece in text.chunks(cut) {
                prop_assert_eq!(&last, &Ok(None));
                last = decoder.feed(piece, &mut out, 1000);
            }
            prop_assert!(matches!(last, Ok(Some(_))));
            prop_assert_eq!(out, body);
        }

        #[test]
        fn no_bytes_panic_or_exceed_the_bound(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&text, 10).1.len() <= 10);
        }
    }
}
