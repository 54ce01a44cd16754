//! How often a key may ask: GCRA per key on governor, tiers, and the strangers' budget
//! (contract section 3 `[limits]`, guarantees 6 and 8).

mod bucket;
mod policy;
mod strangers;

pub use bucket::{Bucket, Level, Verdict};
pub use policy::{Meters, Policy, Spent};
pub use strangers::Strangers;
