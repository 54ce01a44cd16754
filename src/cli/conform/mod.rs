//! `guildgate conform`: sends the same requests to an origin directly and through a gateway of its own, and says
//! whether callers will notice the switch. Nothing that could write is sent without `--writes`; with it, the points
//! that were read are set back at the end, and SIGINT is ignored until then.

mod cases; // the requests
mod compare; // two answers, byte for byte
mod exchange; // one request and its answer

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use hyper::header::HeaderValue;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::error::CommandError;
use super::output::ignore_broken_pipe;
use super::{Failure, print_message, runtime};
use crate::config::leaf::HumanDuration;
use crate::config::secret::{self, Secret, Source};
use crate::config::{self, Config, OriginKind};
use crate::model::MemberId;
use crate::origin::Tls;
use crate::process::start_loopback;
use crate::telemetry::printable;
use cases::Case;
use compare::{Row, Verdict, quoted};
use exchange::{Target, is_unsettled};

/// How much longer the gateway's answer is waited for than the origin's: it waits for the origin itself.
const GATEWAY_GRACE: Duration = Duration::from_secs(2);

/// After this many requests in a row that the origin did not answer, the others are not sent.
const MAX_UNANSWERED: usize = 3;

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
    /// Sends setPoints too: the points that the member has, and others. They are set back at the end
    #[arg(long)]
    writes: bool,
    /// How long each answer is waited for: 1s to 60s
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = timeout)]
    timeout: HumanDuration,
    /// Prints one JSON array
    #[arg(long)]
    json: bool,
}

fn timeout(text: &str) -> Result<HumanDuration, String> {
    let timeout: HumanDuration = text.parse()?;
    let is_in_range = (Duration::from_secs(1)..=Duration::from_secs(60)).contains(&timeout.0);
    if is_in_range { Ok(timeout) } else { Err("it is 1s to 60s".to_owned()) }
}

/// The two sides that are compared.
struct Comparison {
    origin: Target,
    gateway: Target,
    key: HeaderValue,
    rows: Vec<Row>,
    /// The outcome of a write is unknown, so that it may still arrive.
    is_unsettled: bool,
}

impl ConformArgs {
    /// Compares; `[answers]` and the TLS of upstreams are those of the configuration at `named`.
    pub(super) fn run(self, named: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
        let own = config::load(named)?.config;
        let key = self.key()?;
        let config = self.gateway_config(own)?;
        runtime()?.block_on(self.compare(config, key, out))
    }

    async fn compare(&self, config: Config, key: HeaderValue, out: &mut dyn Write) -> Result<(), Failure> {
        let no_origin = || Failure::Unusable("--origin names no HTTP service".to_owned());
        let OriginKind::Http(upstreams) = &config.origin.kind else { return Err(no_origin()) };
        let upstream = upstreams.list.first().cloned().ok_or_else(no_origin)?;
        let tls = Tls::load(upstreams).map_err(|fault| Failure::Unusable(fault.to_string()))?;
        let (address, _server) = start_loopback(config, tls.clone()).await?;
        let HumanDuration(timeout) = self.timeout;
        let mut comparison = Comparison {
            origin: Target { upstream, tls, timeout },
            gateway: Target::gateway(address, timeout + GATEWAY_GRACE),
            key,
            rows: Vec::new(),
            is_unsettled: false,
        };
        let compared = comparison.run(self.member, self.writes).await;
        let Err(why) = compared else { return self.report(&comparison.rows, out) };
        if !comparison.rows.is_empty() {
            print(out, &self.table(&comparison.rows)?)?;
        }
        Err(CommandError::new(format!("{why}; nothing else was compared")).into())
    }

