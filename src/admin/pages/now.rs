//! The first page: what is asked and refused now and over the last 15 minutes, how fast, and what is wrong.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use maud::{Markup, html};

use super::layout::Heading::{Number, Text};
use super::{Pages, Visit, layout, plot};
use crate::admin::shared::Shared;
use crate::admin::traffic::{Sample, quantile};
use crate::clock::Tick;
use crate::model::{counted, rough};
use crate::origin::UpstreamState;
use crate::telemetry::CacheUse;
use crate::telemetry::metrics::RequestTotals;
use crate::wire::code_meaning;

/// Rates "now" are over at least this long, so that they do not jump.
const NOW: Duration = Duration::from_secs(10);

/// A point of a plot covers at least this long. The last sample may have been taken just now.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/", get(show))
}

async fn show(Extension(visit): Extension<Visit>, RawQuery(query): RawQuery) -> Response {
    let content = content(visit.shared());
    // The script asks for the part alone.
    if query.is_some() {
        return content.into_response();
    }
    let part = html! { div data-refresh="/?part=main" { (content) } };
    layout::page(&visit, "Now", "/", part).into_response()
}

fn content(shared: &Shared) -> Markup {
    let samples = shared.traffic.samples(&shared.gateway);
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return html! {} };
    let recent = samples.iter().rev().find(|sample| last.at.since(sample.at) >= NOW).unwrap_or(first);
    html! {
        (wrong(shared, recent, last))
        (tiles(shared, recent, first, last))
        (requests(&samples, recent, first, last))
        (latency(first, last))
        (upstreams(shared))
        (nodes(shared))
    }
}

/// What is wrong, with what to do.
fn wrong(shared: &Shared, recent: &Sample, last: &Sample) -> Markup {
    let upstreams = shared.gateway.state().origin.upstreams().into_iter().filter_map(|upstream| {
        let is_told = match upstream.state {
            UpstreamState::Up => return None,
            UpstreamState::Failing => {
                "failed its last requests or health checks, and is still asked because no other upstream is left"
            }
            UpstreamState::Out => "gets no requests, because it failed some",
        };
        Some(format!("{} {is_told}: see the service there, and the process log", upstream.name))
    });
    let faults = shared.faults().into_iter().map(|fault| match fault.contains("store") {
        true => format!("{fault}: see the disk or the database, and the process log"),
        false => fault.to_owned(),
    });
    let rejected = shared.process.reloads.rejected_files().into_iter().map(|(file, fault)| {
        format!(
            "the last reload of {file} was rejected, and what was in force stays so; mend the file ({fault}); every fault \
             is on the page Configuration and in the process log"
        )
    });
    let of_nodes = shared.cluster_status().map(|status| status.warnings).unwrap_or_default();
    let unwritable = shared.store.as_ref().and_then(|store| store.write_fault());
    let unwritable = unwritable.map(|why| format!("the store cannot be written to, and setPoints is refused: {why}"));
    let mut wrong: Vec<String> = faults.chain(unwritable).chain(of_nodes).chain(upstreams).chain(rejected).collect();
    if wrong.is_empty() {
        wrong.extend(failing_requests(recent, last));
    }
    match wrong.is_empty() {
        true => html! { p.good role="status" { "Nothing is wrong." } },
        false => html! { p.alert role="alert" { (wrong.join("; ")) "." } },
    }
}

/// Whether so many requests get 20, 21 or 22 that the origin or the store cannot be well, as monitoring/alerts.yml has
/// it: more than 5 %.
fn failing_requests(recent: &Sample, last: &Sample) -> Option<String> {
    let all = grown(recent, last, |totals| totals.by_code.iter().sum());
    let failed = grown(recent, last, |totals| totals.by_code[20..=22].iter().sum());
    (failed * 20 > all).then(|| {
        let all = counted(all, "request");
        format!("of the last {all}, {failed} got 20, 21 or 22: see the origin or the store, and the process log")
    })
}

