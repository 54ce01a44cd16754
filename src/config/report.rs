//! What `guildgate check` prints: the values in force as TOML, and what the limits mean. The hash of a configuration is
//! made of the same values.

use std::fmt::Write;

use toml::{Table, Value};

use super::file::{ConfigFile, FreshnessFile, TierFile};
use super::secret::{Secret, Source};
use super::usable::{Cluster, ConfigHash, Limits, OriginKind, Rate, WhenAway, cached_reads};
use super::{Config, DEFAULT_FILE, Keys, Loaded, StoreAt};
use crate::model::Limit;

const MINUTE_NS: u64 = 60_000_000_000;
const DAY_NS: u64 = 24 * 60 * MINUTE_NS;

/// The values in force by their names in the file: with the defaults, the number of threads and whole paths
/// (`resolved`), and without settings that have no effect. Their hash is that of the values before threads and paths
/// are filled in, so that it is the same in every folder and on every machine; with a cluster also on every node.
pub(super) fn in_force(mut file: ConfigFile, config: &Config, resolved: Vec<(String, String)>) -> (Table, ConfigHash) {
    let is_written = |token: &Secret| matches!(token.source(), Source::Written(_));
    let tokens = [("token", Some(&file.admin.token)), ("read_token", file.admin.read_token.as_ref())];
    let tokens = tokens.into_iter().chain([("bot_token", file.admin.bot_token.as_ref())]);
    let hidden: Vec<&str> = tokens.filter(|(_, token)| token.is_some_and(is_written)).map(|(name, _)| name).collect();
    file.limits.tiers.entry(config.limits.default_tier.name.clone()).or_insert_with(TierFile::standard);
    // Hidden as a secret, since it may have a password: a path has none, and a URL is shown without it.
    let store = match (&config.origin.store, file.origin.store.source()) {
        (StoreAt::Sqlite(_), Source::Written(path)) => path.to_owned(),
        (at, _) => at.to_string(),
    };
    let Ok(Value::Table(mut values)) = Value::try_from(file) else { return (Table::new(), ConfigHash::default()) };
    if let Some(hidden) = values.get_mut("origin").and_then(|origin| origin.get_mut("store")) {
        *hidden = store.into();
    }
    if let Some(cache) = values.get_mut("cache").and_then(Value::as_table_mut) {
        let section = |operation| Value::try_from(FreshnessFile::from(config.cache.of(operation)));
        cache.extend(cached_reads().filter_map(|(read, name, _)| Some((name.to_owned(), section(read).ok()?))));
    }
    remove_ineffective(&mut values, config, &hidden);
    let mut shared = values.clone();
    if config.cluster.is_some() {
        remove_of_node(&mut shared, config);
    }
    let hash = hash(&shared);
    let mut values = Value::Table(values);
    let threads = [("server.threads".to_owned(), Value::from(config.server.threads as i64))];
    for (setting, found) in resolved.into_iter().map(|(setting, text)| (setting, text.into())).chain(threads) {
        let mut steps = setting.split(['.', '[']);
        let value = steps.try_fold(&mut values, |above, step| match step.strip_suffix(']') {
            Some(element) => above.get_mut(element.parse::<usize>().ok()?),
            None => above.get_mut(step),
        });
        if let Some(value) = value {
            *value = found;
        }
    }
    match values {
        Value::Table(values) => (values, hash),
        _ => (Table::new(), hash),
    }
}

/// The hash of these values as TOML.
fn hash(values: &Table) -> ConfigHash {
    ConfigHash::of(&toml::to_string(values).unwrap_or_default()) // a table of TOML can be written as TOML
}

