//! The limits (contract section 3 `[limits]`, guarantees 6 and 8): what each key has used up of its rates, its day and its
//! requests in flight, its recent activity, and the limit for addresses without a valid key. [`Budget::decide`] decides on
//! one request of a key. Time is an argument.

mod activity; // a key's last minute, hour and day, for people
mod budget; // what a key has used up, and the decision
mod day; // the count of the UTC day
mod policy; // a tier in force
mod questions; // what is asked of Redis
mod rate; // one rate
mod rate_limit_fields; // the values of the RateLimit header fields
mod strangers; // addresses without a valid key

#[cfg(test)]
pub(crate) mod tests;

pub use activity::{Activity, ActivityCounts, HOURS, RecentActivity};
pub use budget::{BucketLevels, Budget, DecidedBy, KeyLevels, LimitOutcome, LimitQuery, Told};
pub use day::{DayCount, DayUse, day_of};
pub use policy::{OverLimitCounters, Policy};
pub use questions::{Answer, Question};
pub use rate::{Bucket, Level, Limiter};
pub use strangers::{AddressCharge, Strangers, network};
