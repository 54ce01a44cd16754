//! How often a key may ask: GCRA per key on governor, tiers, and the strangers' budget
//! (contract section 3 `[limits]`, guarantees 6 and 8).

mod bucket;
mod day;
mod meters;
mod policy;
mod strangers;
mod tally;
mod usage;

#[cfg(test)]
mod tests;

pub use bucket::{Bucket, Change, Level, Verdict};
pub use day::{Counted, DayCount, day_of};
pub use meters::Meters;
pub use policy::{Ask, Decided, Policy, Spent};
pub use strangers::{Paid, Strangers, network};
pub use tally::{Tallied, Tally};
pub use usage::Usage;
