//! `guildgate conform`: sends the same requests to an origin directly and through a gateway of its own, and says
//! whether callers will notice the switch. Nothing that could write is sent without `--writes`; with it, the points
//! that were read are set back at the end, and SIGINT is ignored until then.

mod cases; // the requests
mod compare; // two answers, byte for byte
mod exchange; // one request and its answer

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::error::CommandError;
use super::output::ignore_broken_pipe;
use super::print_message;
use crate::config::leaf::Timeout;
use crate::config::secret::{self, Secret, Source};
use crate::config::{self, Config, OriginKind};
use crate::model::MemberId;
use crate::origin::Tls;
use crate::process::start_loopback;
use crate::telemetry::printable;
use cases::{Case, GET_POINTS, SET_POINTS, Values};
use compare::{DIFFERS, EXPECTED, NOT_COMPARED, SAME, compare};
use exchange::{Answer, Target};

/// How much longer the gateway's answer is waited for than the origin's: it waits for the origin itself.
const GATEWAY_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct ConformArgs {
    /// The origin, as in origin.upstreams: http://host:port/path or https://…
    #[arg(long, value_name = "URL")]
    origin: String,
    /// A key of the origin: env:NAME, file:PATH, or - for stdin
    #[arg(long, value_name = "KEY")]
    key: String,
    /// A member whom the requests are about
    #[arg(long, value_name = "ID")]
    member: MemberId,
    /// A path that `[pass]` sends on, such as /docs/index.html, which is compared by GET; may be given several times
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// Sends setPoints too: the points that the member has, and others. They are set back at the end
    #[arg(long)]
    writes: bool,
    /// How long each answer is waited for
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    timeout: Timeout,
    /// Prints one JSON array
    #[arg(long)]
    json: bool,
}

/// A case, and how its answers compare.
#[derive(Serialize)]
struct Row {
    case: String,
    verdict: &'static str,
    /// A sentence for each part that differs.
    differences: Vec<String>,
}

/// The two sides that are compared.
struct Comparison<'o> {
    origin: Target,
    gateway: Target,
    values: Values,
    rows: Vec<Row>,
    /// Rows are printed to it as they come; `None`: as JSON at the end.
    out: Option<&'o mut dyn Write>,
}

impl ConformArgs {
    /// Compares; `[answers]` and the TLS of upstreams are those of `own`.
    pub(super) async fn run(self, own: Config, out: &mut dyn Write) -> Result<(), CommandError> {
        let key = self.key().map_err(|why| CommandError::Unusable(format!("--key: {why}")))?;
        let config = self.gateway_config(own)?;
        let no_origin = || CommandError::Unusable("--origin names no HTTP service".to_owned());
        let OriginKind::Http(upstreams) = &config.origin.kind else { return Err(no_origin()) };
        let upstream = upstreams.list.first().cloned().ok_or_else(no_origin)?;
        let tls = Tls::load(upstreams).map_err(|fault| CommandError::Unusable(fault.to_string()))?;
        let (address, _server) = start_loopback(config, tls.clone()).await?;
        let timeout = self.timeout.0;
        let mut comparison = Comparison {
            origin: Target { upstream, tls, timeout },
            gateway: Target::gateway(address, timeout + GATEWAY_GRACE),
            values: Values { key, member: self.member.to_string(), points: 0 },
            rows: Vec::new(),
            out: (!self.json).then_some(&mut *out),
        };
        comparison.run(&self.paths, self.writes).await?;
        let rows = comparison.rows;
        if self.json {
            ignore_broken_pipe(writeln!(out, "{}", serde_json::to_string(&rows)?))?;
        }
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        let (same, expected) = (count(SAME), count(EXPECTED));
        let (differ, not) = (count(DIFFERS), count(NOT_COMPARED));
        let text = format!(
            "{} requests: {same} answered alike, {expected} refused by the gateway as the contract says, {differ} answered \
             differently, {not} not compared",
            rows.len()
        );
        if differ + not > 0 {
            return Err(CommandError::new(format!("{text}; callers will notice the switch, or it is not known")));
        }
        if !self.json {
            ignore_broken_pipe(writeln!(out, "\n{text}\nCallers will not notice the switch."))?;
        }
        Ok(())
    }

    /// The key, which no message repeats.
    fn key(&self) -> Result<String, String> {
        let key = Secret::new(&self.key);
        match key.source() {
            Source::Env(_) | Source::File(_) => key.value(&|name| std::env::var(name).ok()),
            Source::Written("-") => secret::read("stdin", io::stdin().lock()),
            Source::Written(_) => {
                Err("name env:NAME, file:PATH or -; a key on the command line is visible to other users".to_owned())
            }
        }
    }

