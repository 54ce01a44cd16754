//! What several nodes share through Redis (contract section 3 `[cluster]`).

pub mod bus; // word of writes, before an HTTP origin
mod bus_redis; // its stream in Redis
mod freshness; // how old what is known of others is, whether by the store's change feed or by the bus
mod limits; // the limits that all nodes have together: `limit.lua` decides
mod nodes; // what each node tells of itself through `nodes.lua`, and whether Redis is back
mod redis; // connections

pub use self::bus_redis::RedisStream;
pub use self::freshness::{Freshness, MAX_AGE};
pub use self::limits::SharedLimits;
pub use self::nodes::{ClusterStatus, Node, NodeState, START_TIMEOUT, check, evicts_text, status};
pub use self::redis::{RedisFault, ServerInfo};
