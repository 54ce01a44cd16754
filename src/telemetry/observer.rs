//! Where requests are reported: what the limits decided, at the moment of the decision, and how a request ended. The
//! record of decisions, the access log, the metrics and the export of traces get it from here. It decides nothing but
//! which requests are traced, and no request waits for it.

use std::sync::Arc;

use super::last_refusals::LastRefusals;
use super::metrics::{RequestMetrics, RequestTotals};
use super::{AccessLine, AccessLog, Decision, DecisionLog};
use crate::wire::{TraceContext, TraceParent};

/// Observes every request.
#[derive(Debug, Default)]
pub struct Observer {
    pub access: Option<Arc<AccessLog>>,
    pub decisions: Option<Arc<DecisionLog>>,
    pub metrics: RequestMetrics,
    pub last_refusals: LastRefusals,
    #[cfg(feature = "otlp")]
    pub traces: Option<Arc<super::TraceExport>>,
}

impl Observer {
    /// The trace and the parent of a request's span, if it is sampled.
    #[cfg(feature = "otlp")]
    pub fn sample(&self, trace: &TraceContext<'_>) -> Option<TraceParent> {
        self.traces.as_ref()?.sample(trace)
    }

    /// No trace is exported by this build.
    #[cfg(not(feature = "otlp"))]
    pub fn sample(&self, _: &TraceContext<'_>) -> Option<TraceParent> {
        None
    }

    /// Records what the limits decided on a request. To be called at the moment of the decision and not at the end of
    /// the request: `limits plan` and `limits suggest` replay the record, and need the decisions of a key in the order
    /// in which they were made. `decision` is called only if there is a record.
    pub fn decided(&self, decision: impl FnOnce() -> Decision) {
        if let Some(decisions) = &self.decisions {
            decisions.writer.record(decision());
        }
    }

    /// Counts a request over the limit of its address. The record has no decision for it, since it has no valid key.
    pub fn over_address_limit(&self) {
        if let Some(decisions) = &self.decisions {
            decisions.count_stranger();
        }
    }

    /// The counts of all requests so far.
    pub fn totals(&self) -> RequestTotals {
        self.metrics.totals()
    }

    /// The last refusals of each code, the latest first.
    pub fn last_refusals(&self) -> Vec<AccessLine> {
        self.last_refusals.list()
    }

    /// Reports the end of a request; to be called once for each request that is answered.
    pub fn finished(&self, line: AccessLine) {
        self.metrics.count(&line);
        self.last_refusals.add(&line);
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces.as_ref().filter(|_| line.span.is_some()) {
            traces.writer.record(line.clone());
        }
        if let Some(access) = &self.access {
            access.record(line);
        }
    }
}
