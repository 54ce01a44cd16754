//! What the origin's answers say about one key: accepted, refused, or neither. Answers may arrive in another order than
//! the questions were asked; the newer question wins, so that a late success cannot undo a newer 02, nor a late 02 a
//! newer success. Reading takes no lock, since every request with such a key reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;

/// What the origin's answers say about one key. What counts is when the origin was asked, not when its answer came: an
/// answer that took long proves no more than it did then.
#[derive(Debug, Default)]
pub struct Proof {
    /// When the origin was asked for the newest answer that accepts the key; 0: there is none.
    accepted: AtomicU64,
    /// When it was asked for the newest 02.
    refused: Mutex<Option<Tick>>,
}

impl Proof {
    /// Whether the key is proven at `now`, if answers to questions from before `since` do not count.
    pub fn is_valid(&self, now: Tick, accepted_for: Duration, since: Tick) -> bool {
        let accepted = self.accepted.load(Ordering::Acquire);
        accepted != 0 && Tick(accepted) >= since && now < Tick(accepted).plus(accepted_for)
    }

    /// Whether the newest answer accepted the key, however long ago.
    pub fn was_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire) != 0
    }

    /// The origin was asked at `asked` and accepted the key. Returns whether that still holds.
    pub fn accept(&self, asked: Tick) -> bool {
        let refused = self.refused.lock();
        let holds = refused.is_none_or(|refused| refused < asked);
        if holds {
            self.accepted.fetch_max(asked.0.max(1), Ordering::AcqRel);
        }
        holds
    }

    /// The origin was asked at `asked` and refused the key with 02. Returns whether that still holds.
    pub fn refute(&self, asked: Tick) -> bool {
        let mut refused = self.refused.lock();
        let holds = self.accepted.load(Ordering::Acquire) <= asked.0.max(1);
        if holds {
            self.accepted.store(0, Ordering::Release);
            *refused = (*refused).max(Some(asked));
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR: Duration = Duration::from_nanos(100);

    #[test]
    fn a_proof_is_valid_for_so_long_from_when_the_origin_was_asked() {
        let proof = Proof::default();
        assert!(!proof.is_valid(Tick(0), FOR, Tick(0)) && !proof.was_accepted());
        assert!(proof.accept(Tick(50)));
        assert!(proof.is_valid(Tick(149), FOR, Tick(0)) && !proof.is_valid(Tick(150), FOR, Tick(0)));
        assert!(proof.was_accepted());
        assert!(proof.accept(Tick(40)), "an older answer that comes later");
        assert!(proof.is_valid(Tick(149), FOR, Tick(0)), "does not shorten it");
    }

    #[test]
    fn what_another_origin_said_does_not_count() {
        let proof = Proof::default();
        assert!(proof.accept(Tick(50)));
        assert!(proof.is_valid(Tick(60), FOR, Tick(50)) && !proof.is_valid(Tick(60), FOR, Tick(51)));
    }

    #[test]
    fn the_newer_question_decides_in_whatever_order_the_answers_come() {
        let proof = Proof::default();
        assert!(proof.accept(Tick(10)));
        assert!(proof.refute(Tick(20)));
        assert!(!proof.is_valid(Tick(21), FOR, Tick(0)) && !proof.was_accepted());
        assert!(!proof.accept(Tick(15)), "asked before the 02 was");
        assert!(!proof.is_valid(Tick(21), FOR, Tick(0)));
        assert!(proof.accept(Tick(30)) && proof.is_valid(Tick(31), FOR, Tick(0)));
        assert!(!proof.refute(Tick(25)), "asked before the proof was");
        assert!(proof.is_valid(Tick(31), FOR, Tick(0)));
    }
}
