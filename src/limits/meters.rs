use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{Bucket, Policy};
use crate::clock::Tick;
use crate::config::Rate;

/// The buckets of one key under one policy. They outlive changes of the key's record; under another
/// policy there are new ones, which take over what is used up when they are first asked. (Not
/// before: until the new policy is in force, requests are still counted under the old one.)
#[derive(Debug, Default)]
pub struct Meters {
    pub(super) main: Bucket,
    pub(super) write: Bucket,
    pub(super) candidate: Bucket,
    /// The rate under which `write` was counted last, where there is none now: taken away and put
    /// back, it refills no one.
    write_was: OnceLock<Rate>,
    /// Set once there is nothing to take over any more.
    settled: AtomicBool,
    before: Mutex<Option<(Arc<Policy>, Arc<Meters>)>>,
}

impl Meters {
    /// The buckets of a key that was held to another policy until now.
    pub fn after(policy: &Arc<Policy>, meters: &Arc<Meters>, now: Tick) -> Self {
        // Nobody may have asked since the last change; settled now, no chain of changes builds up.
        meters.settle(policy, now);
        Meters { before: Mutex::new(Some((policy.clone(), meters.clone()))), ..Meters::default() }
    }

    pub(super) fn settle(&self, policy: &Policy, now: Tick) {
        if self.settled.load(Ordering::Acquire) {
            return;
        }
        let mut before = self.before.lock();
        if let Some((old, meters)) = before.take() {
            let (from, to) = (old.tier(), policy.tier());
            self.main.inherit(&meters.main, from.main, to.main, now);
            if let Some(was) = from.write.or(meters.write_was.get().copied()) {
                self.write.inherit(&meters.write, was, to.write.unwrap_or(was), now);
                if to.write.is_none() {
                    let _ = self.write_was.set(was); // under the lock, once
                }
            }
            if let (Some(from), Some(to)) = (from.candidate, to.candidate) {
                self.candidate.inherit(&meters.candidate, from, to, now);
            }
        }
        self.settled.store(true, Ordering::Release);
    }

    /// Whether nothing is used up: a key that is gone need not be remembered any longer.
    pub fn are_full(&self, policy: &Policy, now: Tick) -> bool {
        self.settle(policy, now);
        self.main.is_full(now) && self.write.is_full(now)
    }
}
