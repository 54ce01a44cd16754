//! What the nodes before one service know of each other. `freshness` tells how old that knowledge is, whether it comes
//! by the store's change feed or by the bus; `bus` tells each node of the writes of the others.

pub mod bus;
mod freshness;

pub use freshness::{Freshness, MAX_AGE};
