//! `guildgate serve`: builds every part of a running server in order, serves until a signal, a hand-over or a defect
//! ends it, then drains and writes down what is left. The files that the configuration names are checked before any
//! address is bound, and accepting connections is the last step of a start that can fail. It only connects parts: the
//! rules of a request are in `gateway`, those of a reload in `reload`, those of a stop in `stop`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::Signal;

use super::background::Background;
use super::demo::Demo;
use super::error::CommandError;
use super::handover::{Heir, Place};
use super::reload::{Reloader, Watches, config_file};
use super::serving::Serving;
use super::stop::Signals;
use super::watch::Watch;
use super::{Failure, files, manager, runtime};
use crate::clock::{Clock, Tick};
use crate::config::{self, Config, Decisions, Keys, Loaded, OriginKind};
use crate::edge::{self, Bound, Certificate, Draining, Edge, Guests, Handed, Server, Tls};
use crate::gateway::{Gateway, KeySource, State};
use crate::keys::{Learned, Listed, Rules};
use crate::limits::{Counted, Policy, day_of};
use crate::model::KeyId;
use crate::origin::{Builtin, HttpOrigin, Origin};
use crate::store::{AnyStore, Daily, IfMissing};
use crate::telemetry::{self, AccessLog, DecisionLog};

/// Files open beside the connections: store, logs, upstream connections of 256 requests, runtimes (512), and
/// connections that were reset while a request of theirs goes on (1,024).
const OTHER_FILES: u64 = 512 + 1024;

/// Runs the gateway until SIGTERM or SIGINT.
pub(super) fn run(named: Option<PathBuf>, demo: bool) -> Result<(), Failure> {
    let runtime = runtime()?;
    // A SIGHUP that comes as early as this has it reload, and does not kill it.
    let reload = runtime.block_on(async { Signals::hear_reload() }).map_err(unheard)?;
    // Before anything is read: what changes from here on is seen.
    let watch = Watch::over([config_file(named.as_deref())]);
    let mut loaded = config::load(named.as_deref())?;
    let json = loaded.config.log.json;
    let log = telemetry::init(&loaded.config.log);
    telemetry::tell_of_panics();
    let demo = if demo { Demo::prepare(&mut loaded.config).map(Some) } else { Ok(None) };
    let served = match demo {
        Ok(demo) => runtime.block_on(serve(named, loaded, demo, watch, reload)),
        Err(failure) => Err(failure.into()),
    };
    // A look-up of a name that hangs is not waited for.
    runtime.shutdown_background();
    let served = if json { served.map_err(Failure::logged) } else { served };
    drop(log); // what is left is written
    served
}

