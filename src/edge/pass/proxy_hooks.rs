//! What Pingora's proxy asks on the way of a passed request: which upstream, which fields, whether to try again, and what the
//! caller is told where nothing was answered.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};

use super::Passed;
use super::upstream::TlsConnector;
use crate::config::AnswerHeader;
use crate::edge::answer::{Answer, Content};
use crate::edge::exchange::finished;
use crate::gateway::{Gateway, Reply};
use crate::origin::{Failed, IDLE_FOR};
use crate::wire::Fault;

/// The status in the access log of a request whose caller was gone before there was an answer, as nginx has it.
const CALLER_GONE: u16 = 499;

/// Fields of one connection, which are not passed on from an answer (RFC 9110, 7.6.1). Pingora drops those of a request.
const CONNECTION_FIELDS: [&str; 4] = ["keep-alive", "proxy-connection", "proxy-authenticate", "upgrade"];

pub(super) struct ProxyHooks {
    pub(super) gateway: Arc<Gateway>,
}

/// The request that Pingora asks about.
fn of(ctx: &mut Option<Box<Passed>>) -> Result<&mut Passed> {
    ctx.as_deref_mut().ok_or_else(|| Error::new_in(ErrorType::InternalError))
}

/// Ends a request with this fault, unless something was answered.
fn refused(passed: &mut Passed, fault: Fault) -> Box<Error> {
    passed.fault = Some(fault);
    Error::new_in(ErrorType::new("refused"))
}

