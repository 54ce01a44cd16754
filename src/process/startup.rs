//! The start of a process: builds every part in order. What the configuration names was checked before. Until `start`
//! returns, the predecessor, if there is one, goes on serving.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::ProcessError;
use super::background::{DAY, start_tasks, warn_of_ends};
use super::demo::Demo;
use super::handover::{Handover, Predecessor};
use super::logs::Logs;
use super::metrics::ProcessMetrics;
use super::preflight::Inputs;
use super::reload::{Reloader, States, look};
use super::serving::Serving;
use crate::admin::{AdminThread, ConfigInForce, Own, ProcessState, Shared, Tokens};
use crate::clock::{Clock, Tick};
use crate::cluster::bus::{Bus, Notice};
use crate::cluster::{RedisStream, START_TIMEOUT, SharedLimits};
use crate::config::{Config, Keys, Listen, Loaded, OriginKind};
use crate::edge::{BindError, Edge, Listener, Server, Tls};
use crate::gateway::{Gateway, KeyFile, KeyList, KeySource, State};
use crate::keys::{LearnedKeyRules, LearnedKeys, ListedKey};
use crate::limits::{DayCount, Policy, day_of};
use crate::model::KeyId;
use crate::origin::{self, Builtin, HttpOrigin, Origin};
use crate::store::{IfMissing, Store};
use crate::telemetry::ProcessLog;
use crate::telemetry::metrics::Metrics;
use crate::tls::Certificate;

/// Open files other than those of callers: store, logs, upstream connections of 256 requests, and runtimes.
const OTHER_FILES: usize = 512;

/// Open files of each thread for requests, and of the one for handshakes beside it.
const FILES_OF_A_THREAD: usize = 4;

/// Reloads that are asked for at once; one more is told to try again.
const RELOADS: usize = 4;

/// Builds every part. The process has only to accept connections then, at the addresses that are returned. The reloader is
/// `None` in a demo, whose configuration is not the file's. May be dropped at any await: the addresses are the
/// predecessor's until this returns. `looked`: the states of the files before they were read.
pub(super) async fn start(
    (file, looked): (PathBuf, States),
    loaded: Loaded,
    mut inputs: Inputs,
    demo: Option<&Demo>,
    log: Arc<ProcessLog>,
    open_files: u64,
) -> Result<(Serving, Vec<String>, Option<Reloader>), ProcessError> {
    let loaded = Arc::new(loaded);
    let (config, threads, clock) = (&loaded.config, loaded.config.server.threads, Clock::system());
    let max_connections = max_connections(config, open_files);
    let tls = inputs.certificate.take().map(|certificate| Tls::new(certificate, threads).map(Arc::new)).transpose();
    let tls = tls.map_err(|e| ProcessError::Unusable(format!("server.tls cannot be set up: {e}")))?;
    let admin_certificate = inputs.admin_certificate.take();
    let admin_ends = admin_certificate.as_ref().and_then(Certificate::ends);
    let (predecessor, listeners, admin, handover) = open_sockets(&loaded, admin_certificate.is_some()).await?;
    tokio::spawn(warn_of_ends(tls.clone(), admin_ends, clock.clone(), DAY));
    let store = open_store(config).await?;
    let logs = Logs::open(log, &config.log, &clock)?;
    let gateway = build_gateway(config.clone(), inputs, store.as_ref(), &logs, clock).await?;
    let urls: Vec<String> = listeners.iter().map(|listener| listener.url.clone()).collect();
    let edge = Arc::new(Edge::new(gateway.clone(), tls.clone(), max_connections));
    let started = gateway.clock().unix();
    let state = ProcessState::new(ConfigInForce { loaded: loaded.clone(), after_restart: Vec::new() }, started);
    let of_process = ProcessMetrics { started, state: state.clone(), store: store.clone() };
    let metrics = Metrics::new(vec![Box::new(gateway.clone()), Box::new(edge.clone()), Box::new(of_process)]);
    let connections = Metrics::new(vec![Box::new(edge.clone())]);
    let server = Server::start(edge, listeners, threads)
        .map_err(|e| ProcessError::Failed(format!("cannot wait for connections: {e}")))?;
    let (requests, receiver) = mpsc::channel(RELOADS);
    let admin_url = admin.as_ref().map(|listener| listener.url.clone()).unwrap_or_default();
    let admin = match admin.zip(config.admin.listener()) {
        None => None,
        Some((listener, settings)) => {
            let unusable = |faults: Vec<_>| ProcessError::Unusable(loaded.faults(&faults).to_string());
            let tokens = Tokens::load(settings).map_err(unusable)?;
            let shared = Shared {
                gateway: gateway.clone(),
                process: state.clone(),
                tokens,
                metrics,
                connections,
                audit: logs.audit.clone(),
                reload: demo.is_none().then_some(requests),
                store: store.clone(),
                urls: urls.clone(),
                certificate_ends: admin_ends,
                own: demo.map(|demo| Own::with_link(&demo.link, gateway.clock().now())).unwrap_or_default(),
            };
            let thread = AdminThread::start(shared, listener.socket.into(), settings.hosts.clone(), admin_certificate);
            Some(thread.map_err(|e| ProcessError::Failed(format!("the admin listener cannot be started: {e}")))?)
        }
    };
    let (files, requests) = ((file, looked.clone()), (state.clone(), receiver));
    let reloader = Reloader::new(gateway.clone(), store.clone(), tls, files, requests);
    take_over(predecessor.as_ref(), &gateway, looked).await?;
    let handover = handover.map(|handover| handover.start(predecessor, gateway.clone()));
    let serving = Serving { gateway, store, server, logs, handover, admin, admin_url, state };
    Ok((serving, urls, demo.is_none().then_some(reloader)))
}

