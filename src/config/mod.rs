//! `gateway.toml`: what was typed ([`file`]) and what is usable ([`Config`]) are two types.

mod usable;

pub use usable::*;
