//! The dashboard: pages that the server renders, for people who logged in with a token. Changes go through the API's
//! own code. Everything works without scripts; nothing is loaded from elsewhere.

mod audit; // /audit
mod cache; // /cache
mod configuration; // /configuration
mod guard; // hosts, sessions, where forms come from, headers
mod guilds; // /guilds and /guilds/{guild}
mod key; // /keys/{id}
mod keys; // /keys
mod layout; // what all pages have in common
mod login; // /login and /logout
mod members; // /guilds/{guild}/members/{member}
mod overview; // /
mod plot; // charts
mod refusals; // /refusals and /refusals/live
mod tuning; // /tuning

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

pub(super) use guard::Hosts;

use super::authorize::InSession;
use super::problem::Problem;
use super::server::Peer;
use super::shared::Shared;
use super::tokens::Role;

/// What the pages share.
#[derive(Debug)]
struct Pages {
    shared: Arc<Shared>,
    /// The API, for changes.
    api: Router,
    hosts: Hosts,
    is_tls: bool,
}

/// A request of someone who is logged in.
#[derive(Clone, Debug)]
struct Visit {
    pages: Arc<Pages>,
    role: Role,
    peer: Option<Peer>,
    path: String,
    fields: Fields,
    /// Why the form that was sent is shown again.
    refused: Option<Problem>,
    /// The field for which it was refused.
    wrong_field: Option<&'static str>,
}

/// The fields of a form that was sent, or of the query.
#[derive(Clone, Debug, Default)]
struct Fields(Vec<(String, String)>);

/// A page, or why there is none.
type Answer = Result<Response, Problem>;

/// All pages and their files. `api`: the API's own paths.
pub(super) fn routes(shared: Arc<Shared>, api: Router, hosts: Hosts, is_tls: bool) -> Router {
    let pages = Arc::new(Pages { shared, api, hosts, is_tls });
    let file = |content_type: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, content_type)], text).into_response() })
    };
    // Its name has its version, so browsers may keep it.
    let kept = |content_type: &'static str, text: &'static str| {
        let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "max-age=31536000, immutable")];
        get(move || async move { (headers, text).into_response() })
    };
    Router::new()
        .route("/", get(overview::show))
        .route("/keys", get(keys::show).post(keys::create))
        .route("/keys/{id}", get(key::show))
        .route("/keys/{id}/{action}", post(key::act))
        .route("/audit", get(audit::show))
        .route("/guilds", get(guilds::list).post(guilds::add))
        .route("/guilds/{guild}", get(guilds::show))
        .route("/guilds/{guild}/{action}", post(guilds::act))
        .route("/guilds/{guild}/members/{member}", get(members::show))
        .route("/guilds/{guild}/members/{member}/{action}", post(members::act))
        .route("/tuning", get(tuning::show))
        .route("/configuration", get(configuration::show))
        .route("/configuration/reload", post(configuration::reload))
        .route("/cache", get(cache::show))
        .route("/cache/purge", post(cache::purge))
        .route("/refusals", get(refusals::show))
        .route("/refusals/live", get(refusals::live))
        .route("/login", get(login::show).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/assets/style.css", file("text/css; charset=utf-8", include_str!("assets/style.css")))
        .route("/assets/refresh.js", file("text/javascript; charset=utf-8", include_str!("assets/refresh.js")))
        .route("/assets/chart.js", file("text/javascript; charset=utf-8", include_str!("assets/chart.js")))
        .route("/assets/uplot-1.6.32.min.js", kept("text/javascript", include_str!("assets/uplot-1.6.32.min.js")))
        .route("/assets/uplot-1.6.32.min.css", kept("text/css", include_str!("assets/uplot-1.6.32.min.css")))
        .route("/assets/uplot-LICENSE", kept("text/plain", include_str!("assets/uplot-LICENSE")))
        .route("/assets/icon.svg", file("image/svg+xml", include_str!("assets/icon.svg")))
        .layer(from_fn_with_state(pages.clone(), guard::guard))
        .with_state(pages)
}

impl Visit {
    fn shared(&self) -> &Shared {
        &self.pages.shared
    }

    /// The same with a form that was refused, for its page to show it again.
    fn refused(self, problem: Problem) -> Self {
        Visit { refused: Some(problem), ..self }
    }

    /// Makes a request to the API as whoever is logged in: with its checks, and with its line in the audit log. The
    /// answer's body.
    async fn api(&self, method: Method, path: &str, body: Value) -> Result<Value, Problem> {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let mut request = request.body(body).map_err(|error| Problem::bad_request(error.to_string()))?;
        request.extensions_mut().insert(InSession(self.role));
        self.peer.map(|peer| request.extensions_mut().insert(peer));
        let Ok(answer) = TowerToHyperService::new(self.pages.api.clone()).call(request).await;
        let (parts, body) = answer.into_parts();
        if let Some(problem) = parts.extensions.get::<Problem>() {
            let mut problem = problem.clone();
            // Who filled in a form has seen no body, and no line of it.
            let detail = problem.detail.trim_start_matches("the body: ").split(" at line ").next().unwrap_or_default();
            problem.detail = detail.to_owned();
            return Err(problem);
        }
        let body = body.collect().await.map_err(|error| Problem::unavailable(error.to_string(), 1))?.to_bytes();
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }
}

impl Fields {
    fn parse(form: &[u8]) -> Self {
        Fields(form_urlencoded::parse(form).into_owned().collect())
    }

    /// The first field of this name, without white space around it.
    fn find(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.trim())
    }

    /// As [`Fields::find`]; empty if there is none.
    fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default()
    }

    /// As [`Fields::find`]; `None` if it is empty.
    fn given(&self, name: &str) -> Option<&str> {
        self.find(name).filter(|value| !value.is_empty())
    }
}

/// An id as a part of a path, or a value in a query.
fn in_path(id: &str) -> PercentEncode<'_> {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(id, ESCAPED)
}