/// Takes over from the process that serves, if there is one. It has in force what has changed since the files were `looked` at, and goes on if
/// this process ends: a key that was taken out of its file is not to be accepted again (guarantee 7).
async fn take_over(predecessor: Option<&Predecessor>, gateway: &Gateway, looked: States) -> Result<(), ProcessError> {
    let Some(predecessor) = predecessor else { return Ok(()) };
    if !spawn_blocking(move || look(looked.keys().cloned()) == looked).await.unwrap_or_default() {
        return Err(ProcessError::Unusable("a file has changed since this start began; start again".to_owned()));
    }
    gateway.not_alone();
    predecessor.take_over().await
}

/// The sockets of callers and of the admin listener, if it is on: the predecessor's, if there is one, and new ones for the
/// addresses that are not among them.
async fn open_sockets(
    loaded: &Loaded,
    admin_tls: bool,
) -> Result<(Option<Predecessor>, Vec<Listener>, Option<Listener>, Option<Handover>), ProcessError> {
    let config = &loaded.config;
    let (path, schema) = (config.server.handover.as_deref(), Store::schema(&config.origin.store));
    let (predecessor, inherited) = Predecessor::connect(path, schema).await?.unzip();
    let inherited = &mut inherited.unwrap_or_default();
    let tls = config.server.tls.is_some();
    let bind = |listen: &Listen| {
        let only_v6 = has_v4_of_its_port(listen, config);
        Listener::bind("server.listen", listen, only_v6, tls, inherited).map_err(|e| match (&e, path) {
            (BindError::InUse(..), Some(path)) if predecessor.is_none() => {
                let path = path.display();
                format!("{e}. To take over from it, this process must find it at {path} (server.handover)")
            }
            _ => e.to_string(),
        })
    };
    let listeners: Result<Vec<_>, _> = config.server.listen.iter().map(bind).collect();
    let listeners = listeners.map_err(ProcessError::Failed)?;
    let admin = config.admin.listener().map(|listener| Listen::Tcp(listener.address));
    let admin = admin.map(|address| Listener::bind("admin.listen", &address, false, admin_tls, inherited));
    let admin = match admin.transpose() {
        // The default address is in use, as by another gateway on this machine.
        Err(error) if !loaded.is_given("admin.listen") => {
            tracing::warn!("admin.listen: {error}. This process has no admin listener");
            None
        }
        admin => admin.map_err(|e| ProcessError::Failed(e.to_string()))?,
    };
    inherited.clear(); // addresses that the configuration does not name any more
    let shared = listeners.iter().chain(&admin).map(Listener::share);
    let shared = shared.collect::<io::Result<_>>().map_err(|e| ProcessError::Failed(e.to_string()))?;
    let handover = path.map(|path| Handover::prepare(path, shared, schema)).transpose()?;
    Ok((predecessor, listeners, admin, handover))
}

/// Whether the configuration names an IPv4 address with the same port, whose connections an IPv6 address for all of the
/// machine's would take as well.
fn has_v4_of_its_port(listen: &Listen, config: &Config) -> bool {
    let Listen::Tcp(address) = listen else { return false };
    let is_v4 = |other: &Listen| matches!(other, Listen::Tcp(at) if at.is_ipv4() && at.port() == address.port());
    config.server.listen.iter().any(is_v4)
}

