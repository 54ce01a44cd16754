//! The table of keys: look-ups, and what passes from one table to the next.

mod budgets;
mod table;

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::clock::Tick;
use crate::config::{Limits, Rate, Tier};
use crate::keys::{KeyTable, ListedKey};
use crate::limits::{DecidedBy, LimitQuery};
use crate::model::{Digest, Scope};
use crate::wire::Operation;

const SECOND: u64 = 1_000_000_000;

/// One tier of one request a second.
fn limits(burst: u32) -> Limits {
    let rate = Rate { period_ns: SECOND, burst: NonZeroU32::new(burst).unwrap() };
    let tier = Arc::new(Tier::new("standard", rate));
    Limits { default_tier: tier.clone(), tiers: vec![tier], shadow: false, strangers: rate }
}

/// A key of one guild.
fn listed(id: &str, secret: &str) -> ListedKey {
    ListedKey {
        id: id.into(),
        digest: Digest::of(secret.as_bytes()),
        guild: "g".parse().unwrap(),
        guild_departed: false,
        tier: None,
        scope: Scope::Write,
        expires: None,
    }
}

fn table_at(listed: Vec<ListedKey>, burst: u32, before: &KeyTable, second: u64) -> KeyTable {
    KeyTable::new(listed, &limits(burst), before, Tick(second * SECOND), 0)
}

fn first_table(listed: Vec<ListedKey>, burst: u32) -> KeyTable {
    table_at(listed, burst, &KeyTable::default(), 0)
}

fn never() -> i64 {
    unreachable!("the wall clock is read only for keys that expire")
}

/// How many of so many requests a key's limits let in, at a second.
fn let_in(key_table: &KeyTable, secret: &str, second: u64, requests: usize) -> usize {
    let key = key_table.find(&Digest::of(secret.as_bytes()), never).unwrap();
    let ask = LimitQuery { operation: Operation::GetPoints, in_flight: 0, now: Tick(second * SECOND) };
    (0..requests).filter(|_| key.budget.decide(&key.policy, ask, DecidedBy::ALONE, || 0).over.is_none()).count()
}