/// Removes the settings that have no effect, and these secrets.
fn remove_ineffective(values: &mut Table, config: &Config, hidden: &[&str]) {
    let tiers = values.get_mut("limits").and_then(|limits| limits.get_mut("tiers")?.as_table_mut());
    for (_, tier) in tiers.into_iter().flatten() {
        let Some(tier) = tier.as_table_mut() else { continue };
        if !tier.contains_key("write_rate") {
            tier.remove("write_burst");
        }
    }
    match &config.cluster {
        None => drop(values.remove("cluster")),
        Some(cluster) if cluster.replicas.is_none() => {
            keep(values, "cluster", &["redis", "node", "prefix", "timeout", "when_away", "nodes"]);
        }
        Some(_) => {}
    }
    if config.admin.listener.is_none() {
        keep(values, "admin", &["listen"]);
    } else if let Some(admin) = values.get_mut("admin").and_then(Value::as_table_mut) {
        // A token in the file itself is not shown.
        admin.retain(|name, _| !hidden.contains(&name));
    }
    if config.origin.kind == OriginKind::Builtin {
        keep(values, "origin", &["kind", "store"]);
    }
    match config.keys {
        Keys::Store => keep(values, "keys", &["source"]),
        Keys::File(_) => keep(values, "keys", &["source", "file"]),
        Keys::Origin { .. } => keep(values, "keys", &["source", "accepted_for", "refused_for"]),
    }
}

/// Removes what may differ between the nodes of a cluster: names, addresses, files, and what only operators see.
fn remove_of_node(values: &mut Table, config: &Config) {
    ["admin", "log"].into_iter().for_each(|section| drop(values.remove(section)));
    let store = if matches!(config.origin.store, StoreAt::Sqlite(_)) { "store" } else { "" };
    for (section, names) in [
        ("server", &["listen", "threads", "handover", "tls"][..]),
        ("origin", &["tls", store]),
        ("keys", &["file"]),
        ("cluster", &["redis", "node"]),
    ] {
        if let Some(section) = values.get_mut(section).and_then(Value::as_table_mut) {
            section.retain(|name, _| !names.contains(&name));
        }
    }
}

/// Keeps only these names of a section.
fn keep(values: &mut Table, section: &str, names: &[&str]) {
    if let Some(section) = values.get_mut(section).and_then(Value::as_table_mut) {
        section.retain(|name, _| names.contains(&name));
    }
}

/// The config in force, as `guildgate check` prints it (contract section 2): several lines, the last one ended.
pub fn report(loaded: &Loaded) -> String {
    let mut page = match &loaded.path {
        Some(path) => format!("{} is valid. In force:\n\n", path.display()),
        None => format!("There is no {DEFAULT_FILE}; the defaults are in force:\n\n"),
    };
    page += &loaded.toml();
    page += &in_words(&loaded.config.limits, loaded.config.cluster.as_ref());
    if loaded.config.cluster.as_ref().is_some_and(|cluster| cluster.replicas.is_some()) {
        page += WRITES_IN_WORDS;
    }
    if !loaded.warnings.is_empty() {
        page += "\nWarnings:\n";
        page.extend(loaded.warnings.iter().map(|warning| format!("  {warning}\n")));
    }
    page
}

/// What `[cluster] redis` means for writes before an HTTP origin.
const WRITES_IN_WORDS: &str = "
Writes in words:
  setPoints                   is answered once Redis has the notice for all other nodes, else with 22
  while Redis is away         every setPoints is refused with 21, and every read goes to the origin
";

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
            row("  over all nodes", &over_all_nodes(&tier.main));
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

/// What all nodes together let through, as the contract's guarantee 6 says it.
fn over_all_nodes(rate: &Rate) -> String {
    let (burst, each) = (rate.burst, rate.per_second());
    format!(
        "at most {burst} + {each}/s * T in any time T; {each}/s * D more if a fail-over loses the last D of Redis or its \
         clock jumps ahead by D"
    )
}

/// What limits a key on each node while Redis is away.
fn while_away(rate: &Rate, cluster: &Cluster) -> String {
    let Cluster { when_away, nodes, .. } = cluster;
    let (burst, each) = (rate.burst.get(), rate.per_second());
    match when_away {
        WhenAway::Share if burst < *nodes => {
            format!("nothing: a burst of {burst} cannot be divided by {nodes} nodes")
        }
        WhenAway::Share => {
            let share = burst / nodes;
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

impl Rate {
    /// Requests a second, after rounding, to ten digits: `20`, `2.999999994`, `0.00001157407407`.
    pub fn per_second(&self) -> String {
        let rate = 1e9 / self.period_ns as f64;
        let decimals = (9.0 - rate.log10().floor()).clamp(0.0, 20.0) as usize;
        let text = format!("{rate:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    }

    /// The most that is let through in `ns` nanoseconds: the burst, and what comes back meanwhile.
    pub fn most_within(&self, ns: u64) -> u64 {
        u64::from(self.burst.get()) + ns / self.period_ns
    }
}
