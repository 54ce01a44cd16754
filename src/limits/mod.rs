//! The limits (contract section 3 `[limits]`, guarantees 6 and 8): GCRA buckets for each key, the day's count, requests in
//! flight, recent activity, and the limit for addresses without a valid key. `Policy::decide` checks the limits of a key. Time is an
//! argument.

mod activity;
mod bucket;
mod buckets;
mod day;
mod over_limit;
mod policy;
mod share;
mod shared;
mod strangers;
mod usage;

#[cfg(test)]
pub(crate) mod tests;

pub use activity::{Activity, ActivityCounts, RecentActivity};
pub use bucket::{Bucket, Level, RateChange, Verdict};
pub use buckets::{Buckets, UsedUp};
pub use day::{DayCount, DayCounter, day_of};
pub use over_limit::{OverLimitCounters, OverLimitCounts};
pub use policy::{BucketLevels, KeyLevels, LimitOutcome, LimitQuery, Policy};
pub use share::{
    SharedUsedUp, charge_shared_as, escrow_of, is_shared_under_another_id, leave_shared_id, share_in_flight,
    shared_used_up,
};
pub use shared::SharedDecision;
pub use strangers::{AddressCharge, Strangers, network};
pub use usage::{Usage, UsageId};
