//! The first stage of a process: builds every part in order. What the configuration names is checked before any address
//! is bound, and accepting connections is the last step that can fail. Until then the predecessor, if there is one, goes
//! on serving.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::admin::AdminStartup;
use super::background::BackgroundTasks;
use super::demo::{self, Demo};
use super::handover::{Handover, Predecessor};
use super::logs::Logs;
use super::metrics::ProcessMetrics;
use super::reload::{InForce, Reloader, Watches};
use super::serving::Serving;
use super::signals::StopSignals;
use super::watch::FileWatch;
use super::{LEAST_FILES, ProcessError, preflight, systemd};
use crate::clock::{Clock, Tick};
use crate::cluster::bus::Bus;
use crate::cluster::{NodeState, RedisStream, START_TIMEOUT, SharedLimits};
use crate::config::{Config, Keys, Loaded, OriginKind};
use crate::edge::{CallerFiles, Edge, EdgeMetrics, Listener, ListeningSocket, Server, Tls};
use crate::gateway::{Gateway, KeyFile, KeyList, KeySource, NewKeys, State};
use crate::keys::{LearnedKeyRules, LearnedKeys, ListedKey};
use crate::limits::{DayCount, Policy, day_of};
use crate::model::KeyId;
use crate::origin::{self, Builtin, HttpOrigin, Origin};
use crate::store::{IfMissing, Store};
use crate::telemetry;
use crate::telemetry::metrics::Metrics;
use crate::tls::Certificate;

/// Open files other than those of callers: store, logs, upstream connections of 256 requests, and runtimes.
const OTHER_FILES: u64 = 512;

/// Open files of each thread for requests, and of the one for handshakes beside it.
const FILES_OF_A_THREAD: u64 = 4;

/// How long the ports of a predecessor may stay in use after it was found dead: the kernel closes its files one after the
/// other.
const ENDING_WITHIN: Duration = Duration::from_millis(500);

/// Pause before such a port is tried again.
const BIND_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// A process that does not accept connections yet.
pub(super) struct Startup<'d> {
    /// The path of the configuration file that the command line gives, if it gives one.
    pub(super) config_path: Option<PathBuf>,
    pub(super) loaded: Loaded,
    pub(super) config_watch: FileWatch,
    pub(super) demo: Option<&'d Demo>,
}

