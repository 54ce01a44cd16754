//! What the nodes before one service know of each other. `freshness` tells how old that knowledge is.

mod freshness;

pub use freshness::{Freshness, MAX_AGE};
