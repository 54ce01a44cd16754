//! What `guildgate check` prints, and the schema of the config file.

use std::fmt::{Display, Write};
use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use super::file::ConfigFile;
use super::leaf::{HumanDuration, HumanSize};
use super::usable::{
    Access, AnswerHeaders, Decisions, Freshness, Health, Level, Limits, Listen, OriginKind, Rate, Server, Tier,
    Upstreams,
};
use super::{Config, DEFAULT_FILE, Keys, Loaded};

const MINUTE_NS: u64 = 60_000_000_000;
const DAY_NS: u64 = 24 * 60 * MINUTE_NS;

/// The config in force, as `guildgate check` prints it (contract section 2): several lines, the last one ended.
pub fn report(loaded: &Loaded) -> String {
    let Loaded { config, notices, path, .. } = loaded;
    let mut page = Page::default();
    match path {
        Some(path) => page.line(format_args!("{} is valid. In force:", path.display())),
        None => page.line(format_args!("There is no {DEFAULT_FILE}; the defaults are in force:")),
    }
    page.server(&config.server);
    page.answers(config);
    page.origin(config);
    page.limits(&config.limits);
    page.section("cache");
    page.row("max_size", HumanSize(config.cache.max_size));
    page.freshness("points", &config.cache.points);
    page.freshness("warns", &config.cache.warns);
    page.freshness("reviews", &config.cache.reviews);
    page.log(config);
    if !notices.is_empty() {
        page.line("\nNotices:");
        for notice in notices {
            page.line(format_args!("  {notice}"));
        }
    }
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, text: impl Display) {
        let _ = writeln!(self.0, "{text}"); // a String takes everything
    }

    fn section(&mut self, name: &str) {
        self.line(format_args!("\n[{name}]"));
    }

    fn row(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("  {name:<27} {value}"));
    }

    fn server(&mut self, server: &Server) {
        self.section("server");
        for listen in &server.listen {
            match listen {
                Listen::Tcp(address) => self.row("listen", address),
                Listen::Unix(path) => self.row("listen", format_args!("unix:{}", path.display())),
            }
        }
        self.row("base_path", or_none(&server.base_path));
        self.row("threads", server.threads);
        self.row("max_connections", server.max_connections);
        match server.max_connections_per_address {
            Some(most) => self.row("max_connections_per_address", most),
            None => self.row("max_connections_per_address", "no limit"),
        }
        self.row("header_timeout", HumanDuration(server.header_timeout));
        self.row("body_timeout", HumanDuration(server.body_timeout));
        self.row("write_timeout", HumanDuration(server.write_timeout));
        self.row("idle_timeout", HumanDuration(server.idle_timeout));
        self.row("drain_timeout", HumanDuration(server.drain_timeout));
        match &server.handover {
            Some(path) => self.row("handover", path.display()),
            None => self.row("handover", "off"),
        }
        self.row("max_body", HumanSize(server.max_body as u64));
        self.row("max_header", HumanSize(server.max_header as u64));
        let proxies: Vec<_> = server.trusted_proxies.iter().map(ToString::to_string).collect();
        self.row("trusted_proxies", or_none(&proxies.join(", ")));
        self.row("health_path", server.health_path.as_deref().unwrap_or("off"));
        match &server.tls {
            Some(tls) => {
                self.row("tls.certificate", tls.certificate.display());
                self.row("tls.private_key", tls.private_key.display());
            }
            None => self.row("tls", "off"),
        }
    }

    fn answers(&mut self, config: &Config) {
        let answers = &config.answers;
        self.section("answers");
        self.row("service_name", &answers.wording.service_name);
        self.row("key_command", &answers.wording.key_command);
        self.row("error_status", if answers.errors_as_ok { "ok" } else { "http" });
        let AnswerHeaders { cache_status, ratelimit, request_id, age } = answers.headers;
        let all = [("cache-status", cache_status), ("ratelimit", ratelimit), ("request-id", request_id), ("age", age)];
        let sent: Vec<_> = all.into_iter().filter(|(_, sent)| *sent).map(|(name, _)| name).collect();
        self.row("headers", or_none(&sent.join(", ")));
    }

    fn origin(&mut self, config: &Config) {
        self.section("origin");
        match &config.origin.kind {
            OriginKind::Builtin => self.row("kind", "builtin"),
            OriginKind::Http(upstreams) => {
                self.row("kind", "http");
                self.upstreams(upstreams);
            }
        }
        self.row("store", &config.origin.store);
        self.section("keys");
        match &config.keys {
            Keys::Store => self.row("source", "store"),
            Keys::File(path) => {
                self.row("source", "file");
                self.row("file", path.display());
            }
            Keys::Origin { accepted_for, refused_for } => {
                self.row("source", "origin");
                self.row("accepted_for", HumanDuration(*accepted_for));
                self.row("refused_for", HumanDuration(*refused_for));
            }
        }
    }

    fn upstreams(&mut self, upstreams: &Upstreams) {
        for upstream in &upstreams.list {
            self.row("upstream", upstream);
            self.row("  host", &upstream.host);
            if let Some(name) = &upstream.server_name {
                self.row("  certificate for", name);
            }
        }
        self.row("connect_timeout", HumanDuration(upstreams.connect_timeout));
        match upstreams.first_byte_timeout {
            Some(limit) => self.row("first_byte_timeout", HumanDuration(limit)),
            None => self.row("first_byte_timeout", "off"),
        }
        self.row("timeout", HumanDuration(upstreams.timeout));
        self.row("max_in_flight", upstreams.max_in_flight);
        self.row("queue_timeout", HumanDuration(upstreams.queue_timeout));
        self.row("retries", upstreams.retries);
        match &upstreams.health {
            Some(Health { path, interval, fall, rise }) => {
                let interval = HumanDuration(*interval);
                self.row("health", format_args!("GET {path} every {interval}, fall {fall}, rise {rise}"));
            }
            None => self.row("health", "told by requests alone"),
        }
        if upstreams.list.iter().any(|upstream| upstream.server_name.is_some()) {
            match &upstreams.tls.ca {
                Some(path) => self.row("tls.ca", path.display()),
                None => self.row("tls.ca", "whom the system trusts"),
            }
            if let Some(identity) = &upstreams.tls.identity {
                self.row("tls.certificate", identity.certificate.display());
                self.row("tls.private_key", identity.private_key.display());
            }
        }
    }

    fn limits(&mut self, limits: &Limits) {
        self.section("limits");
        self.row("default_tier", &limits.default_tier.name);
        self.row("shadow", if limits.shadow { "on: counted and reported, nothing is refused" } else { "off" });
        for tier in &limits.tiers {
            self.tier(tier);
        }
        self.row("strangers", per_address(&limits.strangers));
    }

    fn tier(&mut self, tier: &Tier) {
        self.line(format_args!("  tier {}", tier.name));
        self.row("  all operations", per_key(&tier.main, tier.daily));
        match &tier.write {
            Some(write) => self.row("  setPoints, in addition", per_key(write, tier.daily)),
            None => self.row("  setPoints, in addition", "no separate limit"),
        }
        if let Some(daily) = tier.daily {
            self.row("  daily", format_args!("{daily} requests in a UTC day, kept across restarts"));
        }
        if let Some(most) = tier.in_flight {
            self.row("  in_flight", format_args!("{most} requests under way at once"));
        }
        if let Some(candidate) = &tier.candidate {
            let tried = per_key(candidate, tier.daily);
            self.row("  candidate", format_args!("{tried}; counted only, it refuses nothing"));
        }
    }

    fn freshness(&mut self, name: &str, freshness: &Freshness) {
        let Freshness { ttl, stale_while_revalidate, stale_if_error } = *freshness;
        let (ttl, swr, sie) =
            (HumanDuration(ttl), HumanDuration(stale_while_revalidate), HumanDuration(stale_if_error));
        if ttl.0 == Duration::ZERO {
            self.row(name, "off");
        } else {
            self.row(name, format_args!("ttl {ttl}, stale_while_revalidate {swr}, stale_if_error {sie}"));
        }
    }

    fn log(&mut self, config: &Config) {
        self.section("log");
        self.row(
            "level",
            match config.log.level {
                Level::Error => "error",
                Level::Warn => "warn",
                Level::Info => "info",
                Level::Debug => "debug",
                Level::Trace => "trace",
            },
        );
        self.row("format", if config.log.json { "json" } else { "text" });
        match &config.log.access {
            Access::None => self.row("access", "none"),
            Access::Stderr => self.row("access", "stderr"),
            Access::Stdout => self.row("access", "stdout"),
            Access::File(path) => self.row("access", path.display()),
        }
        match &config.log.decisions {
            None => self.row("decisions", "none"),
            Some(Decisions { path, max_size }) => {
                let most = HumanSize(*max_size);
                self.row(
                    "decisions",
                    format_args!("{}, and {}.1 beside it: {most} at most", path.display(), path.display()),
                );
            }
        }
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// A rate as one key meets it; `daily` caps what it can do in a day.
fn per_key(rate: &Rate, daily: Option<u64>) -> String {
    let (each, burst, minute) = (rate.per_second(), rate.burst, rate.most_within(MINUTE_NS));
    let cap = daily.unwrap_or(u64::MAX);
    let (minute, day) = (minute.min(cap), rate.most_within(DAY_NS).min(cap));
    format!("{each}/s, burst {burst}; a key can do at most {minute} in its first minute, {day} in a day")
}

fn per_address(rate: &Rate) -> String {
    let (each, burst, most) = (rate.per_second(), rate.burst, rate.most_within(MINUTE_NS));
    format!("{each}/s, burst {burst}; an address can do at most {most} in its first minute")
}

impl Rate {
    /// Requests a second, after rounding, to ten digits: `20`, `2.999999994`, `0.00001157407407`.
    pub fn per_second(&self) -> String {
        let rate = 1e9 / self.period_ns as f64;
        let decimals = (9.0 - rate.log10().floor()).clamp(0.0, 20.0) as usize;
        let text = format!("{rate:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    }

    /// The most that is let through in so many nanoseconds: the burst, and what comes back meanwhile.
    pub fn most_within(&self, ns: u64) -> u64 {
        u64::from(self.burst.get()) + ns / self.period_ns
    }
}

/// The JSON Schema of `gateway.toml`: the text of `docs/gateway.schema.json`.
pub fn schema() -> String {
    let settings = SchemaSettings::draft2020_12()
        .with_transform(RecursiveTransform(without_section_defaults))
        .with_transform(RecursiveTransform(without_number_formats));
    let schema = SchemaGenerator::new(settings).into_root_schema_for::<ConfigFile>();
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default(); // it is made of JSON already
    text.push('\n');
    text
}

/// A section's default repeats those of its names.
fn without_section_defaults(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_object) {
        schema.remove("default");
    }
}

/// `uint64` is a format of schemars' own, which editors warn of.
fn without_number_formats(schema: &mut Schema) {
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
        schema.remove("format");
    }
}
