//! The fields of a request's header that the gateway or the edge looks at, for both versions of HTTP. It reads borrowed
//! bytes and keeps nothing.

use crate::wire::TraceContext;

/// Header fields in one request; more is 16 (contract section 1, "Framing").
pub(super) const MAX_FIELDS: usize = 100;

/// The values of the header fields that are looked at. Where a second field of a name makes both count for nothing, the
/// value is empty.
#[derive(Default)]
pub(super) struct RequestFields<'b> {
    pub(super) host: Option<&'b [u8]>,
    pub(super) authorization: Option<&'b [u8]>,
    pub(super) content_type: Option<&'b [u8]>,
    pub(super) content_encoded: bool,
    /// The values of `X-Forwarded-For` in their order, if a trusted proxy sent them.
    pub(super) forwarded_for: Vec<&'b [u8]>,
    /// The value of `X-Request-Id`, if a trusted proxy sent it.
    pub(super) request_id: Option<&'b [u8]>,
    pub(super) trace: TraceContext<'b>,
    pub(super) expect_continue: bool,
    pub(super) upgrade: bool,
    /// The page that sends it, where a browser does.
    pub(super) origin: Option<&'b [u8]>,
    /// It has an `Access-Control-Request-Method`, so it may be a preflight.
    pub(super) requests_method: bool,
    pub(super) content_length: Option<&'b [u8]>,
    pub(super) transfer_encoding: Option<&'b [u8]>,
    /// A field that may occur only once occurred twice: 16.
    pub(super) repeated: bool,
    /// `Connection` names `close`, or `keep-alive`.
    pub(super) close: bool,
    pub(super) keep_alive: bool,
}

impl<'b> RequestFields<'b> {
    pub(super) fn read(fields: impl Iterator<Item = (&'b str, &'b [u8])>, from_trusted_proxy: bool) -> Self {
        let mut known = RequestFields::default();
        for (name, value) in fields {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            match name.len() {
                4 if is("host") => known.repeated |= known.host.replace(value).is_some(),
                6 if is("expect") => known.expect_continue |= value.eq_ignore_ascii_case(b"100-continue"),
                6 if is("origin") => once(&mut known.origin, value),
                7 if is("upgrade") => known.upgrade = true,
                10 if is("connection") => {
                    for token in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                        known.close |= token.eq_ignore_ascii_case(b"close");
                        known.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                // A request with two types has no form type.
                12 if is("content-type") => {
                    known.content_type = Some(if known.content_type.is_some() { b"two" } else { value });
                }
                10 if is("tracestate") => once(&mut known.trace.state, value),
                11 if is("traceparent") => once(&mut known.trace.parent, value),
                12 if from_trusted_proxy && is("x-request-id") => once(&mut known.request_id, value),
                13 if is("authorization") => known.repeated |= known.authorization.replace(value).is_some(),
                14 if is("content-length") => known.repeated |= known.content_length.replace(value).is_some(),
                15 if from_trusted_proxy && is("x-forwarded-for") => known.forwarded_for.push(value),
                16 if is("content-encoding") => known.content_encoded = true,
                17 if is("transfer-encoding") => known.repeated |= known.transfer_encoding.replace(value).is_some(),
                29 if is("access-control-request-method") => known.requests_method = true,
                _ => {}
            }
        }
        known
    }
}

/// Takes the value of a field that counts for nothing if there are two.
fn once<'b>(field: &mut Option<&'b [u8]>, value: &'b [u8]) {
    *field = Some(if field.is_some() { b"" } else { value });
}
