//! `[cache]`: how long answers are kept, by the rows of the operations.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use toml::Table;

use super::file::section;
use super::leaf::{HumanDuration, HumanSize};
use super::problem::Faults;
use crate::wire::{Answer, Kind, Operation};

/// The most memory for answers: more than any machine has.
const MAX_SIZE: u64 = 1 << 50;

section! {
    /// `[cache]`
    pub struct Cache {
        /// Memory for answers.
        #[serde(with = "HumanSize")]
        pub max_size: u64 = 64 << 20,
        /// By [`Operation::index`]; nothing of a write is cached.
        #[serde(flatten, serialize_with = "write_sections", deserialize_with = "read_sections")]
        #[schemars(schema_with = "sections")]
        pub freshness: [Freshness; Operation::COUNT] = default_freshness(),
    }
}

/// `[cache.NAME]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freshness {
    /// How long an answer is fresh; "0s": it is never fresh.
    #[serde(with = "HumanDuration")]
    pub ttl: Duration,
    /// After that: how long it may still be served while a new one is fetched.
    #[serde(with = "HumanDuration")]
    pub stale_while_revalidate: Duration,
    /// After that: how long it may still be served while the origin fails.
    #[serde(with = "HumanDuration")]
    pub stale_if_error: Duration,
}

impl Freshness {
    /// For an answer that is not cached.
    pub const NONE: Freshness =
        Freshness { ttl: Duration::ZERO, stale_while_revalidate: Duration::ZERO, stale_if_error: Duration::ZERO };
}

impl Cache {
    pub(super) fn check(&self, faults: &mut Faults<'_>) {
        faults.size("cache.max_size", self.max_size, 0..=MAX_SIZE);
    }

    /// For how long answers to a read may be used.
    pub fn of(&self, read: Operation) -> Freshness {
        self.freshness[read.index()]
    }
}

/// The reads, each with the name of its section in `[cache]` and what is in force where that says nothing.
pub fn cached_reads() -> impl Iterator<Item = (Operation, &'static str, Freshness)> {
    Operation::ALL.into_iter().filter_map(|operation| match operation.row().kind {
        Kind::Read { section, ttl, stale_if_error, .. } => {
            Some((operation, section, Freshness { ttl, stale_if_error, ..Freshness::NONE }))
        }
        Kind::Write { .. } | Kind::Pass { .. } => None,
    })
}

fn default_freshness() -> [Freshness; Operation::COUNT] {
    let mut freshness = [Freshness::NONE; Operation::COUNT];
    cached_reads().for_each(|(read, _, default)| freshness[read.index()] = default);
    freshness
}

fn write_sections<S: Serializer>(freshness: &[Freshness; Operation::COUNT], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(cached_reads().map(|(read, name, _)| (name, freshness[read.index()])))
}

fn read_sections<'de, D: Deserializer<'de>>(input: D) -> Result<[Freshness; Operation::COUNT], D::Error> {
    let typed = BTreeMap::<String, Table>::deserialize(input)?;
    let mut freshness = default_freshness();
    for (read, name, default) in cached_reads() {
        let mut section = Table::try_from(default).map_err(D::Error::custom)?;
        section.extend(typed.get(name).cloned().unwrap_or_default());
        freshness[read.index()] = section.try_into().map_err(D::Error::custom)?;
    }
    Ok(freshness)
}

/// The sections of the reads, with the defaults of each.
fn sections(generator: &mut SchemaGenerator) -> Schema {
    let section = |(operation, name, default): (Operation, &'static str, Freshness)| {
        let mut section = Freshness::json_schema(generator);
        let expires = match operation.row().answer {
            Answer::Map { expires: true } => "; never served past the first expiry they hold",
            _ => "",
        };
        section.insert("description".to_owned(), format!("Answers to {}{expires}.", operation.name()).into());
        section.remove("required");
        let defaults = serde_json::to_value(default).unwrap_or_default();
        for (name, setting) in section.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            setting["default"] = defaults[name].clone();
        }
        section.insert("default".to_owned(), defaults);
        (name.to_owned(), section.to_value())
    };
    json_schema!({ "type": "object", "properties": Map::from_iter(cached_reads().map(section)) })
}