impl Startup<'_> {
    /// Builds every part and accepts connections. A demo has no reloader, because its configuration is not the file's.
    /// `None`: a stop signal came first.
    pub(super) async fn run(self) -> Result<Option<(Serving, Option<Reloader>)>, ProcessError> {
        let Startup { config_path, loaded, config_watch, demo } = self;
        let watches = Watches::new(config_path, config_watch, &loaded.config);
        let inputs = preflight::check(&loaded)?;
        loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        loaded.config.limits.shadow_warning().inspect(|warning| tracing::warn!("{warning}"));
        let mut stop_signals = StopSignals::register()?;
        let caller_files = raise_file_limit(&loaded.config)?;
        let tls = inputs.certificate.map(|c| start_tls(c, loaded.config.server.threads)).transpose()?;
        let handover = loaded.config.server.handover.clone();
        let schema = Store::schema(&loaded.config.origin.store);
        let found = Predecessor::connect(handover.as_deref(), schema).await?;
        let looked_at = handover.as_deref().filter(|_| found.is_none());
        let (predecessor, mut inherited) = found.map_or((None, Vec::new()), |(p, sockets)| (Some(p), sockets));
        let listeners = bind_all(&loaded.config, demo.is_some(), looked_at, &mut inherited).await?;
        let admin = AdminStartup::prepare(&loaded, inputs.admin_certificate, demo.is_some(), &mut inherited)?;
        drop(inherited); // addresses that the configuration does not name any more
        let shared = listeners.iter().map(Listener::share).chain(admin.share(&loaded).transpose());
        let shared = shared.collect::<io::Result<_>>().map_err(|e| ProcessError::Failed(e.to_string()))?;
        let handover = handover.map(|path| Handover::prepare(&path, shared, schema)).transpose()?;
        let Loaded { config, warnings, path, .. } = loaded;
        let clock = Clock::system();
        // Opening the store may wait a minute for other processes.
        let Some(store) = stop_signals.unless_stopped(open_store(&config)).await.transpose()? else { return Ok(None) };
        fill_store(demo, store.as_deref()).await?;
        let joined = join_cluster(&config, demo.is_some(), &clock);
        let Some(joined) = stop_signals.unless_stopped(joined).await.transpose()? else { return Ok(None) };
        let origin = start_origin(&config, inputs.upstream_tls, store.as_ref(), &clock).await?;
        let logs = Logs::open(&config.log, predecessor.is_some(), &clock)?;
        // After most of what may take seconds, since the age of a list of keys counts from here (guarantee 7).
        let loaded = load_keys(&config, inputs.keys, store.as_ref(), &clock);
        let Some((keys, key_list, day_counts)) = stop_signals.unless_stopped(loaded).await.transpose()? else {
            return Ok(None);
        };
        let state = State::new(config, origin, keys, key_list, day_counts, &clock);
        let (limits, (bus, stream)) = (joined.limits, joined.bus.unzip());
        let gateway = Arc::new(Gateway::with_bus(clock, state, logs.observer(), bus).sharing(limits.clone()));
        let background = BackgroundTasks::start(&gateway, store.as_ref(), limits, stream);
        let Some(()) = stop_signals.unless_stopped(begin_bus(&gateway)).await.transpose()? else { return Ok(None) };
        let config = gateway.state().config.clone();
        let urls: Vec<String> = listeners.iter().map(|listener| listener.url().to_owned()).collect();
        let edge = Edge::new(gateway.clone(), tls.clone(), caller_files);
        let metrics = Metrics::new(vec![
            Box::new(gateway.clone()),
            Box::new(EdgeMetrics::new(&edge)),
            Box::new(ProcessMetrics::new(gateway.clock().unix(), admin.state.clone(), store.clone())),
        ]);
        let mut server = Server::start(edge, listeners, config.server.threads).map_err(no_thread)?;
        if !server.is_prepared().await {
            return Err(listeners_failed("started"));
        }
        if predecessor.is_some() {
            // It has in force what has been changed meanwhile, and goes on if this process ends.
            if watches.config_has_changed() {
                let file = watches.config_file().display().to_string();
                return Err(ProcessError::Unusable(format!(
                    "{file} has changed since this start began; start it again"
                )));
            }
            apply_changed_keys(&watches, &gateway, store.as_ref())?;
        }
        if !server.is_reachable() {
            return Err(listeners_failed("opened"));
        }
        let admin_state = admin.state.clone();
        let (admin, reload_requests) =
            admin.start(&gateway, store.as_ref(), logs.audit.clone(), metrics, demo.is_some())?;
        if let Some(predecessor) = &predecessor {
            gateway.alone.begin();
            // Until it has taken over, a stop signal leaves the addresses to the predecessor.
            let taken = stop_signals.unless_stopped(predecessor.take_over()).await;
            let Some(()) = taken.transpose()? else { return Ok(None) };
        }
        let _ = apply_changed_keys(&watches, &gateway, store.as_ref()); // the reloader says why
        if !server.accept().await {
            return Err(listeners_failed("opened"));
        }
        gateway.shared_limits().inspect(|limits| limits.set_state(Some(NodeState::Serving)));
        let is_first = predecessor.is_none();
        let handover = handover.map(|handover| handover.start(predecessor, gateway.clone()));
        print_ready(&urls, &config, gateway.clock(), demo);
        if is_first {
            systemd::ready();
        }
        tokio::spawn(systemd::notify_watchdog());
        let in_force = InForce { has_file: path.is_some(), warnings };
        let admin_reloads = (admin_state.clone(), reload_requests);
        let reloader = demo
            .is_none()
            .then(|| Reloader::new(gateway.clone(), store, tls, logs.clone(), in_force, watches, admin_reloads));
        let admin = (admin, admin_state);
        Ok(Some((Serving { gateway, server, logs, background, handover, stop_signals, admin }, reloader)))
    }
}

fn no_thread(error: io::Error) -> ProcessError {
    ProcessError::Failed(format!("cannot start a thread: {error}"))
}

fn listeners_failed(what: &str) -> ProcessError {
    ProcessError::Failed(format!("the listeners could not be {what}; the lines above say why"))
}

fn start_tls(certificate: Certificate, threads: usize) -> Result<Arc<Tls>, ProcessError> {
    if let Some(warning) = &certificate.warning {
        tracing::warn!("{warning}");
    }
    Tls::new(certificate, threads).map(Arc::new).map_err(|e| ProcessError::Unusable(e.to_string()))
}

