//! The limits that a request can be over, as one enum with the names of `gateway.toml`. The limit for addresses and a
//! tier's candidate limit are not among them.

use serde::{Deserialize, Serialize};

/// A limit of a key's tier (contract section 3, `[limits]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// `rate` and `burst`.
    Rate,
    /// `write_rate` and `write_burst`.
    WriteRate,
    /// `daily`.
    Daily,
    /// `in_flight`.
    InFlight,
}

/// One of each rate of a tier.
pub type PerRate<T> = [T; Limit::RATES.len()];

impl Limit {
    /// The limits that are rates. One that counts fewer requests comes later, and decides earlier.
    pub const RATES: [Limit; 2] = [Limit::Rate, Limit::WriteRate];

    pub const ALL: [Limit; 4] = [Limit::Rate, Limit::WriteRate, Limit::Daily, Limit::InFlight];

    /// A small number for tables and records.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether this rate counts a request.
    pub const fn counts(self, is_write: bool) -> bool {
        is_write || !matches!(self, Limit::WriteRate)
    }

    /// What follows the tier's name in this rate's item of the `RateLimit` header fields.
    pub const fn suffix(self) -> &'static str {
        match self {
            Limit::WriteRate => "-write",
            _ => "",
        }
    }

    /// Its name in `gateway.toml`.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Rate => "rate",
            Limit::WriteRate => "write_rate",
            Limit::Daily => "daily",
            Limit::InFlight => "in_flight",
        }
    }
}