/// Whether programs behind the upstream may take a field for another one, or its value for the path: as nginx does, fields
/// with `_` are not passed on, which CGI cannot tell from those with `-`.
fn is_misleading(name: &HeaderName) -> bool {
    matches!(name.as_str(), "x-original-url" | "x-rewrite-url" | "proxy") || name.as_str().contains('_')
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

#[async_trait]
impl ProxyHttp for ProxyHooks {
    type CTX = Option<Box<Passed>>;

    fn new_ctx(&self) -> Self::CTX {
        None
    }

    /// Nothing is compressed here.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    /// Gets the request that was set as the connection's context.
    fn on_connection_reuse(&self, session: &mut Session, ctx: &mut Self::CTX, passed: Box<dyn Any + Send + Sync>) {
        *ctx = passed.downcast().ok();
        let Ok(passed) = of(ctx) else { return };
        session.set_read_timeout(Some(passed.passage.config.pass.idle_timeout));
        if !passed.keeps_connection {
            session.set_keepalive(None);
        }
    }

    async fn upstream_peer(&self, _: &mut Session, ctx: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let passed = of(ctx)?;
        let Some(target) = passed.attempts.begin() else {
            let fault = passed.fault.unwrap_or(Fault::Unavailable { retry_after: 1 });
            return Err(refused(passed, fault));
        };
        (passed.fault, passed.body) = (None, 0);
        let mut peer = HttpPeer::new(target.address(), false, String::new());
        let idle_timeout = Some(passed.passage.config.pass.idle_timeout);
        peer.options.connection_timeout = Some(target.settings().connect_timeout);
        (peer.options.read_timeout, peer.options.write_timeout) = (idle_timeout, idle_timeout);
        peer.options.idle_timeout = Some(IDLE_FOR);
        if target.has_tls() {
            peer.options.custom_l4 =
                Some(Arc::new(TlsConnector(target.clone(), passed.passage.config.pass.idle_timeout)));
        }
        passed.target = Some(target);
        Ok(Box::new(peer))
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        is_whole: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        let passed = of(ctx)?;
        if is_whole {
            passed.passage.keep_place();
        }
        passed.body += body.as_ref().map_or(0, |body| body.len() as u64);
        if passed.body > passed.passage.config.pass.max_body && !session.was_upgraded() {
            return Err(refused(passed, Fault::BodyTooLarge));
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        let passed = of(ctx)?;
        let misleading: Vec<HeaderName> = request.headers.keys().filter(|name| is_misleading(name)).cloned().collect();
        for name in misleading {
            request.remove_header(&name);
        }
        request.insert_header("X-Forwarded-For", passed.client.to_string())?;
        if let Some(scheme) = &passed.scheme {
            request.insert_header("X-Forwarded-Proto", scheme.clone())?;
        }
        if let Some(details) = &passed.details {
            request.insert_header("X-Request-Id", details.id.as_bytes())?;
        }
        let Some(target) = &passed.target else { return Ok(()) };
        if target.settings().host.is_some() || !request.headers.contains_key(HOST) {
            request.insert_header(HOST, target.host())?;
        }
        if target.has_tls() && !request.headers.contains_key(UPGRADE) {
            request.insert_header(CONNECTION, "close")?;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        answer: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        let passed = of(ctx)?;
        if is_interim(answer.status) {
            let is_old = session.req_header().version != Version::HTTP_11;
            session.as_mut().set_ignore_info_resp(is_old);
            return Ok(());
        }
        if let Some(why) = unusable(session, answer) {
            return Err(Error::explain(ErrorType::InvalidHTTPHeader, why).into_up());
        }
        passed.is_answered = true;
        passed.attempts.answered();
        if let Some(details) = &mut passed.details {
            details.upstream = passed.attempts.upstream_use();
        }
        match passed.passage.answered().await {
            Ok(()) => Ok(()),
            Err(fault) => Err(refused(passed, fault)),
        }
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        answer: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        let passed = of(ctx)?;
        if is_interim(answer.status) {
            return Ok(());
        }
        if answer.status != StatusCode::SWITCHING_PROTOCOLS {
            drop_connection_fields(answer);
        }
        if session.req_header().version != Version::HTTP_11 {
            answer.remove_header(&TRANSFER_ENCODING); // the body ends with the connection
        }
        let answers = &passed.passage.config.answers;
        if answers.has(AnswerHeader::CacheStatus) {
            answer.append_header("Cache-Status", HeaderValue::from_static("guildgate; fwd=bypass"))?;
        }
        if let (Some(details), true) = (&passed.details, answers.has(AnswerHeader::RequestId)) {
            answer.insert_header("X-Request-Id", details.id.as_bytes())?;
        }
        Ok(())
    }

    /// Nothing was sent, so that any request may go to another upstream.
    fn fail_to_connect(&self, _: &mut Session, _: &HttpPeer, ctx: &mut Self::CTX, mut error: Box<Error>) -> Box<Error> {
        let may_go_on = of(ctx).is_ok_and(|passed| {
            let kind = match error.etype() {
                ErrorType::ConnectTimedout => io::ErrorKind::TimedOut,
                ErrorType::ConnectRefused => io::ErrorKind::ConnectionRefused,
                ErrorType::TLSHandshakeFailure => io::ErrorKind::Other,
                _ => io::ErrorKind::NotConnected,
            };
            let failed = Failed::Unsent(io::Error::new(kind, error.to_string()));
            passed.fault = Some(failed.fault());
            passed.attempts.failed(&failed, false)
        });
        error.set_retry(may_go_on);
        error
    }

    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Self::CTX,
        was_idle: bool,
    ) -> Box<Error> {
        let (is_whole, has_body) = (!session.as_ref().retry_buffer_truncated(), session.is_body_done());
        let may_go_on = of(ctx).is_ok_and(|passed| {
            if *error.esource() != ErrorSource::Upstream || passed.fault.is_some() {
                return false;
            }
            if *error.etype() == ErrorType::ReadTimedout && !has_body {
                passed.fault = Some(Fault::TooSlow); // the upstream has waited for the caller, as long as we did
                return false;
            }
            let failed = match (passed.is_answered, error.etype()) {
                (true, _) | (_, ErrorType::InvalidHTTPHeader) => Failed::Broken(error.to_string()),
                (false, ErrorType::ReadTimedout | ErrorType::WriteTimedout) => {
                    Failed::Silent(io::Error::new(io::ErrorKind::TimedOut, "no byte came within pass.idle_timeout"))
                }
                (false, _) => Failed::Silent(io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())),
            };
            passed.fault = Some(failed.fault());
            let is_late = failed.fault() == Fault::OriginTimeout; // another upstream would take as long
            passed.attempts.failed(&failed, was_idle) && is_whole && !is_late
        });
        error.set_retry(may_go_on);
        error
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Self::CTX) -> FailToProxy {
        let told = FailToProxy { error_code: 0, can_reuse_downstream: false };
        let Ok(passed) = of(ctx) else { return told };
        if let Some(details) = &mut passed.details {
            details.upstream = passed.attempts.upstream_use();
        }
        let dropped = passed.passage.answered().await;
        if session.response_written().is_some_and(|answer| !is_interim(answer.status)) {
            passed.is_cut.store(true, Ordering::Relaxed);
            return told;
        }
        let fault = passed.fault.or(match (error.esource(), error.etype()) {
            (ErrorSource::Downstream, ErrorType::ReadTimedout) => Some(Fault::TooSlow),
            (ErrorSource::Downstream, ErrorType::WriteError | ErrorType::WriteTimedout) => None, // the caller is gone
            (ErrorSource::Downstream, ErrorType::ConnectionClosed) if session.is_body_done() => None,
            (ErrorSource::Downstream, _) => Some(Fault::Malformed),
            _ => Some(Fault::NoUsableAnswer),
        });
        if let (Some(fault), Some(details)) = (dropped.err().or(fault), passed.details.take()) {
            let content = Content::Reply(Reply { answer: Err(fault), details });
            respond(session, passed, passed.finished(&self.gateway, content)).await;
        }
        told
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, ctx: &mut Self::CTX) {
        let Ok(passed) = of(ctx) else { return };
        let Some(details) = passed.details.take() else { return };
        let status = session.response_written().map_or(CALLER_GONE, |answer| answer.status.as_u16());
        passed.finished(&self.gateway, Content::Passed(status, details));
    }

    /// What fails is in the access log, and an upstream's failure in the process log.
    fn suppress_error_log(&self, _: &Session, _: &Self::CTX, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(&self, _: &Session, _: &Self::CTX, _: &Error, _: ProxyWarnLogContext) -> bool {
        true
    }
}

impl Passed {
    /// Reports the end of the request.
    fn finished(&self, gateway: &Gateway, content: Content) -> Answer<'static> {
        finished(gateway, &self.passage.config, content, None, (self.client, self.arrived))
    }
}

/// Why an answer may not be passed on. Every reader has to take the same bytes for its end: HTTP/1.0 knows no chunks (RFC 9112,
/// 6.1), and a length is one number.
fn unusable(session: &Session, answer: &ResponseHeader) -> Option<&'static str> {
    let has_list = |value: &HeaderValue| value.as_bytes().contains(&b',');
    if answer.status == StatusCode::SWITCHING_PROTOCOLS && !session.is_upgrade_req() {
        return Some("101, though no upgrade was asked for");
    }
    if answer.version == Version::HTTP_10 && answer.headers.contains_key(TRANSFER_ENCODING) {
        return Some("Transfer-Encoding in HTTP/1.0");
    }
    answer.headers.get_all(CONTENT_LENGTH).iter().any(has_list).then_some("several values of Content-Length")
}

/// Drops the fields that concern one connection only, and those that `Connection` names.
fn drop_connection_fields(answer: &mut ResponseHeader) {
    let values: Vec<HeaderValue> = answer.headers.get_all(CONNECTION).iter().cloned().collect();
    let named = values.iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let named = named.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok());
    for name in named.chain(CONNECTION_FIELDS.map(HeaderName::from_static)) {
        if name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
            answer.remove_header(&name);
        }
    }
}

/// Sends a refusal as the connection's last answer.
async fn respond(session: &mut Session, passed: &Passed, answer: Answer<'_>) {
    session.set_keepalive(None);
    let (header, text) = answer.http2(&passed.passage.config);
    let header = Box::new(ResponseHeader::from(header.into_parts().0));
    // The caller may be gone.
    if session.as_mut().write_response_header(header).await.is_ok() {
        let _ = session.as_mut().write_response_body(text, true).await;
    }
}