/// Binds every address, or reports the first one that fails. The predecessor's sockets are used where the configuration
/// still names their addresses; `looked_at` is where a predecessor was looked for in vain.
async fn bind_all(
    config: &Config,
    is_demo: bool,
    looked_at: Option<&Path>,
    inherited: &mut Vec<ListeningSocket>,
) -> Result<Vec<Listener>, ProcessError> {
    let tls = config.server.tls.is_some();
    let mut bind = |listen| match Listener::bind(listen, tls, inherited) {
        // A demo starts on any free port rather than not at all.
        Err(_) if is_demo => Listener::bind(&demo::ANY_PORT, tls, inherited),
        bound => bound,
    };
    let (mut listeners, begun) = (Vec::new(), Instant::now());
    for listen in &config.server.listen {
        listeners.push(loop {
            match (bind(listen), looked_at) {
                (Ok(listener), _) => break listener,
                (Err(e), Some(_)) if e.is_in_use() && begun.elapsed() < ENDING_WITHIN => sleep(BIND_AGAIN_AFTER).await,
                (Err(e), Some(path)) if e.is_in_use() => {
                    let path = path.display();
                    return Err(ProcessError::Failed(format!(
                        "{e}. To take over from it, this process must find it at {path} (server.handover)"
                    )));
                }
                (Err(e), _) => return Err(ProcessError::Failed(e.to_string())),
            }
        });
    }
    Ok(listeners)
}

/// Lets the process open a file for each connection, or warns about what prevents it. Returns the files that are for
/// callers: they must not keep the process from opening others, as that of its keys. Fails if those of the threads leave too
/// few.
fn raise_file_limit(config: &Config) -> Result<CallerFiles, ProcessError> {
    let all = CallerFiles::of(config.server.max_connections);
    let of_threads = FILES_OF_A_THREAD * config.server.threads as u64;
    let needed = of_threads + OTHER_FILES + (all.connections as u64).saturating_add(all.detached as u64);
    match rlimit::increase_nofile_limit(needed) {
        Ok(limit) if limit < LEAST_FILES + of_threads => {
            let least = LEAST_FILES + of_threads;
            Err(ProcessError::Failed(format!(
                "the limit of open files is {limit}; raise it (ulimit -n, LimitNOFILE) to {least} at least, or lower \
                 server.threads"
            )))
        }
        Ok(limit) if limit < needed => {
            let left = limit - of_threads;
            let for_callers = usize::try_from(left - OTHER_FILES.min(left / 2)).unwrap_or(usize::MAX);
            let connections = all.connections.min(for_callers - all.detached.min(for_callers / 4));
            let detached = all.detached.min(for_callers - connections);
            tracing::warn!(
                limit,
                needed,
                connections,
                "server.max_connections is more than the limit of open files (ulimit -n) allows; raise that or lower it"
            );
            Ok(CallerFiles { connections, detached })
        }
        Ok(_) => Ok(all),
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files to server.max_connections");
            Ok(all)
        }
    }
}

/// Opens the store where it is needed. A tier's `daily` limit needs it too (contract section 3).
async fn open_store(config: &Config) -> Result<Option<Arc<Store>>, ProcessError> {
    if !config.needs_store() {
        return Ok(None);
    }
    match Store::open(&config.origin.store, IfMissing::Make).await {
        Ok(store) => Ok(Some(store)),
        Err(e) if config.limits.counts_days() => {
            Err(ProcessError::Unusable(format!("a tier's `daily` needs the store: {e}")))
        }
        Err(e) => Err(e.into()),
    }
}

/// What this process shares with other nodes, and what it is shared through.
#[derive(Default)]
struct Joined {
    limits: Option<Arc<SharedLimits>>,
    bus: Option<(Bus, RedisStream)>,
}

/// Connects to the Redis through which nodes share limits and tell each other of writes, if one is named. A demo joins no
/// cluster. The two processes of a hand-over are two incarnations to the other nodes.
async fn join_cluster(config: &Config, is_demo: bool, clock: &Clock) -> Result<Joined, ProcessError> {
    let Some(cluster) = config.cluster.clone().filter(|_| !is_demo) else { return Ok(Joined::default()) };
    let bus = RedisStream::of(&cluster).map(|stream| (Bus::new(clock.clone()), stream));
    let limits = SharedLimits::start(cluster, clock.clone()).await.map_err(ProcessError::Unusable)?;
    Ok(Joined { limits: Some(limits), bus })
}

/// Waits until the other nodes can be told of writes, if there are any.
async fn begin_bus(gateway: &Gateway) -> Result<(), ProcessError> {
    let Some(peers) = gateway.peers() else { return Ok(()) };
    timeout(START_TIMEOUT, peers.bus.has_begun()).await.map_err(|_| {
        let why = "no notice of writes was confirmed within 5 s; the lines above say why";
        ProcessError::Unusable(format!("cluster.redis cannot be used: {why}"))
    })
}

