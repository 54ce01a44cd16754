//! The first page: what is asked and refused now and over the last 15 minutes, how fast, and what is wrong.

use std::cmp::Reverse;
use std::time::Duration;

use axum::Extension;
use axum::response::IntoResponse;
use maud::{Markup, html};

use super::keys::meter;
use super::layout::{page, row, since as since_when, table};
use super::{Answer, Visit, plot};
use crate::admin::issues::Issue;
use crate::admin::shared::Shared;
use crate::admin::traffic::{Sample, quantile};
use crate::clock::Tick;
use crate::model::rough;
use crate::origin::UpstreamStatus;
use crate::telemetry::CacheUse;
use crate::telemetry::metrics::RequestTotals;
use crate::wire::code_meaning;

/// Rates "now" are over at least this long, so that they do not jump.
const NOW: Duration = Duration::from_secs(10);

/// A point of a plot covers at least this long. The last sample may have been taken just now.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let content = content(visit.shared());
    // The script asks for the part alone.
    Ok(match visit.fields.find("part") {
        Some(_) => content.into_response(),
        None => page(&visit, "Overview", html! { div data-refresh="./?part=main" { (content) } }),
    })
}

fn content(shared: &Shared) -> Markup {
    let samples = shared.own.traffic.samples(&shared.gateway);
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return html! {} };
    let recent = samples.iter().rev().find(|sample| last.at.since(sample.at) >= NOW).unwrap_or(first);
    let mut upstreams = shared.gateway.state().origin.upstreams();
    upstreams.sort_by_key(|upstream| upstream.is_up);
    let is_out = upstreams.first().is_some_and(|upstream| !upstream.is_up);
    html! {
        (issues(shared))
        @if is_out { (upstreams_panel(shared, &upstreams)) }
        (tiles(recent, first, last))
        div.split {
            (requests(shared, &samples, recent, first, last))
            div.column {
                @if !is_out && !upstreams.is_empty() { (upstreams_panel(shared, &upstreams)) }
                (latency(first, last))
                (process(shared))
            }
        }
        (nodes(shared))
    }
}

/// What is wrong or odd, with what to do and since when.
fn issues(shared: &Shared) -> Markup {
    let (issues, now) = (shared.issues(), shared.gateway.clock().unix());
    html! {
        @if issues.is_empty() { p.good role="status" { "Nothing is wrong." } }
        @else {
            ul.issues role="alert" {
                @for Issue { class, text, since, page: (path, name), .. } in &issues {
                    li class=(class) {
                        (text) "." " Since " (since_when(since.unwrap_or(now), now)) "."
                        @if *path != "./" { " " a href=(path) { "To the page " (name) } }
                    }
                }
            }
        }
    }
}

fn tiles(recent: &Sample, first: &Sample, last: &Sample) -> Markup {
    let [hits, misses] = [&HITS[..], &MISSES]
        .map(|of| grown(first, last, |totals| totals.by_cache.iter().map(|by_use| used(by_use, of)).sum()));
    let buckets = 0..last.totals.latency[0].len();
    let buckets: Vec<u64> =
        buckets.map(|at| grown(first, last, |of| of.latency.iter().map(|path| path[at]).sum())).collect();
    let bad = |totals: &RequestTotals| totals.by_code[1..20].iter().sum::<u64>() - totals.by_code[12];
    let tiles = [
        ("Answered", per_second(recent, last, |totals| totals.by_code[0])),
        ("Over a limit (12)", per_second(recent, last, |totals| totals.by_code[12])),
        ("Bad requests", per_second(recent, last, bad)),
        ("Failed (20 to 22)", per_second(recent, last, |totals| totals.by_code[20..].iter().sum())),
        ("Hit ratio, 15 min", share(hits, hits + misses)),
        ("p99, 15 min", at_most(&buckets, 0.99)),
    ];
    html! { dl.tiles { @for (name, value) in tiles { div { dt { (name) } dd { (value) } } } } }
}

