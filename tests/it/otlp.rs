//! The feature `otlp`: which requests are traced, what their spans say, and what a collector that fails may cost. The
//! collector is the test's own and decodes what it is sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;

use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that decodes each message and answers it with a status of the test's, or not at all.
struct Collector {
    address: SocketAddr,
    messages: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    /// One that answers with this status; `None`: it never answers.
    async fn start(status: Option<u16>) -> Collector {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, messages) = (listener.local_addr().unwrap(), Arc::default());
        let into: Arc<Mutex<Vec<_>>> = Arc::clone(&messages);
        let receive = move |headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            into.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
            match status {
                Some(status) => StatusCode::from_u16(status).unwrap(),
                None => std::future::pending().await,
            }
        };
        let app = Router::new().route("/v1/traces", axum::routing::post(receive));
        tokio::spawn(async { axum::serve(listener, app).await });
        Collector { address, messages }
    }

    /// Has this gateway send its traces here.
    fn of(&self, gate: Builder) -> Builder {
        gate.set("log.otlp", &format!("\"http://{}\"", self.address))
    }

    fn messages(&self) -> usize {
        self.messages.lock().unwrap().len()
    }

    fn spans(&self) -> Vec<Span> {
        let messages = self.messages.lock().unwrap();
        let resources = messages.iter().flat_map(|message| &message.resource_spans);
        let mut spans = Vec::new();
        for resource in resources {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            assert_eq!(text(attributes, "service.name").as_deref(), Some("guildgate"));
            spans.extend(resource.scope_spans.iter().flat_map(|scope| scope.spans.clone()));
        }
        spans
    }

    /// The spans, once there are so many.
    async fn has(&self, count: usize) -> Vec<Span> {
        eventually(PATIENCE, "the spans come", || async { self.spans().len() >= count }).await;
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

/// The value of an attribute as text.
fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{name}: {other:?}"),
    })
}

/// Asserts the values of these attributes; `-`: there is none.
fn has(span: &Span, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(text(&span.attributes, name).as_deref().unwrap_or("-"), *value, "{name} of {span:#?}");
    }
}

fn of_kind(spans: &[Span], kind: SpanKind) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind == kind as i32).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unix_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

fn sampled(gate: &TestGateway, operation: &str, body: &str) -> Request {
    gate.request(operation, "bot", body).header("traceparent", SAMPLED)
}

