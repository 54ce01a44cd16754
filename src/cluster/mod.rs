//! What several nodes share through Redis (contract section 3 `[cluster]`). `escrow` is pure and has both sides of the
//! limits' protocol; `shared_limits` is what requests see of it, and `turns` the task that talks to Redis about the keys
//! of `turn_queue`. `bus` tells
//! each node of the writes of the others; `freshness` tells how old what is known of others is, whether it comes by the
//! store's change feed or by the bus. `nodes` is what they tell of themselves. `redis_clock` is by whose clock a day begins.

pub mod bus;
pub mod escrow;
mod freshness;
mod nodes;
mod redis;
mod redis_clock;
mod shared_limits;
mod turn_queue;
mod turns;

pub use self::freshness::{Freshness, MAX_AGE};
pub use self::nodes::{ClusterStatus, Node, NodeReport, NodeState, status};
pub use self::redis::{RedisConnection, RedisFault, ServerInfo};
pub use self::redis_clock::RedisClock;
pub use self::shared_limits::{Counters, Needs, SharedLimits, Wait};
pub use self::turn_queue::KeyEscrow;
pub use self::turns::{START_TIMEOUT, Turns, check, evicts_text, late_text};
