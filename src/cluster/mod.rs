//! What several nodes share through Redis (contract section 3 `[cluster]`): the limits of each key. `escrow` is pure and
//! has both sides of the protocol.

pub mod escrow;