#[tokio::test]
async fn a_sampled_request_is_the_callers_child_and_each_attempt_at_the_origin_is_its_child() {
    let collector = Collector::start(Some(200)).await;
    let mut gate =
        collector.of(TestGateway::before_http().tls().key("bot").set("server.base_path", r#""/v1""#)).start().await;
    let request = Request::post("/v1/getPoints", "memberID=7").key(gate.secret("bot")).header("traceparent", SAMPLED);
    let (before, answer, after) = (unix_ns(), gate.send(&request).await, unix_ns());
    let spans = collector.has(2).await;
    let (server, client) = (of_kind(&spans, SpanKind::Server)[0], of_kind(&spans, SpanKind::Client)[0]);
    assert_eq!((hex(&server.trace_id), hex(&server.parent_span_id)), (TRACE.into(), "00f067aa0ba902b7".into()));
    assert_eq!((&client.trace_id, &client.parent_span_id), (&server.trace_id, &server.span_id));
    let at_origin = gate.origin().seen().pop().unwrap();
    assert_eq!(at_origin.header("traceparent"), Some(&*format!("00-{TRACE}-{}-01", hex(&client.span_id))));
    assert_eq!((&*server.name, &*client.name), ("getPoints", "getPoints"));
    let times = [
        before,
        server.start_time_unix_nano,
        client.start_time_unix_nano,
        client.end_time_unix_nano,
        server.end_time_unix_nano,
        after,
    ];
    assert!(times.is_sorted() && client.start_time_unix_nano < client.end_time_unix_nano, "{times:?}");
    let id = answer.header("x-request-id").unwrap();
    has(
        server,
        &[("http.request.method", "POST"), ("http.response.status_code", "200"), ("url.path", "/v1/getPoints")],
    );
    has(server, &[("url.scheme", "https"), ("guildgate.key", "bot"), ("guildgate.cache", "miss")]);
    has(server, &[("guildgate.code", "-"), ("guildgate.request_id", id)]);
    has(client, &[("http.request.method", "POST"), ("http.response.status_code", "200")]);
    has(client, &[("server.address", "127.0.0.1"), ("guildgate.upstream", gate.origin().url().as_str())]);

    // Over HTTP/2 and from memory: no other span than its own.
    gate.http2().await.ask(&request).await.is("0").is_hit();
    let spans = collector.has(3).await;
    has(&spans[2], &[("guildgate.cache", "hit"), ("url.scheme", "https")]);
    assert_eq!(hex(&spans[2].parent_span_id), "00f067aa0ba902b7");

    // Refusals, and each attempt at the origin, have spans of their own.
    let stranger = Request::post("/v1/getPoints", "memberID=7").key("nobody").header("traceparent", SAMPLED);
    gate.send(&stranger).await.is_a_refusal();
    let elsewhere = Request::bare("BREW", "/secret").header("traceparent", SAMPLED);
    gate.send(&elsewhere).await.is_a_refusal();
    let spans = collector.has(5).await;
    has(&spans[3], &[("guildgate.code", "2"), ("http.response.status_code", "401"), ("guildgate.key", "-")]);
    has(&spans[4], &[("guildgate.code", "10"), ("http.request.method", "_OTHER"), ("url.path", "-")]);
    assert_eq!(spans.iter().filter_map(|span| span.status.as_ref()).filter(|status| status.code == 2).count(), 0);

    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    let other = Request::post("/v1/getPoints", "memberID=8").key(gate.secret("bot")).header("traceparent", SAMPLED);
    gate.send(&other).await.is("0");
    let spans = collector.has(8).await;
    let attempts = of_kind(&spans[5..], SpanKind::Client);
    for (attempt, seen) in attempts.iter().zip(&gate.origin().seen()[1..]) {
        assert!(seen.header("traceparent").unwrap().contains(&hex(&attempt.span_id)), "{attempt:#?}");
    }
    has(attempts[0], &[("http.response.status_code", "-")]);
    assert_eq!(attempts[0].status.as_ref().unwrap().code, 2, "an error");
    has(attempts[1], &[("http.response.status_code", "200")]);

    // What is queued at the end is sent.
    let mut connection = gate.connect().await;
    for _ in 0..1_000 {
        connection.ask(&request).await.is("0").is_hit();
    }
    assert_eq!(gate.stop().await, Some(0));
    assert_eq!(collector.spans().len(), 1_008);
}

#[tokio::test]
async fn the_caller_decides_what_is_sampled_and_else_chance() {
    let collector = Collector::start(Some(200)).await;
    let builder = || collector.of(TestGateway::before_http().key("bot").set("cache.points.ttl", r#""0s""#));
    let never = builder().set("log.otlp_sample", "0").start().await;
    let always = builder().set("log.otlp_sample", "1.0").start().await;
    let unsampled = SAMPLED.replace("-01", "-00");
    for gate in [&never, &always] {
        let request = gate.request("getPoints", "bot", "memberID=7");
        gate.send(&request.clone().header("traceparent", &unsampled)).await.is("0");
        let at_origin = gate.origin().seen().pop().unwrap();
        assert!(at_origin.header("traceparent").unwrap().ends_with("-00"));
    }
    let request = never.request("getPoints", "bot", "memberID=7").header("tracestate", "a=1");
    never.send(&request).await.is("0");
    assert_eq!(never.origin().seen().pop().unwrap().header("traceparent"), None);
    let request = always.request("getPoints", "bot", "memberID=7").header("tracestate", "a=1");
    always.send(&request).await.is("0");
    let spans = collector.has(2).await;
    let (server, client) = (of_kind(&spans, SpanKind::Server)[0], of_kind(&spans, SpanKind::Client)[0]);
    assert!(server.parent_span_id.is_empty() && server.trace_id.len() == 16, "{server:#?}");
    let at_origin = always.origin().seen().pop().unwrap();
    let expected = format!("00-{}-{}-01", hex(&server.trace_id), hex(&client.span_id));
    assert_eq!((at_origin.header("traceparent"), at_origin.header("tracestate")), (Some(&*expected), None));
}

#[tokio::test]
async fn a_collector_that_never_answers_delays_neither_requests_nor_the_end() {
    let collector = Collector::start(None).await;
    let mut gate = collector.of(TestGateway::builder().key("bot").points("7", 3)).start().await;
    let request = sampled(&gate, "getPoints", "memberID=7");
    gate.send(&request).await.is("3");
    eventually(PATIENCE, "the first message comes", || async { collector.messages() == 1 }).await;
    let begin = Instant::now();
    for _ in 0..100 {
        gate.send(&request).await.is("3");
    }
    // Had they waited for the collector, they would have taken 5 s at least.
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let begin = Instant::now();
    assert_eq!(gate.stop().await, Some(0));
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert!(gate.stderr().contains("the export of traces could not be written to its end"), "{}", gate.stderr());
}

#[tokio::test]
async fn a_collector_that_refuses_is_reported_once_a_minute() {
    let collector = Collector::start(Some(400)).await;
    let mut gate = collector.of(TestGateway::builder().key("bot").points("7", 3)).start().await;
    let request = sampled(&gate, "getPoints", "memberID=7");
    let three_messages = || async {
        gate.send(&request).await.is("3");
        collector.messages() >= 3
    };
    eventually(PATIENCE, "three messages come", three_messages).await;
    assert_eq!(gate.stop().await, Some(0));
    let stderr = gate.stderr();
    let reports: Vec<_> = stderr.lines().filter(|line| line.contains("traces cannot be sent")).collect();
    assert!(reports.len() == 1 && reports[0].contains("400") && reports[0].contains("/v1/traces"), "{stderr}");
}

#[test]
fn a_wrong_url_or_fraction_is_a_fault_with_its_place() {
    let read = |toml: &str| guildgate::config::load_str(toml, std::path::Path::new("/"), "gateway.toml");
    let url = "4:8: log.otlp: ";
    let sample = "4:15: log.otlp_sample: ";
    for (line, fault) in [
        (r#"otlp = "127.0.0.1:4318""#, url),
        (r#"otlp = "https://127.0.0.1:4318""#, url),
        (r#"otlp = "http://""#, url),
        (r#"otlp = "http://:4318""#, url),
        (r#"otlp = "http://user:secret@collector:4318""#, url),
        (r#"otlp = "http://collector:99999""#, url),
        (r#"otlp = "http://collector:4318?a=b""#, url),
        (r#"otlp = "http://collector#a""#, url),
        ("otlp_sample = 1.01", sample),
        ("otlp_sample = -0.1", sample),
        ("otlp_sample = nan", sample),
        ("otlp_sample = 2", sample),
        (r#"otlp_sample = "1""#, sample),
    ] {
        let problems = read(&format!("[admin]\nlisten = \"\"\n[log]\n{line}\n")).unwrap_err().to_string();
        assert!(problems.contains(fault), "{line}: {problems}");
    }
    for url in ["http://collector", "http://[::1]:4318/", "http://127.0.0.1:4318/otlp"] {
        assert!(read(&format!("[log]\notlp = {url:?}\notlp_sample = 1\n")).is_ok(), "{url}");
    }
}
