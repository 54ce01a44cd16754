//! `guildgate conform`: sends the same requests to an origin directly and through a gateway of its own, and says
//! whether callers will notice the switch. Nothing that could write is sent without `--writes`; with it, the points
//! that were read are set back at the end, whatever happens.

mod cases; // the requests
mod compare; // two answers, byte for byte
mod exchange; // one request and its answer

use std::io::{self, Write};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use futures_util::future::select_all;
use hyper::header::HeaderValue;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CommandError;
use super::output::ignore_broken_pipe;
use super::{Failure, print_message, runtime};
use crate::config::leaf::HumanDuration;
use crate::config::secret::{self, Secret, Source};
use crate::config::{self, Config, OriginKind, Upstreams};
use crate::model::MemberId;
use crate::origin::Tls;
use crate::process::LoopbackGateway;
use crate::telemetry::printable;
use cases::Case;
use compare::{Row, Verdict, quoted};
use exchange::{Answer, Target, is_unsettled};

/// How much longer the gateway's answer is waited for than the origin's: it waits for the origin itself.
const GATEWAY_GRACE: Duration = Duration::from_secs(2);

/// After this many requests in a row that the origin did not answer, the others are not sent.
const MAX_UNANSWERED: usize = 3;

/// How long, in all, requests wait that are refused for the moment only (12, 21); later ones are not compared.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// As `MAX_WAIT`, for setting the points back. Many services count by the minute.
const MAX_SET_BACK_WAIT: Duration = Duration::from_secs(60);

/// How often the points are set back before it is given up.
const MAX_SET_BACKS: usize = 3;

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

/// Why the comparison ended early.
enum Stopped {
    Interrupted,
    Failed(String),
}

/// The two sides that are compared.
struct Comparison {
    origin: Target,
    gateway: Target,
    key: HeaderValue,
    /// Empty once no signal ends the command any more.
    signals: Vec<Signal>,
    /// How much longer requests may wait that are refused for the moment only.
    wait_left: Duration,
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
        let OriginKind::Http(upstreams) = config.origin.kind.clone() else {
            return Err(Failure::Unusable("the origin is no HTTP service".to_owned()));
        };
        let runtime = runtime()?;
        let result = runtime.block_on(self.compare(config, &upstreams, key, out));
        runtime.shutdown_background();
        result
    }

    async fn compare(
        &self,
        config: Config,
        upstreams: &Upstreams,
        key: HeaderValue,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let HumanDuration(timeout) = self.timeout;
        let Some(upstream) = upstreams.list.first().cloned() else {
            return Err(Failure::Unusable("no origin is named".to_owned()));
        };
        let tls = Tls::load(upstreams).map_err(|fault| Failure::Unusable(fault.to_string()))?;
        let gateway = LoopbackGateway::start(config).await?;
        let mut comparison = Comparison {
            origin: Target { upstream, tls, timeout },
            gateway: Target::gateway(gateway.address(), timeout + GATEWAY_GRACE),
            key,
            signals: listen()?,
            wait_left: MAX_WAIT,
            rows: Vec::new(),
            is_unsettled: false,
        };
        let stopped = comparison.run(self.member, self.writes).await.err();
        drop(gateway);
        let why = match stopped {
            None => return self.report(&comparison.rows, out),
            Some(Stopped::Interrupted) => "interrupted; nothing else is sent".to_owned(),
            Some(Stopped::Failed(why)) => format!("{why}; nothing else was compared"),
        };
        if !comparison.rows.is_empty() {
            print(out, &self.table(&comparison.rows)?)?;
        }
        Err(CommandError::new(why).into())
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
        let timeout = self.timeout;
        let fresh = |name| format!("[cache.{name}]\nttl = \"0s\"\nstale_if_error = \"0s\"\n");
        let fresh: String = config::cached_reads().map(|(_, name, _)| fresh(name)).collect();
        let plenty = "rate = \"1000000/s\"\nburst = 1000000\n";
        let toml = format!(
            "[server]\nthreads = 1\n[origin]\nkind = \"http\"\nupstreams = [{:?}]\nretries = 0\n\
             timeout = \"{timeout}\"\nconnect_timeout = \"{timeout}\"\n[keys]\nsource = \"origin\"\n\
             [limits.tiers.standard]\n{plenty}[limits.strangers]\n{plenty}\
             {fresh}\
             [admin]\nlisten = \"\"\n[log]\naccess = \"\"\n",
            self.origin
        );
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
        let (same, expected) = (count(Verdict::Same), count(Verdict::Expected));
        let (differ, unanswered) = (count(Verdict::Differs), count(Verdict::Unanswered));
        let limited = count(Verdict::Limited);
        let unknown = unanswered + limited;
        let mut text = self.table(rows)?;
        if !self.json {
            text += &format!(
                "\n{} requests: {same} answered alike, {expected} refused by the gateway as the contract says, {differ} \
                 answered differently, {unanswered} not answered, {limited} limited and not compared\n",
                rows.len()
            );
            if differ + unknown == 0 {
                text += "Callers will not notice the switch.\n";
            }
            if differ + unknown == 0 && expected > 0 {
                text += "Only a caller that sends a request which the gateway refuses itself gets another answer.\n";
            }
        }
        print(out, &text)?;
        let hint = match rows.iter().any(|row| row.is_status_of_refusal) {
            true => {
                "; answers.error_status = \"ok\" in gateway.toml makes refusals have status 200, as this origin's have"
            }
            false => "",
        };
        Err(CommandError::new(match (differ, unknown) {
            (0, 0) => return Ok(()),
            (0, _) => format!(
                "whether callers will notice the switch is not known: {unanswered} requests got no answer, and {limited} \
                 were limited"
            ),
            _ => format!("callers will notice the switch: {differ} requests are answered differently{hint}"),
        })
        .into())
    }
}

