//! The export of traces (`log.otlp`, OTLP over HTTP), only in builds with the feature `otlp`. A sampled request pushes its
//! outcome into a bounded ring and never waits; a thread makes the spans and sends them to the collector in batches. What
//! does not fit into the ring, and a batch that the collector does not take in time, is dropped, counted and logged.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::{Builder, Runtime};

use super::writer::{BackgroundWriter, INTERVAL, Sink};
use super::{AccessLine, CacheUse};
use crate::config::Otlp;
use crate::wire::{Operation, OriginSpan, RequestSpan, TraceContext, TraceParent};

/// Sampled requests that wait for the thread: 2 s of 2,000 a second, 1 MB.
const QUEUE: usize = 4_096;

/// The most requests in one message to the collector, about 500 KB.
const MAX_BATCH: usize = 512;

/// How long a request waits for others of its batch.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// For one batch, with up to three retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The flag of `traceparent` by which a caller samples a request.
const SAMPLED: u8 = 1;

/// The export of traces.
#[derive(Debug)]
pub struct TraceExport {
    sample: f64,
    /// To it a sampled request is handed.
    pub writer: BackgroundWriter<AccessLine>,
}

impl TraceExport {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started, or a variable of the environment (`OTEL_EXPORTER_OTLP_…`) cannot be used.
    pub fn start(otlp: &Otlp) -> io::Result<Self> {
        let exporter = Exporter::new(otlp)?;
        let writer = BackgroundWriter::start("the export of traces", "otlp", (QUEUE, INTERVAL), exporter)?;
        Ok(TraceExport { sample: otlp.sample, writer })
    }

    /// The trace and the parent of a request's span, if it is sampled: the caller decides, or where it sends no valid
    /// `traceparent`, chance.
    pub fn sample(&self, trace: &TraceContext<'_>) -> Option<TraceParent> {
        match trace.traceparent() {
            Some(parent) => (parent.flags & SAMPLED != 0).then_some(parent),
            None => (fastrand::f64() < self.sample).then(|| TraceParent {
                trace_id: fastrand::u128(1..), // 0 is no id
                parent_id: 0,
                flags: SAMPLED,
            }),
        }
    }
}

/// What the thread works with.
struct Exporter {
    endpoint: String,
    otlp: opentelemetry_otlp::SpanExporter,
    runtime: Runtime,
    scope: InstrumentationScope,
    waiting: Vec<AccessLine>,
    /// Requests whose spans were lost since the last success.
    lost: usize,
}

impl Exporter {
    fn new(Otlp { endpoint, .. }: &Otlp) -> io::Result<Self> {
        let mut otlp = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(io::Error::other)?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        otlp.set_resource(&Resource::builder().with_service_name("guildgate").with_attribute(version).build());
        Ok(Exporter {
            endpoint: endpoint.clone(),
            otlp,
            runtime: Builder::new_current_thread().enable_all().build()?,
            scope: InstrumentationScope::builder("guildgate").build(),
            waiting: Vec::with_capacity(MAX_BATCH),
            lost: 0,
        })
    }

    /// The span of a request, and those of its requests to an origin.
    fn spans(&self, outcome: &AccessLine, span: &RequestSpan) -> Vec<SpanData> {
        let mut attributes = vec![
            KeyValue::new("http.request.method", span.method),
            KeyValue::new("http.response.status_code", i64::from(outcome.status)),
            KeyValue::new("url.scheme", span.scheme),
            KeyValue::new("guildgate.request_id", outcome.id.to_string()),
        ];
        attributes.extend(span.path.as_deref().map(|path| KeyValue::new("url.path", path.to_owned())));
        attributes.extend(outcome.key.as_deref().map(|key| KeyValue::new("guildgate.key", key.to_owned())));
        attributes.extend(outcome.code.map(|code| KeyValue::new("guildgate.code", i64::from(code))));
        attributes.extend(outcome.cache.map(|cache| KeyValue::new("guildgate.cache", CacheUse::name(cache))));
        let name = outcome.operation.map_or(span.method, Operation::name);
        let times = (span.started, span.started + outcome.took);
        // What a caller does wrong is no error of this service.
        let is_error = outcome.status >= 500;
        let mut all = vec![(span.id, span.trace.parent_id, SpanKind::Server, name, times, attributes, is_error)];
        for attempt in &*span.origin_spans.lock() {
            let OriginSpan { id, operation, upstream, address, began, ended, status } = attempt;
            let mut attributes = vec![
                KeyValue::new("http.request.method", "POST"),
                KeyValue::new("server.address", address.ip().to_string()),
                KeyValue::new("server.port", i64::from(address.port())),
                KeyValue::new("guildgate.upstream", upstream.to_string()),
            ];
            attributes.extend(status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
            let at = |tick: crate::clock::Tick| span.started + tick.since(span.arrived);
            let times = (at(*began), ended.map_or(times.1, at));
            let is_error = status.is_none_or(|status| status >= 400);
            all.push((*id, span.id, SpanKind::Client, operation.name(), times, attributes, is_error));
        }
        let (trace_id, flags) = (TraceId::from(span.trace.trace_id), TraceFlags::SAMPLED);
        let data = |(id, parent_id, span_kind, name, (start_time, end_time), attributes, is_error)| SpanData {
            span_context: SpanContext::new(trace_id, SpanId::from(id), flags, false, TraceState::NONE),
            parent_span_id: SpanId::from(parent_id),
            parent_span_is_remote: span_kind == SpanKind::Server,
            span_kind,
            name: Cow::Borrowed(name),
            start_time,
            end_time,
            attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: if is_error { Status::error("") } else { Status::Unset },
            instrumentation_scope: self.scope.clone(),
        };
        all.into_iter().map(data).collect()
    }
}

impl Sink<AccessLine> for Exporter {
    const DELAY: Duration = BATCH_INTERVAL;

    fn add(&mut self, line: AccessLine) -> bool {
        self.waiting.push(line);
        self.waiting.len() >= MAX_BATCH
    }

    fn write(&mut self, _: u64) {
        if self.waiting.is_empty() {
            return;
        }
        let spans = self.waiting.iter().filter_map(|outcome| Some((outcome, outcome.span.as_deref()?)));
        let spans = spans.flat_map(|(outcome, span)| self.spans(outcome, span)).collect();
        let sending = async { tokio::time::timeout(EXPORT_TIMEOUT, self.otlp.export(spans)).await };
        let error = match self.runtime.block_on(sending) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", EXPORT_TIMEOUT.as_secs())),
        };
        let (endpoint, lost) = (&self.endpoint, self.waiting.drain(..).count());
        let Some(error) = error else {
            if self.lost > 0 {
                tracing::info!(%endpoint, lost = self.lost, "traces are sent again");
            }
            self.lost = 0;
            return;
        };
        if self.lost == 0 {
            tracing::warn!(%endpoint, error, "traces cannot be sent to the collector of log.otlp and are lost");
        }
        self.lost += lost;
    }
}