/// The process, its configuration and its store.
fn process(shared: &Shared) -> Markup {
    let store = match (&shared.store, shared.gateway.store_fault()) {
        (None, _) => "none",
        (Some(_), Some(_)) => "away",
        (Some(store), None) if store.write_fault().is_some() => "cannot be written",
        (Some(_), None) => "ready",
    };
    let facts = [
        ("Version", env!("CARGO_PKG_VERSION").to_owned()),
        ("Up for", rough(shared.process.started.elapsed())),
        ("Configuration", shared.process.config.read().loaded.config.hash.to_string()),
        ("Store", store.to_owned()),
        ("Connections", shared.connections.value("guildgate_connections").map_or("–".to_owned(), |n| n.to_string())),
    ];
    html! { section.panel { h2 { "This process" } dl.facts { @for (name, value) in facts { dt { (name) } dd { (value) } } } } }
}

/// How much a count grew.
fn grown(from: &Sample, to: &Sample, of: impl Fn(&RequestTotals) -> u64) -> u64 {
    of(&to.totals).saturating_sub(of(&from.totals))
}

fn rate(from: &Sample, to: &Sample, of: impl Fn(&RequestTotals) -> u64) -> f64 {
    grown(from, to, of) as f64 / to.at.since(from.at).as_secs_f64().max(1.0)
}

fn per_second(from: &Sample, to: &Sample, of: impl Fn(&RequestTotals) -> u64) -> String {
    format!("{:.1}/s", rate(from, to, of))
}

/// Answered from memory without a wait for the origin.
pub(super) const HITS: [CacheUse; 2] = [CacheUse::Hit, CacheUse::StaleWhileRevalidate];

/// The origin was asked, or tried.
pub(super) const MISSES: [CacheUse; 4] = [CacheUse::StaleIfError, CacheUse::Stale, CacheUse::Miss, CacheUse::Collapsed];

/// The requests with these uses of the cache.
pub(super) fn used(by_use: &[u64], uses: &[CacheUse]) -> u64 {
    uses.iter().map(|of| by_use[of.index()]).sum()
}

pub(super) fn share(part: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / all as f64) }
}

/// The codes whose line has the color of their place here, whatever else happens. All others share the last color.
const COLORED: [usize; SHARED_COLOR] = [0, 2, 12, 3, 20, 21, 22];

const SHARED_COLOR: usize = plot::MAX_LINES - 1;

fn color_of(code: usize) -> usize {
    COLORED.iter().position(|colored| *colored == code).unwrap_or(SHARED_COLOR)
}

/// The name of the line of this color.
fn line_name(color: usize) -> &'static str {
    COLORED.get(color).map_or("all others", |code| if *code == 0 { "answered" } else { code_meaning(*code as u8) })
}

/// Requests by outcome: a row for each, and a line for each color.
fn requests(shared: &Shared, samples: &[Sample], recent: &Sample, first: &Sample, last: &Sample) -> Markup {
    let codes = (0..last.totals.by_code.len()).map(|code| (code, grown(first, last, |totals| totals.by_code[code])));
    let mut codes: Vec<(usize, u64)> = codes.filter(|(code, n)| *code == 0 || *n > 0).collect();
    codes[1..].sort_by_key(|(_, n)| Reverse(*n));
    let has = |color: usize| codes.iter().any(|(code, _)| color_of(*code) == color);
    let lines = (0..plot::MAX_LINES).filter(|color| has(*color));
    let lines: Vec<_> = lines.map(|color| (color, line_name(color), line(samples, last.at, color))).collect();
    let rows = codes.iter().map(|(code, n)| {
        let (name, meaning) = match *code {
            0 => ("ok".to_owned(), "answered"),
            code => (format!("{code:02}"), code_meaning(code as u8)),
        };
        let name = html! { span.swatch.{ "line-" (color_of(*code)) } {} (name) };
        row![name, meaning, per_second(recent, last, |totals| totals.by_code[*code]), n]
    });
    let columns = [("Code", ""), ("Meaning", ""), ("Now", "number"), ("Requests", "number")];
    html! {
        section.panel {
            h2 { "Requests per second, by outcome" }
            (plot::draw("outcomes", &lines, shared.gateway.clock().unix()))
            (table("Requests of the last 15 minutes; those with a grey mark are one line, their sum", &columns, rows))
        }
    }
}