/// Prints to stdout. The exit code tells the verdict, so a reader that has read enough is no failure.
fn print(out: &mut dyn Write, text: &str) -> Result<(), CommandError> {
    Ok(ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?)
}

impl Comparison {
    async fn run(&mut self, member: MemberId, writes: bool) -> Result<(), Stopped> {
        self.check_origin(member).await?;
        self.compare_all(cases::reads(member)).await?;
        if !writes {
            return Ok(());
        }
        let points = self.points(member).await?;
        let points = points.map_err(|why| Stopped::Failed(format!("{why}; nothing was written")))?;
        let result = self.compare_all(cases::writes(member, points)).await;
        // No signal interrupts this: they are all received, and nobody looks at them any more.
        self.signals.clear();
        self.wait_left = MAX_SET_BACK_WAIT;
        self.set_back(member, points).await?;
        result
    }

    /// Where the origin is away, or refuses the key, nothing can be compared.
    async fn check_origin(&mut self, member: MemberId) -> Result<(), Stopped> {
        let case = Case::get_points(member);
        let answer = self.ask(&case, true).await?;
        match answer {
            Err(why) => Err(Stopped::Failed(format!("the origin gave no answer: {}", printable(&why)))),
            Ok(answer) if answer.code() == Some(2) || answer.status == 401 => Err(Stopped::Failed(format!(
                "the origin refuses the key (status {}); name one that it accepts with --key",
                answer.status
            ))),
            Ok(answer) if answer.limited_for().is_some() => Err(Stopped::Failed(format!(
                "the origin refuses the key for the moment ({}); try again later",
                quoted(&answer, self.key.as_bytes())
            ))),
            Ok(_) => Ok(()),
        }
    }

    async fn compare_all(&mut self, cases: Vec<Case>) -> Result<(), Stopped> {
        let mut unanswered = 0;
        for case in cases {
            let origin = self.ask(&case, true).await?;
            let gateway = self.ask(&case, false).await?;
            let mut row = Row::new(&case, &origin, &gateway, self.key.as_bytes());
            if row.verdict == Verdict::Differs && !case.may_write {
                // What the answer tells may have changed in between.
                let again = self.ask(&case, true).await?;
                if again.is_ok() && again == gateway {
                    row = Row::new(&case, &again, &gateway, self.key.as_bytes());
                }
            }
            self.is_unsettled |= case.may_write && [&origin, &gateway].into_iter().any(is_unsettled);
            self.rows.push(row);
            unanswered = if origin.is_err() { unanswered + 1 } else { 0 };
            if unanswered == MAX_UNANSWERED {
                let why = format!(
                    "the origin did not answer {MAX_UNANSWERED} requests in a row, the last one `{}`",
                    case.name
                );
                return Err(Stopped::Failed(why));
            }
        }
        Ok(())
    }

