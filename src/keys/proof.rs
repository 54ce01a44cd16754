//! What the origin's answers say about one key: proven, refused, or neither. Answers may arrive in another order than
//! the questions were asked; the newer question wins, so that a late success cannot undo a newer 02, nor a late 02 a
//! newer success. Reading takes no lock, since every request with such a key reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;

/// What the origin's answers say of one key. What counts is when the origin was asked, not when
/// its answer came: an answer that was long on its way proves no more than it did then.
#[derive(Debug, Default)]
pub struct Proof {
    /// When the origin was asked for the newest answer that proves the key; 0: it is not proven.
    proven: AtomicU64,
    /// When it was asked for the newest 02.
    refuted: Mutex<Option<Tick>>,
}

impl Proof {
    /// Whether the key may be gone by at `now`, if what was said before `since` does not count.
    pub fn stands(&self, now: Tick, accepted_for: Duration, since: Tick) -> bool {
        let proven = self.proven.load(Ordering::Acquire);
        proven != 0 && Tick(proven) >= since && now < Tick(proven).plus(accepted_for)
    }

    /// Whether the newest answer was one that proves it, however long ago.
    pub fn was_good(&self) -> bool {
        self.proven.load(Ordering::Acquire) != 0
    }

    /// The origin was asked at `asked`, and its answer proves the key. Whether that still holds.
    pub fn accept(&self, asked: Tick) -> bool {
        let refuted = self.refuted.lock();
        let holds = refuted.is_none_or(|refuted| refuted < asked);
        if holds {
            self.proven.fetch_max(asked.0.max(1), Ordering::AcqRel);
        }
        holds
    }

    /// The origin was asked at `asked`, and said 02. Whether that still holds.
    pub fn refute(&self, asked: Tick) -> bool {
        let mut refuted = self.refuted.lock();
        let holds = self.proven.load(Ordering::Acquire) <= asked.0.max(1);
        if holds {
            self.proven.store(0, Ordering::Release);
            *refuted = (*refuted).max(Some(asked));
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR: Duration = Duration::from_nanos(100);

    #[test]
    fn a_key_is_gone_by_for_so_long_from_when_the_origin_was_asked() {
        let proof = Proof::default();
        assert!(!proof.stands(Tick(0), FOR, Tick(0)) && !proof.was_good());
        assert!(proof.accept(Tick(50)));
        assert!(proof.stands(Tick(149), FOR, Tick(0)) && !proof.stands(Tick(150), FOR, Tick(0)));
        assert!(proof.was_good());
        assert!(proof.accept(Tick(40)), "an older answer that comes later");
        assert!(proof.stands(Tick(149), FOR, Tick(0)), "does not shorten it");
    }

    #[test]
    fn what_another_origin_said_does_not_count() {
        let proof = Proof::default();
        assert!(proof.accept(Tick(50)));
        assert!(proof.stands(Tick(60), FOR, Tick(50)) && !proof.stands(Tick(60), FOR, Tick(51)));
    }

    #[test]
    fn the_newer_question_decides_in_whatever_order_the_answers_come() {
        let proof = Proof::default();
        assert!(proof.accept(Tick(10)));
        assert!(proof.refute(Tick(20)));
        assert!(!proof.stands(Tick(21), FOR, Tick(0)) && !proof.was_good());
        assert!(!proof.accept(Tick(15)), "asked before the 02 was");
        assert!(!proof.stands(Tick(21), FOR, Tick(0)));
        assert!(proof.accept(Tick(30)) && proof.stands(Tick(31), FOR, Tick(0)));
        assert!(!proof.refute(Tick(25)), "asked before the proof was");
        assert!(proof.stands(Tick(31), FOR, Tick(0)));
    }
}
