//! The W3C trace context of a request (`traceparent` and `tracestate`): what the caller sent, and what an origin is sent
//! in its place. It is parsed when a request is sent to an origin, so that a hit pays nothing for it. Pure.

use super::RequestSpan;

/// Longest `tracestate` that is passed on, in bytes: what the W3C recommendation asks of everyone.
const MAX_STATE: usize = 512;

/// The flags of version 00: sampled, and, since its second level, random trace id. Others are sent as 0.
const KNOWN_FLAGS: u8 = 0b11;

/// The fields as they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceContext<'r> {
    /// Empty if there are two.
    pub parent: Option<&'r [u8]>,
    /// Empty if there are two.
    pub state: Option<&'r [u8]>,
    /// The span of the request, if it is sampled.
    pub span: Option<&'r std::sync::Arc<RequestSpan>>,
}

/// What a `traceparent` of version 00 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace_id: u128,
    /// The caller's span.
    pub parent_id: u64,
    /// The known ones.
    pub flags: u8,
}

impl<'r> TraceContext<'r> {
    /// The `traceparent` and the `tracestate` for one request to an origin, which has a parent id of its own,
    /// `span_id`. `None` if the caller sent no valid `traceparent` (then its `tracestate` counts for nothing either) and
    /// no trace begins here.
    pub fn for_origin(&self, span_id: u64) -> Option<(String, Option<&'r [u8]>)> {
        let parent = self.traceparent();
        let is_valid = |state: &&[u8]| {
            (1..=MAX_STATE).contains(&state.len()) && state.iter().all(|b| matches!(b, b' '..=b'~' | b'\t'))
        };
        let state = self.state.filter(|state| parent.is_some() && is_valid(state));
        let parent = parent.or(self.span.map(|span| span.trace));
        let TraceParent { trace_id, flags, .. } = parent?;
        Some((format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}"), state))
    }

    /// The caller's `traceparent`, if it sent a valid one.
    pub fn traceparent(&self) -> Option<TraceParent> {
        parse(self.parent?)
    }
}

fn parse(text: &[u8]) -> Option<TraceParent> {
    let mut parts = std::str::from_utf8(text).ok()?.split('-');
    let mut next = |length: usize| {
        let is_hex = |part: &&str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        parts.next().filter(|part| part.len() == length).filter(is_hex)
    };
    let (version, trace_id, parent_id, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let (trace_id, parent_id) = (u128::from_str_radix(trace_id, 16).ok()?, u64::from_str_radix(parent_id, 16).ok()?);
    let flags = u8::from_str_radix(flags, 16).ok()? & KNOWN_FLAGS;
    let is_valid = version == "00" && trace_id != 0 && parent_id != 0 && parts.next().is_none();
    is_valid.then_some(TraceParent { trace_id, parent_id, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn sent(parent: &str, state: Option<&str>) -> Option<(String, Option<String>)> {
        let context = TraceContext { parent: Some(parent.as_bytes()), state: state.map(str::as_bytes), span: None };
        let (parent, state) = context.for_origin(0xab)?;
        Some((parent, state.map(|state| String::from_utf8(state.to_vec()).unwrap())))
    }

    #[test]
    fn the_trace_goes_on_under_a_new_parent() {
        for (flags, kept) in [("00", "00"), ("01", "01"), ("03", "03"), ("ff", "03"), ("fc", "00")] {
            let (parent, state) = sent(&format!("00-{TRACE}-00f067aa0ba902b7-{flags}"), Some("a=1,b=2")).unwrap();
            let parts: Vec<&str> = parent.split('-').collect();
            assert_eq!((parts[0], parts[1], parts[3], parts.len()), ("00", TRACE, kept, 4));
            assert_eq!(parts[2], "00000000000000ab");
            assert!(parse(parent.as_bytes()).is_some(), "{parent}");
            assert_eq!(state.as_deref(), Some("a=1,b=2"));
        }
    }

    #[test]
    fn what_is_no_traceparent_of_version_00_is_dropped() {
        let zeros = "0".repeat(32);
        for parent in [
            String::new(),
            format!("00-{zeros}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
            format!("00-{TRACE}-00f067aa0ba902b7-+1"),
            format!("00-{TRACE}f-00f067aa0ba902b7-01"),
            format!("01-{TRACE}-00f067aa0ba902b7-01"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!(" 00-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-01, 00-{TRACE}-00f067aa0ba902b7-01"),
        ] {
            assert_eq!(sent(&parent, Some("a=1")), None, "{parent}");
        }
        assert!(TraceContext::default().for_origin(1).is_none());
    }

    #[test]
    fn a_state_is_passed_on_as_it_is_or_not_at_all() {
        let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let longest = "x".repeat(512);
        for state in ["a=1", "a=1 ,\tb=2", &longest] {
            assert_eq!(sent(&parent, Some(state)).unwrap().1.as_deref(), Some(state));
        }
        let too_long = "x".repeat(513);
        for state in [Some(""), Some("\u{e9}=1"), Some(&*too_long), None] {
            assert_eq!(sent(&parent, state).unwrap().1, None, "{state:?}");
        }
    }
}
