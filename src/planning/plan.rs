//! Which keys other limits would refuse, how often and when. A request counts as newly refused only if the record says
//! that it was accepted.

use std::collections::HashMap;

use serde::Serialize;

use super::intervals::BusiestInterval;
use super::record::{OnProgress, ReadError, RecordFiles, RecordSummary, RecordedDecision};
use super::replay::Replay;
use crate::config::Limits;
use crate::limits::LimitOutcome;
use crate::model::{KeyId, counted, date_of, was};

/// What other limits would do to the recorded requests.
#[derive(Debug)]
pub struct Plan {
    /// The keys of which a request would be refused or is over a candidate limit, those that lose most first.
    pub keys: Vec<PlannedKey>,
    pub read: RecordSummary,
    /// Requests that were accepted and would be refused.
    pub newly_refused: u64,
    /// What the limits would do, in one or two lines.
    pub summary: String,
}

/// The requests of one key under the new configuration.
#[derive(Debug, Default, Serialize)]
pub struct PlannedKey {
    pub key: String,
    /// Its name in the store.
    pub name: Option<String>,
    /// Its tier under the new configuration.
    pub tier: String,
    pub requests: u64,
    /// Refused when they were recorded.
    pub refused_then: u64,
    pub would_be_refused: u64,
    pub newly_refused: u64,
    pub over_candidate: u64,
    /// The first that would be refused.
    pub first: Option<String>,
    /// The minute in which most would be refused, and how many.
    pub worst_minute: Option<String>,
    pub worst_minute_refused: u32,
    #[serde(skip)]
    refused_by_minute: BusiestInterval,
}

impl Plan {
    /// Decides the recorded requests again under `limits`. `names` are shown with the keys.
    ///
    /// # Errors
    /// The record cannot be read, or `progress` ends the reading.
    pub fn new(
        limits: &Limits,
        record: &RecordFiles,
        names: &HashMap<KeyId, String>,
        progress: OnProgress<'_>,
    ) -> Result<Self, ReadError> {
        let (mut replay, mut rows) = (Replay::new(limits), Vec::new());
        let read = record.for_each(progress, &mut |recorded| {
            let outcome = replay.decide(recorded);
            if recorded.key == rows.len() {
                rows.push(PlannedKey::new(recorded, names));
            }
            rows[recorded.key].count(recorded, &outcome, limits);
        })?;
        let newly_refused = rows.iter().map(|row| row.newly_refused).sum();
        let summary = summary(limits, &rows);
        finish(&mut rows, limits.shadow);
        Ok(Plan { keys: rows, read, newly_refused, summary })
    }
}

impl PlannedKey {
    fn new(recorded: RecordedDecision<'_>, names: &HashMap<KeyId, String>) -> Self {
        let key = &recorded.decision.key;
        PlannedKey { key: key.to_string(), name: names.get(key).cloned(), ..PlannedKey::default() }
    }

    fn count(&mut self, recorded: RecordedDecision<'_>, outcome: &LimitOutcome, limits: &Limits) {
        let decision = recorded.decision;
        let tier = &limits.tier(decision.tier.as_deref()).name;
        if self.tier != *tier {
            self.tier.clone_from(tier);
        }
        self.requests += 1;
        self.refused_then += u64::from(decision.refused);
        self.over_candidate += u64::from(outcome.over_candidate);
        if outcome.over.is_some() {
            let unix = decision.unix_ms.div_euclid(1000);
            self.would_be_refused += 1;
            self.newly_refused += u64::from(!decision.refused);
            self.first.get_or_insert_with(|| date_of(unix));
            self.refused_by_minute.add(unix.div_euclid(60), 1);
        }
    }
}

/// Removes the keys of which no request would be refused or is over a candidate limit, and sorts those that lose most
/// to the front. In shadow mode nothing is refused.
fn finish(rows: &mut Vec<PlannedKey>, shadow: bool) {
    for row in &mut *rows {
        let BusiestInterval { interval: minute, count, .. } = row.refused_by_minute;
        if shadow {
            (row.would_be_refused, row.newly_refused, row.first) = (0, 0, None);
        } else if count > 0 {
            (row.worst_minute, row.worst_minute_refused) = (Some(date_of(minute * 60)), count);
        }
    }
    rows.retain(|row| row.would_be_refused > 0 || row.over_candidate > 0);
    rows.sort_by(|a, b| {
        let most = |row: &PlannedKey| (row.newly_refused, row.would_be_refused, row.over_candidate);
        most(b).cmp(&most(a)).then_with(|| a.key.cmp(&b.key))
    });
}

/// What the new configuration would do, in one or two lines.
fn summary(limits: &Limits, rows: &[PlannedKey]) -> String {
    let total = |of: fn(&PlannedKey) -> u64| {
        (rows.iter().map(of).sum::<u64>(), counted(rows.iter().filter(|row| of(row) > 0).count() as u64, "key"))
    };
    let ((over, _), (newly, keys)) = (total(|row| row.would_be_refused), total(|row| row.newly_refused));
    let requests = counted(over, "request");
    if rows.is_empty() {
        return "There are no decisions, so nothing is known of what would be refused.".to_owned();
    }
    let mut text = match over {
        _ if limits.shadow => {
            format!("limits.shadow is true: nothing would be refused. {requests} would be over the limits.")
        }
        0 => "Nothing would be refused.".to_owned(),
        _ => format!("{requests} would be refused; {newly} of them {} accepted then, of {keys}.", was(newly)),
    };
    if limits.tiers.iter().any(|tier| tier.candidate.is_some()) {
        let (over, keys) = total(|row| row.over_candidate);
        let requests = counted(over, "request");
        text += &format!("\n{requests} of {keys} would be over a candidate limit, which refuses nothing.");
    }
    text
}
