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
    pub(super) text: String,
    /// In Unix seconds.
    pub(super) since: i64,
    /// The path and the name of the page that shows more.
    pub(super) page: (&'static str, &'static str),
}

/// When each issue that is there was first seen, by what it is about.
#[derive(Debug, Default)]
pub(super) struct Issues(Mutex<HashMap<String, i64>>);

const OVERVIEW: (&str, &str) = ("./", "Overview");
const CONFIGURATION: (&str, &str) = ("configuration", "Configuration");
const REFUSALS: (&str, &str) = ("refusals", "Refusals");

impl Shared {
    /// What is wrong now, the worst first.
    pub(super) fn issues(&self) -> Vec<Issue> {
        let now = self.gateway.clock().unix();
        let mut first_seen = self.own.issues.0.lock();
        let (mut issues, mut there) = (Vec::new(), HashMap::new());
        for (class, about, text, page, since) in self.wrong().into_iter().chain(self.odd(now)) {
            let since = since.unwrap_or_else(|| first_seen.get(&about).copied().unwrap_or(now));
            there.insert(about, since);
            issues.push(Issue { class, text, since, page });
        }
        *first_seen = there;
        issues.sort_by_key(|issue| issue.class != WRONG);
        issues
    }

    fn wrong(&self) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for fault in self.faults() {
            let what_to_do =
                if fault.contains("store") { ": see the disk or the database, and the process log" } else { "" };
            found.push((WRONG, fault.to_owned(), format!("{fault}{what_to_do}"), OVERVIEW, None));
        }
        for upstream in self.gateway.state().origin.upstreams().into_iter().filter(|upstream| !upstream.is_up) {
            let (since, why) = upstream.out.unzip();
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            let text = format!(
                "{} failed its last requests or health checks{why}, and is asked only where no other upstream is left: see \
                 the service there, and the process log",
                upstream.name
            );
            found.push((WRONG, upstream.name, text, OVERVIEW, since));
        }
        for warning in self.cluster_status().map(|status| status.warnings).unwrap_or_default() {
            let class = if warning.contains(" differ ") { ODD } else { WRONG };
            let about = warning.split([':', '(']).next().unwrap_or_default().to_owned();
            found.push((class, about, warning, OVERVIEW, None));
        }
        for (file, fault) in self.process.reloads.rejected_files() {
            let text = format!(
                "the last reload of {file} was rejected, and what was in force stays so; mend the file ({fault}); every \
                 fault is on the page Configuration and in the process log"
            );
            found.push((WRONG, format!("reload {file}"), text, CONFIGURATION, None));
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
            found.push((WRONG, "failed".to_owned(), text, REFUSALS, None));
        }
        found
    }

    /// What is odd: nothing fails for it yet, and nobody may have meant it.
    fn odd(&self, now: i64) -> Vec<Found> {
        let (store, state) = (self.store.as_ref(), self.gateway.state());
        let unwritable = store.and_then(|store| store.write_fault());
        let unwritable =
            unwritable.map(|why| format!("the store cannot be written to, and setPoints is refused: {why}"));
        let shadow = state.config.limits.shadow_warning().map(str::to_owned);
        let waiting = self.process.config.read().after_restart.join(", ");
        let waiting = (!waiting.is_empty()).then(|| format!("these settings take effect after a restart: {waiting}"));
        let callers = self.metrics.value("guildgate_certificate_expires_timestamp_seconds").map(|ends| ends as i64);
        let certificate = |setting, ends: Option<i64>| ends.and_then(|ends| ends_soon(setting, ends, now));
        let odd = [
            ("unwritable", unwritable, OVERVIEW),
            ("shadow", shadow, CONFIGURATION),
            ("restart", waiting, CONFIGURATION),
            ("server.tls", certificate("server.tls", callers), CONFIGURATION),
            ("admin.tls", certificate("admin.tls", self.certificate_ends), CONFIGURATION),
        ];
        odd.into_iter().filter_map(|(about, text, page)| Some((ODD, about.to_owned(), text?, page, None))).collect()
    }
}

/// An issue with what it is about, and since when it is there where that is known.
type Found = (&'static str, String, String, (&'static str, &'static str), Option<i64>);
