//! Tells what became of a part: in the log, to admins, and to those who asked for the reload.

use std::sync::atomic::Ordering;

use super::parts::Outcome;
use super::{Part, PartState, Reloader};
use crate::admin::{ReloadFault, ReloadOutcome};

impl Reloader {
    /// A fault is found again each second, and told once, or whenever a reload is asked for.
    pub(super) fn tell(&mut self, part: Part, outcome: Outcome) {
        let mut files = self.files(part);
        files.truncate(if part == Part::Config { 1 } else { 2 });
        let file = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ");
        let state = &self.parts[part as usize];
        let (outcome, faults) = match outcome {
            Ok(None) => return,
            Ok(Some(outcome)) => {
                log_reloaded(part, &file, &outcome);
                (outcome, Vec::new())
            }
            Err(faults) if state.faults == faults && !state.is_asked => return,
            Err(faults) => {
                log_rejected(part, &file, &faults);
                if part == Part::Config {
                    self.admin.reloads.rejected.fetch_add(1, Ordering::Relaxed);
                }
                (ReloadOutcome::rejected(part.name(), faults.clone()), faults)
            }
        };
        self.admin.reloads.record(self.gateway.clock().unix(), part.name(), &outcome);
        let before = std::mem::replace(&mut self.parts[part as usize], PartState { faults, is_asked: false });
        if before.is_asked {
            self.asked.outcome.add(outcome);
        }
    }
}

fn log_reloaded(part: Part, file: &str, outcome: &ReloadOutcome) {
    let changed = if outcome.changed.is_empty() { "nothing".to_owned() } else { outcome.changed.join(", ") };
    match part {
        Part::Config if outcome.after_restart.is_empty() => tracing::info!(%file, changed, "configuration reloaded"),
        Part::Config => {
            let after_restart = outcome.after_restart.join(", ");
            tracing::warn!(
                %file,
                changed,
                after_restart,
                "configuration reloaded; what `after_restart` names takes effect after a restart"
            );
        }
        Part::Keys => tracing::info!(%file, "key file reloaded"),
        Part::Certificate => tracing::info!(%file, "TLS certificate reloaded"),
    }
}

fn log_rejected(part: Part, file: &str, faults: &[ReloadFault]) {
    let what = match part {
        Part::Config => "reload rejected; still running the previous configuration",
        Part::Keys => "key file rejected; the keys read before stay in force",
        Part::Certificate => "TLS certificate rejected; new connections still get the previous one",
    };
    tracing::error!(%file, "{what}: {}", in_one_line(faults));
}

pub(super) fn in_one_line(faults: &[ReloadFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
