//! The middleware of each page: which host it was asked of, who is logged in, whether a form was sent by our own page,
//! and the headers that keep other sites and foreign code out.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, ORIGIN, REFERRER_POLICY};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::{Answer, Fields, Pages, Visit, in_path, layout};
use crate::admin::authorize::read_body;
use crate::admin::problem::Problem;
use crate::admin::server::Peer;
use crate::admin::tokens::Role;

/// The name of the cookie that has a session's id.
pub(super) const COOKIE_NAME: &str = "guildgate_session";

const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'";

/// How the query of the script begins that refreshes a page.
const REFRESH: &str = "part=main";

/// Where browsers may say that the dashboard is. Another site's name that leads to this address is none of them, so
/// that the other site's scripts cannot read our pages (DNS rebinding).
#[derive(Clone, Debug)]
pub(in crate::admin) struct Hosts {
    /// The address of the listener.
    pub(in crate::admin) address: IpAddr,
    pub(in crate::admin) names: Vec<String>,
}

impl Hosts {
    fn allow(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let is_own = |ip: IpAddr| ip == self.address || self.address.is_unspecified();
        name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
            || name.parse().is_ok_and(is_own)
    }
}

/// Checks a request of a browser, has its page made, and sets the header fields that every page has. A refusal is a page.
pub(super) async fn guard(State(pages): State<Arc<Pages>>, request: Request, next: Next) -> Response {
    let (visit, path) = (visit(&pages, &request), request.uri().path().to_owned());
    let answer = check_and_run(&pages, visit.clone(), request, next).await;
    let mut answer = answer.unwrap_or_else(IntoResponse::into_response);
    if let Some(problem) = answer.extensions().get::<Problem>().cloned() {
        answer = (problem.status(), layout::problem(visit.as_ref(), &path, &problem)).into_response();
        answer.headers_mut().extend(problem.headers);
    }
    let headers = answer.headers_mut();
    // A proxy may serve the dashboard below a path of its own, so a page is named from this one.
    let location = headers.get(LOCATION).and_then(|to| to.to_str().ok()?.strip_prefix('/'));
    let location = location.map(|to| HeaderValue::try_from(layout::to_root(&path) + to));
    if let Some(Ok(location)) = location {
        headers.insert(LOCATION, location);
    }
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // Under no-referrer a browser would not name the origin of our own forms.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

async fn check_and_run(pages: &Pages, visit: Option<Visit>, mut request: Request, next: Next) -> Answer {
    let refused = |status, detail| Err(Problem::new(status, detail));
    if !pages.hosts.allow(request.headers()) {
        let detail = "this is not the name of the dashboard; add the host name to admin.hosts if it is";
        return refused(StatusCode::MISDIRECTED_REQUEST, detail);
    }
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default());
    let fields = if request.method() == Method::POST {
        if !is_own_form(request.headers()) {
            let detail = "the form is not of this dashboard; open its page here, and send it again";
            return refused(StatusCode::FORBIDDEN, detail);
        }
        if path != "/login" && path != "/logout" && visit.as_ref().is_some_and(|visit| visit.role != Role::Admin) {
            return refused(StatusCode::FORBIDDEN, "who logged in with the read token may change nothing");
        }
        Fields::parse(&read_body(std::mem::take(request.body_mut())).await?)
    } else {
        Fields::parse(query.as_bytes())
    };
    request.extensions_mut().insert(fields.clone());
    match visit {
        Some(visit) => {
            request.extensions_mut().insert(Visit { fields, ..visit });
        }
        None if path.starts_with("/assets/") || path == "/login" => {}
        None if request.uri().query().is_some_and(|query| query.starts_with(REFRESH)) => {
            return Err(Problem::unauthorized());
        }
        None => return Ok(Redirect::to(&login_path(&request)).into_response()),
    }
    Ok(next.run(request).await)
}

/// Where to log in for this request, and to come back from there to its page.
fn login_path(request: &Request) -> String {
    match request.uri().path_and_query().map_or("/", PathAndQuery::as_str) {
        page if request.method() == Method::GET && page != "/" => format!("/login?from={}", in_path(page)),
        _ => "/login".to_owned(),
    }
}

/// Whether a browser says that one of our own pages sent the form. Over plain HTTP beyond loopback it names the origin
/// alone.
fn is_own_form(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, host)| text(HOST).is_some_and(|own| own.eq_ignore_ascii_case(host)))
}

/// Who is logged in.
fn visit(pages: &Arc<Pages>, request: &Request) -> Option<Visit> {
    let is_use = request.uri().query().is_none_or(|query| !query.starts_with(REFRESH));
    let now = pages.shared.gateway.clock().now();
    let role = session_id(request.headers()).and_then(|id| pages.shared.own.sessions.get(id, now, is_use))?;
    let (peer, path) = (request.extensions().get::<Peer>().copied(), request.uri().path().to_owned());
    Some(Visit { pages: pages.clone(), role, peer, path, fields: Fields::default(), refused: None, wrong_field: None })
}

/// The id of the session that a request names.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(';'));
    cookies.filter_map(|cookie| cookie.trim().split_once('=')).find(|(name, _)| *name == COOKIE_NAME).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_and_addresses_of_its_own_are_hosts() {
        let hosts = |address: &str| Hosts { address: address.parse().unwrap(), names: vec!["ops.example".to_owned()] };
        let allows = |hosts: &Hosts, host: &str| {
            hosts.allow(&HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]))
        };
        for host in ["localhost", "LOCALHOST:9180", "127.0.0.1:9180", "127.0.0.1", "ops.example:443", "Ops.Example"] {
            assert!(allows(&hosts("127.0.0.1"), host), "{host}");
        }
        for host in
            ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example", "ops.example:x"]
        {
            assert!(!allows(&hosts("127.0.0.1"), host), "{host}");
        }
        assert!(allows(&hosts("::1"), "[::1]:9180") && !allows(&hosts("::1"), "[::2]:9180"));
        // On 0.0.0.0 any address is accepted as the host, and still no name that is not listed.
        assert!(allows(&hosts("0.0.0.0"), "10.0.0.1:9180") && !allows(&hosts("0.0.0.0"), "evil.example"));
        assert!(!hosts("127.0.0.1").allow(&HeaderMap::new()));
    }
}