fn tiles(shared: &Shared, recent: &Sample, first: &Sample, last: &Sample) -> Markup {
    let ok = |totals: &RequestTotals| totals.by_code[0];
    let refused = |totals: &RequestTotals| totals.by_code[1..].iter().sum();
    let store = match (&shared.store, shared.gateway.store_fault()) {
        (None, _) => "none",
        (Some(_), Some(_)) => "away",
        (Some(store), None) if store.write_fault().is_some() => "cannot be written",
        (Some(_), None) => "ready",
    };
    let tiles = [
        ("Answered", per_second(rate(recent, last, ok))),
        ("Refused", per_second(rate(recent, last, refused))),
        ("Hit ratio, 15 min", hit_ratio(first, last)),
        ("Store", store.to_owned()),
        ("Connections", shared.metrics.value("guildgate_connections").map_or("–".to_owned(), |n| n.to_string())),
    ];
    html! { dl.tiles { @for (name, value) in tiles { div { dt { (name) } dd { (value) } } } } }
}

/// How much a count grew.
fn grown(from: &Sample, to: &Sample, of: impl Fn(&RequestTotals) -> u64) -> u64 {
    of(&to.totals).saturating_sub(of(&from.totals))
}

fn rate(from: &Sample, to: &Sample, of: impl Fn(&RequestTotals) -> u64) -> f64 {
    grown(from, to, of) as f64 / to.at.since(from.at).as_secs_f64().max(1.0)
}

fn per_second(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") }
}

/// The share of reads that were answered from memory, of those that the cache was looked up for.
fn hit_ratio(from: &Sample, to: &Sample) -> String {
    let of = |uses: &[CacheUse]| {
        let sum = |totals: &RequestTotals| {
            totals.by_cache.iter().map(|by_use| uses.iter().map(|u| by_use[u.index()]).sum::<u64>()).sum()
        };
        grown(from, to, sum)
    };
    share(of(&HITS), of(&HITS) + of(&MISSES))
}

/// Answered from memory without a wait for the origin.
pub(super) const HITS: [CacheUse; 2] = [CacheUse::Hit, CacheUse::WhileRevalidating];

/// The origin was asked, or tried.
pub(super) const MISSES: [CacheUse; 4] = [CacheUse::IfError, CacheUse::Stale, CacheUse::Miss, CacheUse::Collapsed];

pub(super) fn share(part: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / all as f64) }
}

/// The color of a code's line, which is the same whatever else happens. All others share the last
/// one.
const fn color_of(code: usize) -> usize {
    match code {
        0 => 0,
        2 => 1,
        12 => 2,
        3 => 3,
        20 => 4,
        21 => 5,
        22 => 6,
        _ => SHARED_COLOR,
    }
}

const SHARED_COLOR: usize = plot::MAX_LINES - 1;

/// Requests by outcome: a row for each, and a line for each color.
fn requests(samples: &[Sample], recent: &Sample, first: &Sample, last: &Sample) -> Markup {
    let mut codes: Vec<(usize, u64)> =
        (0..last.totals.by_code.len()).map(|code| (code, grown(first, last, |totals| totals.by_code[code]))).collect();
    codes.retain(|(code, n)| *code == 0 || *n > 0);
    codes[1..].sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let has = |color: usize| codes.iter().any(|(code, _)| color_of(*code) == color);
    let lines = (0..plot::MAX_LINES).filter(|color| has(*color));
    let lines: Vec<_> = lines.map(|color| (color, line(samples, last.at, color))).collect();
    let rows = html! {
        @for (code, n) in &codes {
            tr {
                th scope="row" {
                    span.swatch.(format!("line-{}", color_of(*code))) {}
                    @if *code == 0 { "ok" } @else { (format!("{code:02}")) }
                }
                td { (if *code == 0 { "answered" } else { code_meaning(*code as u8) }) }
                td.number { (per_second(rate(recent, last, |totals| totals.by_code[*code]))) }
                td.number { (n) }
            }
        }
    };
    html! {
        h2 { "Requests by outcome" }
        figure {
            (plot::draw(&lines, "requests/s"))
            figcaption {
                "Requests per second over the last 15 minutes. The table has the same outcomes"
                @if has(SHARED_COLOR) { "; those with a grey mark are one line, their sum" }
                "."
            }
        }
        (layout::table("Requests of the last 15 minutes", &[Text("Code"), Text("Meaning"), Number("Now"), Number("Requests")], rows))
    }
}