    /// Asks one of the two. A request that is refused for the moment is sent again after the time that the refusal
    /// names, as long as `wait_left` allows it.
    async fn ask(&mut self, case: &Case, origin: bool) -> Result<Result<Answer, String>, Stopped> {
        loop {
            let answer = self.ask_once(case, origin).await?;
            let Ok(refusal) = &answer else { return Ok(answer) };
            let Some(wait) = refusal.limited_for() else { return Ok(answer) };
            let Some(left) = self.wait_left.checked_sub(wait) else { return Ok(answer) };
            self.wait_left = left;
            let (refusal, seconds) = (quoted(refusal, self.key.as_bytes()), wait.as_secs());
            print_message(&format!("{}: refused for the moment ({refusal}); sent again in {seconds} s", case.name));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = interrupted(&mut self.signals) => return Err(Stopped::Interrupted),
            }
        }
    }

    /// A write that is under way is waited for at a signal, so that it does not arrive after the points were set back.
    async fn ask_once(&mut self, case: &Case, origin: bool) -> Result<Result<Answer, String>, Stopped> {
        let target = if origin { &self.origin } else { &self.gateway };
        let mut asking = pin!(target.ask(case, &self.key));
        tokio::select! {
            answer = asking.as_mut() => return Ok(answer),
            () = interrupted(&mut self.signals) => {}
        }
        if case.may_write {
            self.is_unsettled |= is_unsettled(&asking.await);
        }
        Err(Stopped::Interrupted)
    }

    /// The points that the origin has for the member, or why they are not known.
    async fn points(&mut self, member: MemberId) -> Result<Result<i64, String>, Stopped> {
        let answer = self.ask(&Case::get_points(member), true).await?;
        let points = answer.and_then(|answer| {
            let text = str::from_utf8(&answer.body).unwrap_or_default().trim_end_matches('\n');
            let points = text.parse().ok().filter(|_| (200..300).contains(&answer.status));
            points.ok_or_else(|| format!("the origin answered {}", quoted(&answer, self.key.as_bytes())))
        });
        Ok(points.map_err(|why| format!("the points could not be read: {}", printable(&why))))
    }

    /// Sets the points at the origin to what they were, and reads them to be sure.
    async fn set_back(&mut self, member: MemberId, points: i64) -> Result<(), Stopped> {
        let case = Case::set_points("set back", member, points);
        let (mut why, mut has) = (String::new(), String::new());
        for _ in 0..MAX_SET_BACKS {
            let set = self.ask(&case, true).await?;
            (why, has) = match self.points(member).await? {
                Ok(now) if now == points => {
                    let unsettled = match self.is_unsettled {
                        true => "; a setPoints was not answered and may still arrive, so read them again later",
                        false => "",
                    };
                    print_message(&format!("member {member} has {points} points again, as before{unsettled}"));
                    return Ok(());
                }
                Ok(now) => (String::new(), format!("has {now}")),
                Err(error) => (error, format!("may have {}", cases::another_amount(points))),
            };
            let is_limited = matches!(&set, Ok(answer) if answer.limited_for().is_some());
            match set {
                Ok(answer) if is_limited || why.is_empty() => {
                    why = format!("the origin answered setPoints with {}", quoted(&answer, self.key.as_bytes()));
                }
                Ok(_) => {}
                Err(error) => why = printable(&error),
            }
            if is_limited {
                break; // there is no time left to wait as it says
            }
        }
        Err(Stopped::Failed(format!(
            "member {member} had {points} points and {has} now: they could not be set back ({why}); set them by hand"
        )))
    }
}

/// Ends with the first signal; never where none is listened for.
async fn interrupted(signals: &mut [Signal]) {
    if signals.is_empty() {
        return std::future::pending().await;
    }
    select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
}

/// The signals that end a command, from now on: Ctrl-C, SIGTERM, and a terminal that is closed.
fn listen() -> Result<Vec<Signal>, CommandError> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let signals: io::Result<_> = kinds.into_iter().map(signal).collect();
    signals.map_err(|e| CommandError::new(format!("cannot listen for signals: {e}")))
}