/// Builds the gateway, and starts its background tasks.
async fn build_gateway(
    config: Config,
    inputs: Inputs,
    store: Option<&Arc<Store>>,
    logs: &Logs,
    clock: Clock,
) -> Result<Arc<Gateway>, ProcessError> {
    let (mut limits, mut bus) = (None, None);
    if let Some(cluster) = config.cluster.clone() {
        // The two processes of a hand-over are two incarnations to the other nodes.
        bus = RedisStream::of(&cluster).map(|stream| (Bus::new(clock.clone()), stream));
        limits = Some(SharedLimits::start(cluster, clock.clone()).await.map_err(ProcessError::Unusable)?);
    }
    let origin = start_origin(&config, inputs.upstream_tls, store, &clock).await?;
    // After most of what may take seconds, since the age of a list of keys counts from here (guarantee 7).
    let (keys, key_list, day_counts) = load_keys(&config, inputs.keys, store, &clock).await?;
    let state = State::new(config, origin, keys, key_list, day_counts, &clock);
    let (bus, stream) = bus.unzip();
    let gateway = Arc::new(Gateway::new(clock, state, logs.observer()).beside(limits.clone(), bus));
    start_tasks(&gateway, logs, store, limits, stream);
    if let Some(peers) = gateway.peers() {
        peers.bus.tell(Notice::Beat, START_TIMEOUT).await.map_err(|_| {
            let why = "no notice of writes was confirmed within 5 s; the lines above say why";
            ProcessError::Unusable(format!("cluster.redis cannot be used: {why}"))
        })?;
    }
    Ok(gateway)
}

/// The connections for which callers may open some of `open_files`, so that they do not keep the process from opening others,
/// as that of its keys. Warns if those are less than `server.max_connections`.
fn max_connections(config: &Config, open_files: u64) -> usize {
    let others = OTHER_FILES + FILES_OF_A_THREAD * config.server.threads;
    let needed = config.server.max_connections.saturating_add(others);
    let limit = usize::try_from(open_files).unwrap_or(usize::MAX);
    if limit >= needed {
        return config.server.max_connections;
    }
    let connections = limit - others.min(limit / 2);
    let what = "server.max_connections is more than the limit of open files (ulimit -n) allows; raise that or lower it";
    tracing::warn!(limit, needed, connections, "{what}");
    connections
}

/// Opens the store where it is needed. A tier's `daily` limit needs it too (contract section 3).
async fn open_store(config: &Config) -> Result<Option<Arc<Store>>, ProcessError> {
    if !config.needs_store() {
        return Ok(None);
    }
    // This may wait a minute for other processes.
    let store = Store::open(&config.origin.store, IfMissing::Make).await.map_err(|e| match e {
        e if config.limits.counts_days() => ProcessError::Unusable(format!("a tier's `daily` needs the store: {e}")),
        e => e.into(),
    })?;
    if store.is_new() {
        tracing::info!("made a new store at {}", store.location());
    }
    Ok(Some(store))
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
    let keys = match &config.keys {
        Keys::Origin { accepted_for, refused_for } => {
            let policy = Arc::new(Policy::new(config.limits.default_tier.clone()));
            let (accepted_for, refused_for) = (*accepted_for, *refused_for);
            let rules = LearnedKeyRules { policy, accepted_for, refused_for, since: Tick(0) };
            KeySource::Origin(Arc::new(LearnedKeys::new(rules, day_counts.clone())))
        }
        Keys::File(_) => KeySource::File(KeyFile::new(listed.unwrap_or_default(), store.cloned())),
        Keys::Store => KeySource::Store(store.ok_or_else(no_store)?.clone()),
    };
    let key_list = keys.list().await.map_err(ProcessError::Failed)?;
    Ok((keys, key_list, day_counts))
}

pub(super) async fn start_origin(
    config: &Config,
    tls: Option<origin::Tls>,
    store: Option<&Arc<Store>>,
    clock: &Clock,
) -> Result<Arc<Origin>, ProcessError> {
    Ok(Arc::new(match &config.origin.kind {
        OriginKind::Http(upstreams) => {
            Origin::Http(HttpOrigin::start((**upstreams).clone(), tls, clock.clone(), None).await)
        }
        OriginKind::Builtin => Origin::Builtin(Builtin::new(store.ok_or_else(no_store)?.clone(), clock.clone())),
    }))
}

fn no_store() -> ProcessError {
    ProcessError::Failed("the store is not open".to_owned())
}