async fn serve(
    named: Option<PathBuf>,
    loaded: Loaded,
    demo: Option<Demo>,
    watch: Watch,
    reload: Signal,
) -> Result<(), Failure> {
    let watches = Watches::new(named.as_deref(), watch, &loaded.config);
    let files = files::look(&loaded).map_err(Failure::Unusable)?;
    let Loaded { config, notices, path, .. } = loaded;
    for notice in &notices {
        tracing::warn!("{notice}");
    }
    // From here on, one that says stop lets the start end in good order.
    let mut signals = Signals::hear(reload).map_err(unheard)?;
    let tls = match files.certificate {
        Some(certificate) => Some(Arc::new(tls(certificate, config.server.threads)?)),
        None => None,
    };
    // A demo is its own, and takes nobody's place.
    let place = config.server.handover.clone().filter(|_| demo.is_none());
    let mut before = match &place {
        Some(path) => Heir::meet(path).await?,
        None => None,
    };
    let handed = before.as_mut().map(Heir::take_sockets).unwrap_or_default();
    let nobody_at = place.as_deref().filter(|_| before.is_none());
    let bound = bind_all(&config, demo.is_some(), handed, nobody_at)?;
    let place = place.map(|path| Place::prepare(&path, &bound)).transpose()?;
    raise_file_limit(&config);
    let clock = Clock::system();
    // Without it the limit that a tier's `daily` is could not be kept (contract section 3).
    let opened = tokio::select! {
        biased;
        // It may wait for others for a minute.
        () = signals.stop() => return Ok(()),
        opened = open_store(&config) => opened,
    };
    let store = opened.map_err(|e| match config.limits.counts_days() {
        true => Failure::Unusable(format!("a tier's `daily` needs the store: {e}")),
        false => e.into(),
    })?;
    match (&demo, &store) {
        (Some(demo), Some(store)) => demo.fill(store).await?,
        (None, Some(store)) if store.is_new() => tracing::info!("made a new store at {}", store.place()),
        _ => {}
    }
    let counted = counted_today(store.as_deref(), &clock).await?;
    let keys = key_source(&config, files.keys, store.as_ref(), counted.clone())?;
    let listing = keys.list().await.map_err(CommandError::new)?;
    let origin = match (&config.origin.kind, &store) {
        (OriginKind::Http(upstreams), _) => {
            let http = HttpOrigin::start((**upstreams).clone(), files.upstream_tls, clock.clone(), None).await;
            Origin::Http(http.map_err(Failure::Unusable)?)
        }
        (OriginKind::Builtin, Some(store)) => Origin::Builtin(Builtin::new(store.clone(), clock.clone())),
        (OriginKind::Builtin, None) => return Err(CommandError::new("the store is not open").into()),
    };
    let access = AccessLog::open(&config.log.access, config.log.json)
        .map_err(|e| CommandError::new(format!("log.access cannot be opened: {e}")))?
        .map(Arc::new);

    let decisions = match &config.log.decisions {
        None => None,
        Some(Decisions { path, max_size }) => {
            let open = if before.is_some() { DecisionLog::open_after_another } else { DecisionLog::open };
            let opened = open(path, *max_size, clock.clone());
            let unusable = |e| CommandError::new(format!("log.decisions cannot be opened: {e}"));
            Some(Arc::new(opened.map_err(unusable)?))
        }
    };

    let state = State::new(config, Arc::new(origin), keys, listing, counted, &clock);
    let config = state.config.clone();
    let gateway = Arc::new(Gateway::new(clock, state, decisions.clone()));
    let background = store.as_ref().map(|store| Background::start(&gateway, store));
    let told = Arc::default();
    tokio::spawn(gateway.clone().tell_limits(Arc::clone(&told)));

    let draining = Arc::new(Draining::default());
    let server = &config.server;
    let guests = Arc::new(Guests::new(server.max_connections, server.max_connections_per_address));
    let edge = Edge {
        gateway: gateway.clone(),
        guests: guests.clone(),
        access: access.clone(),
        draining: draining.clone(),
        tls: tls.clone(),
    };
    let urls: Vec<String> = bound.iter().map(|b| b.url().to_owned()).collect();
    let words = demo.as_ref().map(|demo| demo.words(&urls, &config));
    let mut running = Server::start(edge, bound, server.threads)
        .map_err(|e| CommandError::new(format!("no thread could be started: {e}")))?;
    if !running.is_prepared().await {
        return Err(CommandError::new("the listeners could not be started; the lines above say why").into());
    }
    if let Some(heir) = &mut before {
        let alone = tokio::select! {
            biased;
            // Who serves goes on.
            () = signals.stop() => return Ok(()),
            there = heir.ready() => !there?,
        };
        if alone {
            tracing::warn!("the process that was to hand over has ended; this one has its listeners");
        } else {
            gateway.serve_after_another();
        }
    }
    if !running.open().await {
        return Err(CommandError::new("the listeners could not be opened; the lines above say why").into());
    }
    tokio::select! {
        biased;
        // The last moment to leave it to who serves: what comes later stops the one that has taken over.
        () = signals.stop(), if before.is_some() => return Ok(()),
        () = std::future::ready(()) => {}
    }
    let is_first = before.is_none();
    let place = place.map(|place| place.attend(before, gateway.clone()));
    // Aside: a stderr that nobody reads holds up neither the hand-over nor a stop.
    let ready = ready_lines(&urls, config.log.json, gateway.clock());
    std::thread::spawn(move || say_ready(&ready, words.as_deref()));
    if is_first {
        manager::ready();
    }

    let reloader = Reloader::new(gateway, (named, path.is_some(), notices), watches, store, tls);
    let (reloader, is_demo) = (Arc::new(reloader), demo.is_some());
    Serving { reloader, is_demo, signals, place, background, running, guests, draining, access, decisions, told }
        .run()
        .await
}

fn unheard(error: io::Error) -> CommandError {
    CommandError::new(format!("signals cannot be heard: {error}"))
}