    /// The key, which no message repeats.
    fn key(&self) -> Result<HeaderValue, Failure> {
        let secret = Secret::new(&self.key);
        let key = match secret.source() {
            Source::Env(name) => secret::of_variable(name, std::env::var(name).ok()),
            Source::File(path) => secret::read_file(Path::new(path)),
            Source::Written("-") => secret::read("stdin", io::stdin().lock()),
            Source::Written(_) => {
                let why = "--key wants env:NAME, file:PATH or -; a key on the command line is visible to other users";
                return Err(Failure::Unusable(why.to_owned()));
            }
        };
        let key = key.map_err(|why| Failure::Unusable(format!("--key: {why}")))?;
        let mut value = HeaderValue::from_bytes(key.as_bytes())
            .map_err(|_| Failure::Unusable("--key names no key that a header can hold".to_owned()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// The configuration of the gateway: it asks the origin each time, and limits nothing.
    fn gateway_config(&self, own: Config) -> Result<Config, Failure> {
        let timeout = self.timeout.to_string();
        let plenty = json!({ "rate": "1000000/s", "burst": 1_000_000 });
        let off = json!({ "ttl": "0s", "stale_if_error": "0s" });
        let cache: Map<String, Value> =
            config::cached_reads().map(|(_, section, _)| (section.to_owned(), off.clone())).collect();
        let toml = toml::to_string(&json!({
            "server": { "threads": 1 },
            "origin": {
                "kind": "http", "upstreams": [self.origin], "retries": 0, "timeout": timeout, "connect_timeout": timeout,
            },
            "keys": { "source": "origin" },
            "limits": { "tiers": { "standard": plenty }, "strangers": plenty },
            "cache": cache,
            "admin": { "listen": "" },
            "log": { "access": "" },
        }));
        let toml = toml.map_err(|e| Failure::Unusable(format!("--origin cannot be used: {e}")))?;
        let loaded = config::load_str(&toml, Path::new(""), "--origin").map_err(|problems| {
            let why = problems.list.first().map_or_else(String::new, |problem| problem.message.clone());
            Failure::Unusable(format!("--origin cannot be used: {}", printable(&why)))
        })?;
        let mut config = loaded.config;
        config.answers = own.answers;
        if let (OriginKind::Http(upstreams), OriginKind::Http(own)) = (&mut config.origin.kind, own.origin.kind) {
            upstreams.tls = own.tls;
        }
        Ok(config)
    }

    /// What was compared, for a person or as JSON.
    fn table(&self, rows: &[Row]) -> Result<String, CommandError> {
        if self.json {
            return Ok(serde_json::to_string(rows)? + "\n");
        }
        let width = rows.iter().map(|row| row.case.len()).max().unwrap_or_default();
        let mut text = String::new();
        for row in rows {
            text += &format!("{:width$}  {}\n", row.case, row.verdict.name());
            text.extend(row.differences.iter().map(|difference| format!("{:width$}    {difference}\n", "")));
        }
        Ok(text)
    }

    /// Prints the table and the verdict. Exit code 1 if callers will notice the switch.
    fn report(&self, rows: &[Row], out: &mut dyn Write) -> Result<(), Failure> {
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        let [same, expected, differ, unanswered, limited] =
            [Verdict::Same, Verdict::Expected, Verdict::Differs, Verdict::Unanswered, Verdict::Limited].map(count);
        let is_known = unanswered + limited == 0;
        let mut text = self.table(rows)?;
        if !self.json {
            text += &format!(
                "\n{} requests: {same} answered alike, {expected} refused by the gateway as the contract says, {differ} \
                 answered differently, {unanswered} not answered, {limited} limited and not compared\n",
                rows.len()
            );
        }
        if !self.json && differ == 0 && is_known {
            text += "Callers will not notice the switch.\n";
            if expected > 0 {
                text += "Only a caller that sends a request which the gateway refuses itself gets another answer.\n";
            }
        }
        print(out, &text)?;
        let mut why = format!("callers will notice the switch: {differ} requests are answered differently");
        if rows.iter().any(|row| row.is_status_of_refusal) {
            why +=
                "; answers.error_status = \"ok\" in gateway.toml makes refusals have status 200, as this origin's have";
        }
        if differ == 0 {
            why = format!(
                "whether callers will notice the switch is not known: {unanswered} requests got no answer, and {limited} \
                 were limited"
            );
        }
        if differ == 0 && is_known { Ok(()) } else { Err(CommandError::new(why).into()) }
    }
}

/// Prints to stdout. The exit code tells the verdict, so a reader that has read enough is no failure.
fn print(out: &mut dyn Write, text: &str) -> Result<(), CommandError> {
    Ok(ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?)
}

impl Comparison {
    /// Compares all answers, or says why it ended early.
    async fn run(&mut self, member: MemberId, writes: bool) -> Result<(), String> {
        self.check_origin(member).await?;
        self.compare_all(cases::reads(member)).await?;
        if !writes {
            return Ok(());
        }
        let points = self.points(member).await.map_err(|why| format!("{why}; nothing was written"))?;
        // From here on, for as long as the process lives, SIGINT does nothing.
        let _ignored = signal(SignalKind::interrupt())
            .map_err(|e| format!("SIGINT cannot be ignored: {e}; nothing was written"))?;
        print_message(&format!(
            "member {member} has {points} points; they are set back at the end, and Ctrl-C is ignored"
        ));
        let compared = self.compare_all(cases::writes(member, points)).await;
        self.set_back(member, points).await?;
        compared
    }

    /// Where the origin is away, or refuses the key, nothing can be compared.
    async fn check_origin(&self, member: MemberId) -> Result<(), String> {
        let answer = self.origin.ask(&Case::get_points(member), &self.key).await;
        let answer = answer.map_err(|why| format!("the origin gave no answer: {}", printable(&why)))?;
        let quoted = quoted(&answer, self.key.as_bytes());
        if answer.code() == Some(2) || answer.status == 401 {
            return Err(format!("the origin refuses the key ({quoted}); name one that it accepts with --key"));
        }
        if answer.is_limited() {
            return Err(format!("the origin refuses the key for the moment ({quoted}); try again later"));
        }
        Ok(())
    }

    async fn compare_all(&mut self, cases: Vec<Case>) -> Result<(), String> {
        let mut unanswered = 0;
        for case in cases {
            let origin = self.origin.ask(&case, &self.key).await;
            let gateway = self.gateway.ask(&case, &self.key).await;
            self.is_unsettled |= case.may_write && [&origin, &gateway].into_iter().any(is_unsettled);
            self.rows.push(Row::new(&case, &origin, &gateway, self.key.as_bytes()));
            unanswered = if origin.is_err() { unanswered + 1 } else { 0 };
            if unanswered == MAX_UNANSWERED {
                let last = case.name;
                return Err(format!("the origin did not answer {unanswered} requests in a row, the last one `{last}`"));
            }
        }
        Ok(())
    }

    /// The points that the origin has for the member, or why they are not known.
    async fn points(&self, member: MemberId) -> Result<i64, String> {
        let answer = self.origin.ask(&Case::get_points(member), &self.key).await;
        let answer = answer.map_err(|why| format!("the points could not be read: {}", printable(&why)))?;
        let text = str::from_utf8(&answer.body).unwrap_or_default().trim_end_matches('\n');
        let points = text.parse().ok().filter(|_| (200..300).contains(&answer.status));
        let quoted = quoted(&answer, self.key.as_bytes());
        points.ok_or_else(|| format!("the points could not be read: the origin answered {quoted}"))
    }

    /// Sets the points at the origin to what they were, once, and reads them to be sure.
    async fn set_back(&self, member: MemberId, points: i64) -> Result<(), String> {
        let set = self.origin.ask(&Case::set_points("set back", member, points), &self.key).await;
        let now = self.points(member).await;
        if now == Ok(points) {
            let unsettled = match self.is_unsettled {
                true => "; a setPoints was not answered and may still arrive, so read them again later",
                false => "",
            };
            print_message(&format!("member {member} has {points} points again, as before{unsettled}"));
            return Ok(());
        }
        let set = set.map_or_else(|why| printable(&why), |answer| quoted(&answer, self.key.as_bytes()));
        let now = now.map_or_else(|why| why, |now| format!("it has {now} now"));
        Err(format!(
            "member {member} had {points} points, which could not be set back (the origin answered {set}; {now}); set them \
             by hand"
        ))
    }
}
