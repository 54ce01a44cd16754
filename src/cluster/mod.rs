//! What several nodes share through Redis (contract section 3 `[cluster]`): the limits of each key. `escrow` is pure and
//! has both sides of the protocol; `shared_limits` is what requests see, and `turns` the task that talks to Redis.

pub mod escrow;
mod redis;
mod shared_limits;
mod turns;

pub use self::redis::{RedisConnection, RedisFault, ServerInfo};
pub use self::shared_limits::{Counters, KeyEscrow, Needs, SharedLimits};
pub use self::turns::{Turns, check, evicts_text};