async fn fill_store(demo: Option<&Demo>, store: Option<&Store>) -> Result<(), ProcessError> {
    match (demo, store) {
        (Some(demo), Some(store)) => demo.fill(store).await?,
        (None, Some(store)) if store.is_new() => tracing::info!("made a new store at {}", store.location()),
        _ => {}
    }
    Ok(())
}

/// The source of keys, the keys that it lists now, and what each key has used of its `daily` limit.
pub(super) async fn load_keys(
    config: &Config,
    listed: Option<Vec<ListedKey>>,
    store: Option<&Arc<Store>>,
    clock: &Clock,
) -> Result<(KeySource, KeyList, Vec<(KeyId, DayCount)>), ProcessError> {
    let day = day_of(clock.unix());
    let counts = match store {
        Some(store) => store.daily(day).await?,
        None => Vec::new(),
    };
    let day_counts: Vec<_> = counts.into_iter().map(|(key, count)| (key, DayCount { day, count })).collect();
    let keys = match (&config.keys, store) {
        (Keys::Origin { accepted_for, refused_for }, _) => {
            let policy = Arc::new(Policy::new(config.limits.default_tier.clone()));
            let (accepted_for, refused_for) = (*accepted_for, *refused_for);
            let rules = LearnedKeyRules { policy, accepted_for, refused_for, since: Tick(0) };
            KeySource::Origin(Arc::new(LearnedKeys::new(rules, day_counts.clone())))
        }
        (Keys::File(_), _) => KeySource::File(KeyFile::new(listed.unwrap_or_default(), store.cloned())),
        (Keys::Store, Some(store)) => KeySource::Store(store.clone()),
        (Keys::Store, None) => return Err(no_store()),
    };
    let key_list = keys.list().await.map_err(ProcessError::Failed)?;
    Ok((keys, key_list, day_counts))
}

/// Puts in force what the key file holds now, if it has changed since it was read. Fails if it cannot be used.
fn apply_changed_keys(watches: &Watches, gateway: &Gateway, store: Option<&Arc<Store>>) -> Result<(), ProcessError> {
    let unusable = |why| ProcessError::Unusable(format!("the key file has changed since this start began: {why}"));
    if let Some(keys) = watches.read_changed_keys().map_err(unusable)? {
        let (state, keys) = (gateway.state().clone(), KeyFile::new(keys, store.cloned()));
        gateway.reload((*state.config).clone(), state.origin.clone(), NewKeys::File(keys));
    }
    Ok(())
}

pub(super) async fn start_origin(
    config: &Config,
    tls: Option<origin::Tls>,
    store: Option<&Arc<Store>>,
    clock: &Clock,
) -> Result<Arc<Origin>, ProcessError> {
    Ok(Arc::new(match (&config.origin.kind, store) {
        (OriginKind::Http(upstreams), _) => {
            let http = HttpOrigin::start((**upstreams).clone(), tls, clock.clone(), None).await;
            Origin::Http(http.map_err(ProcessError::Unusable)?)
        }
        (OriginKind::Builtin, Some(store)) => Origin::Builtin(Builtin::new(store.clone(), clock.clone())),
        (OriginKind::Builtin, None) => return Err(no_store()),
    }))
}

fn no_store() -> ProcessError {
    ProcessError::Failed("the store is not open".to_owned())
}

/// Prints a line for each address, and how to try the demo. A thread of its own does so, because a stderr that nobody
/// reads must delay neither a hand-over nor a stop. Callers are served already, so a failure ends nothing.
fn print_ready(urls: &[String], config: &Config, clock: &Clock, demo: Option<&Demo>) {
    let line = |url: &String| match config.log.json {
        true => telemetry::ready_as_json(url, clock.unix_ms()),
        false => format!("ready: {url}\n"),
    };
    let ready: String = urls.iter().map(line).collect();
    let instructions = demo.map(|demo| demo.instructions(urls, config));
    let print = move || {
        // Errors are ignored: if the output is closed, nobody reads it.
        let _ = io::stderr().write_all(ready.as_bytes());
        if let Some(instructions) = instructions {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{instructions}").and_then(|()| out.flush());
        }
    };
    if let Err(error) = std::thread::Builder::new().spawn(print) {
        tracing::warn!(%error, "cannot start a thread to print the addresses");
    }
}
