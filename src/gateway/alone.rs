//! Whether this process serves alone. While another one serves the same addresses (`server.handover`), neither answers
//! from memory nor keeps anything, so that neither has to know of the other's writes (guarantee 2). `process/handover`
//! says when.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::state::Core;
use super::write::{unknown_for, write_time};
use crate::clock::Tick;
use crate::model::MemberId;

/// The most members that a successor is told of. More of them within one `points.ttl` come only from an origin that
/// fails all writes; then the successor keeps nothing about anybody for that long.
const MAX_UNSETTLED: usize = 1024;

/// Set in the count of writes once none may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// This process's part in a hand-over.
#[derive(Debug)]
pub struct Alone {
    core: Arc<Core>,
    unsettled: Mutex<Unsettled>,
    /// Writes under way.
    writes: AtomicUsize,
}

/// Members whose write has ended with an unknown outcome, and until when it may take effect.
#[derive(Debug, Default)]
struct Unsettled {
    members: HashMap<MemberId, Tick>,
    /// Until when writes to members that are not named may take effect.
    others_until: Tick,
}

impl Unsettled {
    fn insert(&mut self, member: MemberId, until: Tick, now: Tick) {
        if self.members.len() >= MAX_UNSETTLED {
            self.members.retain(|_, until| *until > now);
        }
        if self.members.len() < MAX_UNSETTLED {
            self.members.insert(member, until);
        } else {
            self.others_until = until.max(self.others_until);
        }
    }

    fn list(&self, now: Tick) -> Option<Vec<MemberId>> {
        let members = self.members.iter().filter(|(_, until)| **until > now);
        (self.others_until <= now).then(|| members.map(|(member, _)| *member).collect())
    }
}

/// A write under way, until it is dropped.
#[derive(Debug)]
pub(super) struct CountedWrite<'a>(&'a AtomicUsize);

impl Alone {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Alone { core, unsettled: Mutex::default(), writes: AtomicUsize::new(0) }
    }

    /// Another process may serve from now on: until [`Alone::end`] nothing is answered from memory, and nothing is kept.
    pub fn begin(&self) {
        self.core.cache.gate.not_alone();
    }

    /// No other process serves any more. `unsettled`: the members whose write there may still take effect; `None`: nobody
    /// knows which ones.
    pub fn end(&self, unsettled: Option<Vec<MemberId>>) {
        let (gate, state) = (&self.core.cache.gate, self.core.state());
        let until = self.core.now().plus(unknown_for(&state).max(write_time(&state)));
        match unsettled {
            Some(members) => members.into_iter().for_each(|member| {
                gate.unknown_outcome(member, until);
                self.unknown_outcome(member, until);
            }),
            None => {
                gate.ask_until(until);
                self.unsettled.lock().others_until = until;
            }
        }
        gate.alone();
    }

    /// A write here has ended with an unknown outcome, and may take effect until then.
    pub(super) fn unknown_outcome(&self, member: MemberId, until: Tick) {
        self.unsettled.lock().insert(member, until, self.core.now());
    }

    /// The members whose write may still take effect; `None`: too many to name.
    pub fn unsettled(&self) -> Option<Vec<MemberId>> {
        self.unsettled.lock().list(self.core.now())
    }

    /// Counts a write, from before it waits for anything; `None`: none may begin here any more.
    pub(super) fn begin_write(&self) -> Option<CountedWrite<'_>> {
        let write = CountedWrite(&self.writes);
        (self.writes.fetch_add(1, Ordering::SeqCst) & CLOSED == 0).then_some(write)
    }

    /// Lets no write begin any more, if none is under way. Returns whether that is so, and another process may answer from
    /// memory: reads are answered from the origin here, and need not be waited for.
    pub fn end_writes(&self) -> bool {
        matches!(self.writes.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst), Ok(_) | Err(CLOSED))
    }
}

impl Drop for CountedWrite<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_members_than_can_be_named_are_named_again_once_the_others_have_settled() {
        let (mut unsettled, most) = (Unsettled::default(), MAX_UNSETTLED as u64);
        let member = |n| MemberId::new(n).unwrap();
        (0..most).for_each(|n| unsettled.insert(member(n), Tick(10), Tick(0)));
        assert_eq!(unsettled.list(Tick(0)).unwrap().len(), MAX_UNSETTLED);
        unsettled.insert(member(most), Tick(12), Tick(2));
        assert_eq!(unsettled.list(Tick(2)), None);
        unsettled.insert(member(most), Tick(20), Tick(10));
        assert_eq!((unsettled.list(Tick(11)), unsettled.list(Tick(12))), (None, Some(vec![member(most)])));
        assert_eq!(unsettled.list(Tick(20)), Some(Vec::new()));
    }
}
