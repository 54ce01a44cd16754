//! The budgets of all keys that are listed, by id, and of keys that were listed until everything has come back that they
//! used up: so a key that is removed and added again, or rotated, begins with what was left (guarantee 6).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::limits::{Budget, DayCount};
use crate::model::KeyId;

/// The budgets, for all tables of the process.
#[derive(Debug, Default)]
pub struct Budgets(Mutex<HashMap<KeyId, Arc<Budget>>>);

impl Budgets {
    /// Those of keys of which the store has a count of the day.
    pub fn with_day_counts(counts: Vec<(KeyId, DayCount)>) -> Self {
        Budgets(Mutex::new(counts.into_iter().map(|(id, count)| (id, Arc::new(Budget::with_day(count)))).collect()))
    }

    /// The budget of the key with this id.
    pub fn of(&self, id: &KeyId) -> Arc<Budget> {
        self.0.lock().entry(id.clone()).or_default().clone()
    }

    /// Forgets the idle budgets of keys that are not listed.
    pub fn forget_idle(&self, is_listed: impl Fn(&KeyId) -> bool, now: Tick, unix: i64) {
        self.0.lock().retain(|id, budget| is_listed(id) || !budget.is_idle(now, unix));
    }
}
