//! What is wrong or odd, the worst first, each with since when and with the page where more is to be seen.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::shared::Shared;
use crate::model::counted;
use crate::telemetry::metrics::RequestTotals;
use crate::tls::ends_soon;

/// Samples over which a share of failed requests is looked at, with the one of now: the last ten seconds or so.
const RECENT: usize = 3;

/// How bad an issue is, as a class of the style sheet.
const WRONG: &str = "alert";
const ODD: &str = "warn";

/// Something that is wrong, or odd.
#[derive(Clone, Debug)]
pub(super) struct Issue {
    pub(super) class: &'static str,
    /// What it is about, which does not change while it lasts.
    about: String,
    pub(super) text: String,
    /// The path and the name of the page that shows more.
    pub(super) page: (&'static str, &'static str),
    /// In Unix seconds, where that is known.
    pub(super) since: Option<i64>,
}

/// When each issue that is there was first seen, by what it is about.
#[derive(Debug, Default)]
pub(super) struct Issues(Mutex<HashMap<String, i64>>);

const OVERVIEW: (&str, &str) = ("./", "Overview");
const CONFIGURATION: (&str, &str) = ("configuration", "Configuration");
const REFUSALS: (&str, &str) = ("refusals", "Refusals");

impl Issue {
    fn new(class: &'static str, about: &str, text: String, page: (&'static str, &'static str)) -> Self {
        Issue { class, about: about.to_owned(), text, page, since: None }
    }
}

impl Shared {
    /// What is wrong now, the worst first.
    pub(super) fn issues(&self) -> Vec<Issue> {
        let now = self.gateway.clock().unix();
        let mut first_seen = self.own.issues.0.lock();
        let mut issues = self.wrong();
        issues.extend(self.odd(now));
        for issue in &mut issues {
            issue.since = issue.since.or_else(|| first_seen.get(&issue.about).copied()).or(Some(now));
        }
        *first_seen = issues.iter().map(|issue| (issue.about.clone(), issue.since.unwrap_or(now))).collect();
        issues.sort_by_key(|issue| issue.class != WRONG);
        issues
    }

    fn wrong(&self) -> Vec<Issue> {
        let mut found: Vec<Issue> = Vec::new();
        for fault in self.faults() {
            let what_to_do =
                if fault.contains("store") { ": see the disk or the database, and the process log" } else { "" };
            found.push(Issue::new(WRONG, fault, format!("{fault}{what_to_do}"), OVERVIEW));
        }
        for upstream in self.gateway.state().origin.upstreams().into_iter().filter(|upstream| !upstream.is_up) {
            let (since, why) = upstream.out.unzip();
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            let text = format!(
                "{} failed its last requests or health checks{why}, and is asked only where no other upstream is left: see \
                 the service there, and the process log",
                upstream.name
            );
            found.push(Issue { since, ..Issue::new(WRONG, &upstream.name, text, OVERVIEW) });
        }
        for warning in self.cluster_status().map(|status| status.warnings).unwrap_or_default() {
            let class = if warning.contains(" differ ") { ODD } else { WRONG };
            let about = warning.split([':', '(']).next().unwrap_or_default().to_owned();
            found.push(Issue::new(class, &about, warning, OVERVIEW));
        }
        for (file, fault) in self.process.reloads.rejected_files() {
            let text = format!(
                "the last reload of {file} was rejected, and what was in force stays so; mend the file ({fault}); every \
                 fault is on the page Configuration and in the process log"
            );
            found.push(Issue::new(WRONG, file, text, CONFIGURATION));
        }
        // So many that the origin or the store cannot be well, as monitoring/alerts.yml has it: more than 5 %.
        let samples = self.own.traffic.samples(&self.gateway);
        let (from, to) = (&samples[samples.len().saturating_sub(RECENT)], &samples[samples.len() - 1]);
        let grown = |of: fn(&RequestTotals) -> u64| of(&to.totals).saturating_sub(of(&from.totals));
        let (all, failed) = (grown(|of| of.by_code.iter().sum()), grown(|of| of.by_code[20..=22].iter().sum()));
        if found.is_empty() && failed * 20 > all {
            let all = counted(all, "request");
            let text = format!(
                "of the last {all}, {failed} got 20, 21 or 22: see the origin or the store, and the process log"
            );
            found.push(Issue::new(WRONG, "failed", text, REFUSALS));
        }
        found
    }

    /// What is odd: nothing fails for it yet, and nobody may have meant it.
    fn odd(&self, now: i64) -> Vec<Issue> {
        let (store, state) = (self.store.as_ref(), self.gateway.state());
        let unwritable = store.and_then(|store| store.write_fault());
        let unwritable =
            unwritable.map(|why| format!("the store cannot be written to, and setPoints is refused: {why}"));
        let shadow = state.config.limits.shadow_warning().map(str::to_owned);
        let waiting = self.process.config.read().after_restart.join(", ");
        let waiting = (!waiting.is_empty()).then(|| format!("these settings take effect after a restart: {waiting}"));
        let callers = self.connections.value("guildgate_certificate_expires_timestamp_seconds").map(|ends| ends as i64);
        let certificate = |setting, ends: Option<i64>| ends.and_then(|ends| ends_soon(setting, ends, now));
        let odd = [
            ("unwritable", unwritable, OVERVIEW),
            ("shadow", shadow, CONFIGURATION),
            ("restart", waiting, CONFIGURATION),
            ("server.tls", certificate("server.tls", callers), CONFIGURATION),
            ("admin.tls", certificate("admin.tls", self.certificate_ends), CONFIGURATION),
        ];
        odd.into_iter().filter_map(|(about, text, page)| Some(Issue::new(ODD, about, text?, page))).collect()
    }
}