/// The requests per second with the codes of this color: a point for each interval.
fn line(samples: &[Sample], now: Tick, color: usize) -> Vec<(f64, f64)> {
    let pairs = samples.windows(2).filter(|pair| pair[1].at.since(pair[0].at) >= MIN_INTERVAL);
    let of_color = |totals: &RequestTotals| {
        totals.by_code.iter().enumerate().filter(|(code, _)| color_of(*code) == color).map(|(_, n)| n).sum()
    };
    pairs.map(|pair| (-now.since(pair[1].at).as_secs_f64(), rate(&pair[0], &pair[1], of_color))).collect()
}

fn latency(first: &Sample, last: &Sample) -> Markup {
    let rows = RequestTotals::LATENCY_CLASSES.iter().enumerate().map(|(path, name)| {
        let buckets = (0..last.totals.latency[path].len()).map(|at| grown(first, last, |of| of.latency[path][at]));
        let buckets: Vec<u64> = buckets.collect();
        row![name, buckets.iter().sum::<u64>(), at_most(&buckets, 0.5), at_most(&buckets, 0.99)]
    });
    let columns = [("Path", ""), ("Requests", "number"), ("p50", "number"), ("p99", "number")];
    html! {
        section.panel {
            h2 { "Latency" }
            (table("From a request's header to its answer, over the last 15 minutes", &columns, rows))
        }
    }
}

fn at_most(buckets: &[u64], quantile_of: f64) -> String {
    match quantile(buckets, &RequestTotals::BOUNDS, quantile_of) {
        None => "–".to_owned(),
        Some(Some(bound)) => format!("≤ {bound:?}"),
        Some(None) => format!("> {:?}", RequestTotals::BOUNDS[RequestTotals::BOUNDS.len() - 1]),
    }
}

fn upstreams_panel(shared: &Shared, upstreams: &[UpstreamStatus]) -> Markup {
    let now = shared.gateway.clock().unix();
    let rows = upstreams.iter().map(|upstream| {
        let (class, state) = if upstream.is_up { ("good", "in use") } else { ("alert", "out") };
        let out =
            html! { @if let Some((since, why)) = &upstream.out { " since " (since_when(*since, now)) ": " (why) } };
        let state = html! { span class={ "badge " (class) } { (state) } (out) };
        row![upstream.name, state, upstream.in_flight, upstream.failures]
    });
    let columns = [("Upstream", "name"), ("State", ""), ("In flight", "number"), ("Failures", "number")];
    let places = shared.gateway.state().origin.places();
    html! {
        section.panel {
            h2 { "Upstreams" }
            (table("Addresses of the origin, with the requests that failed since the start", &columns, rows))
            @if let Some([held, waiting, max]) = places {
                p { (meter("Places at the origin in use", (held as u64, max as u64))) " places in use, " (waiting) " waiting" }
            }
        }
    }
}

/// The nodes that share one Redis.
fn nodes(shared: &Shared) -> Markup {
    let Some(status) = shared.cluster_status() else { return html! {} };
    let rows = status.nodes.iter().map(|node| {
        let [up_for, heard] = [node.uptime_ms, node.age_ms].map(|ms| rough(Duration::from_millis(ms)));
        let (state, writes) = (node.state_in_words(), node.writes_in_words());
        row![node.node, state, node.version, node.config_hash, node.pid, up_for, format!("{heard} ago"), writes]
    });
    let columns = [
        ("Node", ""),
        ("State", ""),
        ("Version", ""),
        ("Configuration", ""),
        ("Process", "number"),
        ("Up for", "number"),
        ("Heard", "number"),
        ("Writes heard", "number"),
    ];
    html! { section.panel { h2 { "Nodes" } (table(&format!("Nodes that share {}", status.redis), &columns, rows)) } }
}
