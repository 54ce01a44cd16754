//! The limits that a request can be over, as one enum with the names of `gateway.toml`. The index is written into
//! decision records, so the order of the variants must not change. The limit for addresses and a tier's candidate limit
//! are not among them.

/// A limit of a key's tier (contract section 3, `[limits]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

impl Limit {
    pub const ALL: [Limit; 4] = [Limit::Rate, Limit::WriteRate, Limit::Daily, Limit::InFlight];

    /// A small number for tables and records.
    pub const fn index(self) -> usize {
        self as usize
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