    /// The configuration of the gateway: it asks the origin each time, and limits nothing.
    fn gateway_config(&self, own: Config) -> Result<Config, CommandError> {
        let unusable =
            |why: &str| CommandError::Unusable(format!("--origin or --path cannot be used: {}", printable(why)));
        let timeout = self.timeout.to_string();
        let plenty = json!({ "rate": "1000000/s", "burst": 1_000_000 });
        let off = json!({ "ttl": "0s", "stale_if_error": "0s" });
        let cache: Map<String, Value> =
            config::cached_reads().map(|(_, section, _)| (section.to_owned(), off.clone())).collect();
        // No others, or what is no operation would not be refused.
        let passed = self.paths.iter().map(|path| path.split('?').next().unwrap_or_default());
        let passed = passed.map(|path| path.trim_end_matches('/')).map(|path| if path.is_empty() { "/" } else { path });
        let toml = toml::to_string(&json!({
            "server": { "threads": 1 },
            "pass": { "paths": passed.collect::<BTreeSet<_>>(), "key": false },
            "origin": {
                "kind": "http", "upstreams": [self.origin], "retries": 0, "timeout": timeout, "connect_timeout": timeout,
            },
            "keys": { "source": "origin" },
            "limits": { "tiers": { "standard": plenty }, "strangers": plenty },
            "cache": cache,
            "admin": { "listen": "" },
            "log": { "access": "" },
        }));
        let toml = toml.map_err(|e| unusable(&e.to_string()))?;
        let loaded = config::load_str(&toml, Path::new(""), "--origin");
        let mut config =
            loaded.map_err(|faults| unusable(faults.list.first().map_or("", |fault| &*fault.message)))?.config;
        config.answers = own.answers;
        if let (OriginKind::Http(upstreams), OriginKind::Http(own)) = (&mut config.origin.kind, own.origin.kind) {
            upstreams.tls = own.tls;
        }
        Ok(config)
    }
}

impl Comparison<'_> {
    /// Compares all answers.
    async fn run(&mut self, paths: &[String], writes: bool) -> Result<(), CommandError> {
        self.ask_origin().await?;
        self.compare_all(cases::reads()).await?;
        self.compare_all(paths.iter().map(|path| cases::passed(path)).collect()).await?;
        if !writes {
            return Ok(());
        }
        let points = self.ask_origin().await?;
        let (member, text) = (&self.values.member, points.quoted(&self.values.key));
        let points = std::str::from_utf8(&points.body).ok().filter(|_| points.is_success());
        let points = points.and_then(|text| text.trim_end_matches('\n').parse().ok());
        let unknown = format!("the points could not be read: the origin answered {text}; nothing was written");
        self.values.points = points.ok_or_else(|| CommandError::new(unknown))?;
        // From here on, for as long as the process lives, SIGINT does nothing.
        let _ignored = signal(SignalKind::interrupt())
            .map_err(|e| CommandError::new(format!("SIGINT cannot be ignored: {e}; nothing was written")))?;
        print_message(&format!(
            "member {member} has {} points; they are set back at the end, and Ctrl-C is ignored",
            self.values.points
        ));
        let compared = self.compare_all(cases::writes()).await;
        self.set_back().await?;
        compared
    }

    /// The origin's answer about the points. Where it is away, or refuses the key, nothing can be compared.
    async fn ask_origin(&self) -> Result<Answer, CommandError> {
        let answer = self.origin.ask(&GET_POINTS, &self.values).await;
        let answer = answer.map_err(|why| CommandError::new(format!("the origin gave no answer: {why}")))?;
        if answer.code() == Some(2) || answer.status == 401 || answer.is_limited() {
            let quoted = answer.quoted(&self.values.key);
            return Err(CommandError::new(format!(
                "the origin refuses the key ({quoted}); name one that it accepts, or try again later"
            )));
        }
        Ok(answer)
    }

    async fn compare_all(&mut self, cases: Vec<Case>) -> Result<(), CommandError> {
        for case in cases {
            let origin = self.origin.ask(&case, &self.values).await;
            let gateway = self.gateway.ask(&case, &self.values).await;
            let (verdict, differences) = compare(case.refused, &origin, &gateway, &self.values.key);
            let row = Row { case: case.name.into_owned(), verdict, differences };
            if let Some(out) = &mut self.out {
                let mut text = format!("{:42}  {verdict}\n", row.case);
                text.extend(row.differences.iter().map(|difference| format!("    {difference}\n")));
                ignore_broken_pipe(out.write_all(text.as_bytes()))?;
            }
            self.rows.push(row);
        }
        Ok(())
    }

    /// Sets the points at the origin to what they were, once.
    async fn set_back(&self) -> Result<(), CommandError> {
        let Values { key, member, points } = &self.values;
        let why = match self.origin.ask(&SET_POINTS, &self.values).await {
            Ok(answer) if answer.is_success() => {
                print_message(&format!(
                    "member {member} has {points} points again, as before; a setPoints that was not answered may still \
                     arrive, so read them again if there is one above"
                ));
                return Ok(());
            }
            Ok(answer) => format!("the origin answered {}", answer.quoted(key)),
            Err(why) => why,
        };
        Err(CommandError::new(format!(
            "member {member} had {points} points, which could not be set back ({why}); set them by hand"
        )))
    }
}
