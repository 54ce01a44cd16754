//! What `guildgate check` prints: the values in force as TOML, and what the limits mean. The hash of a configuration is
//! made of the same values.

use std::fmt::Write;

use toml::{Table, Value};

use super::cluster::{Cluster, WhenAway};
use super::file::{ConfigFile, ConfigHash};
use super::secret::HIDDEN;
use super::{Config, DEFAULT_FILE, Limits, Loaded, OriginKind, Rate};
use crate::model::Limit;

const MINUTE_NS: u64 = 60_000_000_000;
const DAY_NS: u64 = 24 * 60 * MINUTE_NS;

/// The values in force by their names in the file: with the defaults and whole paths, and without secrets and sections that
/// have no effect.
pub(super) fn in_force(file: &ConfigFile, config: &Config) -> Table {
    let Ok(mut values) = Table::try_from(file) else { return Table::new() };
    let mut put = |section: &str, name: &str, value: String| {
        values
            .get_mut(section)
            .and_then(Value::as_table_mut)
            .map(|section| section.insert(name.to_owned(), value.into()))
    };
    // Hidden as a secret, since it may have a password: a path has none, and a URL is shown without it.
    put("origin", "store", config.origin.store.to_string());
    if let Some(cluster) = &config.cluster {
        put("cluster", "redis", cluster.redis.to_string());
        put("cluster", "node", cluster.node.clone());
    }
    let has_redis = config.cluster.is_some();
    let is_http = config.origin.kind != OriginKind::Builtin;
    values.retain(|name, _| has_redis || name != "cluster");
    for (section, values) in &mut values {
        let Value::Table(values) = values else { continue };
        // A token in the file itself is not shown.
        values.retain(|name, value| match &**section {
            "admin" => value.as_str() != Some(HIDDEN),
            "origin" => is_http || name == "kind" || name == "store",
            _ => true,
        });
    }
    values
}

/// The hash of what decides about answers: the same in every folder and on every node of a cluster.
pub(super) fn hash(values: &Table) -> ConfigHash {
    let shared = ["answers", "limits", "cache"].map(|name| (name.to_owned(), values.get(name).cloned()));
    let shared: Table = shared.into_iter().filter_map(|(name, section)| Some((name, section?))).collect();
    ConfigHash::of(&toml::to_string(&shared).unwrap_or_default()) // a table of TOML can be written as TOML
}

/// The config in force, as `guildgate check` prints it (contract section 2): several lines, the last one ended.
pub fn report(loaded: &Loaded) -> String {
    let mut page = match &loaded.path {
        Some(path) => format!("{} is valid. In force:\n\n", path.display()),
        None => format!("There is no {DEFAULT_FILE}; the defaults are in force:\n\n"),
    };
    page += &loaded.toml();
    page += &in_words(&loaded.config.limits, loaded.config.cluster.as_ref());
    if !loaded.warnings.is_empty() {
        page += "\nWarnings:\n";
        page.extend(loaded.warnings.iter().map(|warning| format!("  {warning}\n")));
    }
    page
}

/// The limits as a key and an address meet them.
fn in_words(limits: &Limits, cluster: Option<&Cluster>) -> String {
    let mut page = "\nLimits in words:\n".to_owned();
    let mut row = |name: &str, text: &str| {
        let _ = writeln!(page, "{}", format!("  {name:<27} {text}").trim_end()); // writing to a String cannot fail
    };
    if limits.shadow {
        row("shadow", "on: requests over a limit are counted and reported, and none is refused");
    }
    for tier in &limits.tiers {
        row(&format!("tier {}", tier.name), "");
        row("  all operations", &per_key(&tier.main, tier.daily));
        for (limit, rate) in Limit::RATES.into_iter().zip(tier.rates()).skip(1) {
            let words = rate.map_or_else(|| "no separate limit".to_owned(), |rate| per_key(&rate, tier.daily));
            row(&format!("  {}, in addition", limit.name()), &words);
        }
        if let Some(cluster) = cluster {
            let (burst, each) = (tier.main.burst, tier.main.per_second());
            row("  over all nodes", &format!("at most {burst} + {each}/s * T in any time T"));
            row("  while Redis is away", &while_away(&tier.main, cluster));
        }
        if let Some(candidate) = &tier.candidate {
            row("  candidate", &format!("{}; counted only, it refuses nothing", per_key(candidate, tier.daily)));
        }
    }
    let Rate { burst, .. } = limits.strangers;
    let (each, minute) = (limits.strangers.per_second(), limits.strangers.most_within(MINUTE_NS));
    row("strangers", &format!("{each}/s, burst {burst}; an address can do at most {minute} in its first minute"));
    page
}

/// What limits a key on each node while Redis is away.
fn while_away(rate: &Rate, cluster: &Cluster) -> String {
    let (burst, each, nodes) = (rate.burst.get(), rate.per_second(), cluster.nodes);
    match cluster.when_away {
        WhenAway::Share => {
            let share = (burst / nodes).max(1);
            format!("burst {share} at {each}/s / {nodes} on each node, or less if more nodes were seen")
        }
        WhenAway::Local => format!("burst {burst} at {each}/s on each node"),
        WhenAway::Refuse => "nothing: every request is refused with 21".to_owned(),
    }
}

/// A rate as one key meets it; `daily` caps what it can do in a day.
fn per_key(rate: &Rate, daily: Option<u64>) -> String {
    let (each, burst, minute) = (rate.per_second(), rate.burst, rate.most_within(MINUTE_NS));
    let cap = daily.unwrap_or(u64::MAX);
    let (minute, day) = (minute.min(cap), rate.most_within(DAY_NS).min(cap));
    format!("{each}/s, burst {burst}; a key can do at most {minute} in its first minute, {day} in a day")
}