/// The requests per second with the codes of this color: a point for each interval.
fn line(samples: &[Sample], now: Tick, color: usize) -> Vec<(f64, f64)> {
    let pairs = samples.windows(2).filter(|pair| pair[1].at.since(pair[0].at) >= MIN_INTERVAL);
    let point = |pair: &[Sample]| {
        let minutes = -now.since(pair[1].at).as_secs_f64() / 60.0;
        let of_color = |totals: &RequestTotals| {
            totals.by_code.iter().enumerate().filter(|(code, _)| color_of(*code) == color).map(|(_, n)| n).sum()
        };
        (minutes, rate(&pair[0], &pair[1], of_color))
    };
    pairs.map(point).collect()
}

fn latency(first: &Sample, last: &Sample) -> Markup {
    let rows = html! {
        @for (path, name) in RequestTotals::LATENCY_CLASSES.iter().enumerate() {
            @let buckets: Vec<u64> = (0..last.totals.latency[path].len())
                .map(|bucket| grown(first, last, |totals| totals.latency[path][bucket])).collect();
            tr {
                th scope="row" { (name) }
                td.number { (buckets.iter().sum::<u64>()) }
                td.number { (at_most(&buckets, 0.5)) }
                td.number { (at_most(&buckets, 0.99)) }
            }
        }
    };
    html! {
        h2 { "Latency" }
        (layout::table("From a request's header to its answer, over the last 15 minutes",
            &[Text("Path"), Number("Requests"), Number("p50"), Number("p99")], rows))
    }
}

fn at_most(buckets: &[u64], quantile_of: f64) -> String {
    match quantile(buckets, &RequestTotals::BOUNDS, quantile_of) {
        None => "–".to_owned(),
        Some(Some(bound)) => format!("≤ {bound:?}"),
        Some(None) => format!("> {:?}", RequestTotals::BOUNDS[RequestTotals::BOUNDS.len() - 1]),
    }
}

fn upstreams(shared: &Shared) -> Markup {
    let upstreams = shared.gateway.state().origin.upstreams();
    let rows = html! {
        @for upstream in &upstreams {
            tr {
                th scope="row" { (upstream.name) }
                td {
                    (match upstream.state {
                        UpstreamState::Up => "in use",
                        UpstreamState::Failing => "failing, in use as the last one",
                        UpstreamState::Out => "out",
                    })
                }
                td.number { (upstream.in_flight) }
                td.number { (upstream.failures) }
            }
        }
    };
    html! {
        @if !upstreams.is_empty() {
            h2 { "Upstreams" }
            (layout::table("Addresses of the origin", &[Text("Upstream"), Text("State"), Number("In flight"), Number("Failures since the start")], rows))
        }
    }
}

/// The nodes that share one Redis.
fn nodes(shared: &Shared) -> Markup {
    let Some(status) = shared.cluster_status() else { return html! {} };
    let rows = html! {
        @for node in &status.nodes {
            tr {
                th scope="row" { (node.node) }
                td { (node.state_in_words()) }
                td { (node.version) }
                td { code { (node.config_hash) } }
                td.number { (node.pid) }
                td.number { (rough(Duration::from_millis(node.uptime_ms))) }
                td.number { (rough(Duration::from_millis(node.age_ms))) " ago" }
                td.number { (node.writes_in_words()) }
            }
        }
    };
    html! {
        h2 { "Nodes" }
        (layout::table(&format!("Nodes that share {}", status.redis), &[Text("Node"), Text("State"), Text("Version"),
            Text("Configuration"), Number("Process"), Number("Up for"), Number("Heard"), Number("Writes heard")], rows))
    }
}