/// What the TCP listeners are to speak.
fn tls(certificate: Certificate, threads: usize) -> Result<Tls, Failure> {
    if let Some(notice) = &certificate.notice {
        tracing::warn!("{notice}");
    }
    Tls::new(certificate, threads).map_err(|e| Failure::Unusable(e.to_string()))
}

/// Everything that is listened on, or the first address that cannot be.
/// The sockets that were `handed` over are taken first; those that the configuration does not name
/// any more are left to the process before. `nobody_at` is where one was looked for and not found.
fn bind_all(
    config: &Config,
    demo: bool,
    mut handed: Vec<Handed>,
    nobody_at: Option<&Path>,
) -> Result<Vec<Bound>, CommandError> {
    let tls = config.server.tls.is_some();
    let bind = |listen| match edge::bind(listen, tls, &mut handed) {
        // A demo is to be seen, wherever there is room for it.
        Err(_) if demo => edge::bind(&super::demo::ANY_PORT, tls, &mut handed),
        bound => bound,
    };
    config.server.listen.iter().map(bind).collect::<Result<_, _>>().map_err(|e| match nobody_at {
        Some(path) if e.is_in_use() => {
            let path = path.display();
            CommandError::new(format!(
                "{e}. To take over from it, it would have to be found at {path} (server.handover)"
            ))
        }
        Some(_) | None => CommandError::new(e.to_string()),
    })
}

/// Opens the store where it is needed.
async fn open_store(config: &Config) -> Result<Option<Arc<AnyStore>>, CommandError> {
    if !config.needs_store() {
        return Ok(None);
    }
    Ok(Some(Arc::new(AnyStore::open(&config.origin.store, IfMissing::Make).await?)))
}

/// What was counted of each key on this UTC day, before the start.
async fn counted_today(store: Option<&AnyStore>, clock: &Clock) -> Result<Vec<(KeyId, Counted)>, CommandError> {
    let Some(store) = store else { return Ok(Vec::new()) };
    let day = day_of(clock.unix());
    Ok(store.daily(day).await?.into_iter().map(|(key, count)| (key, Counted { day, count })).collect())
}

/// The keys at the start: those of the key file, where there is one; `counted` is what was counted of the day before.
fn key_source(
    config: &Config,
    listed: Option<Vec<Listed>>,
    store: Option<&Arc<AnyStore>>,
    counted: Vec<(KeyId, Counted)>,
) -> Result<KeySource, CommandError> {
    match (&config.keys, store) {
        (Keys::Origin { accepted_for, refused_for }, _) => {
            let policy = Arc::new(Policy::new(config.limits.default_tier.clone()));
            let (accepted_for, refused_for) = (*accepted_for, *refused_for);
            let rules = Rules { policy, accepted_for, refused_for, since: Tick(0) };
            Ok(KeySource::Origin(Arc::new(Learned::new(rules, counted))))
        }
        (Keys::File(_), _) => Ok(KeySource::File { listed: listed.unwrap_or_default().into(), guilds: store.cloned() }),
        (Keys::Store, Some(store)) => Ok(KeySource::Store(store.clone())),
        (Keys::Store, None) => Err(CommandError::new("the store is not open")),
    }
}

/// Lets the process open a file for each connection, or says by name what stands in the way.
fn raise_file_limit(config: &Config) {
    let needed = config.server.max_connections as u64 + OTHER_FILES;
    match rlimit::increase_nofile_limit(needed) {
        Ok(limit) if limit < needed => tracing::warn!(
            limit,
            needed,
            "server.max_connections is more than the file limit (ulimit -n) allows; raise the one or lower the other"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the file limit could not be raised to server.max_connections"),
    }
}

/// A line for each address, which says that it is served.
fn ready_lines(urls: &[String], json: bool, clock: &Clock) -> String {
    let line = |url: &String| match json {
        true => telemetry::ready_as_json(url, clock.unix_ms()),
        false => format!("ready: {url}\n"),
    };
    urls.iter().map(line).collect()
}

/// The ready lines on stderr, and what the demo says on stdout. Where either is gone there is
/// nobody to tell.
fn say_ready(ready: &str, words: Option<&str>) {
    let _ = io::stderr().write_all(ready.as_bytes());
    if let Some(words) = words {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{words}").and_then(|()| out.flush());
    }
}
