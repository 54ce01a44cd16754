//! The first stage of a process: builds every part in order. What the configuration names was checked before, and accepting
//! connections is the last step that can fail. Until then the predecessor, if there is one, goes on serving.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::admin::AdminStartup;
use super::background::{BackgroundTasks, supervise, warn_of_ends};
use super::demo::Demo;
use super::handover::{Handover, Predecessor};
use super::logs::Logs;
use super::metrics::ProcessMetrics;
use super::preflight::Inputs;
use super::reload::{InForce, Reloader, config_file};
use super::serving::Serving;
use super::watch::States;
use super::{ProcessError, systemd};
use crate::clock::{Clock, Tick};
use crate::cluster::bus::{Bus, Notice};
use crate::cluster::{NodeState, RedisStream, START_TIMEOUT, SharedLimits};
use crate::config::{Config, Keys, Listen, Loaded, OriginKind};
use crate::edge::{Audience, BindError, CallerFiles, Edge, EdgeMetrics, Listener, ListeningSocket, Server, Tls};
use crate::gateway::{Gateway, KeyFile, KeyList, KeySource, State};
use crate::keys::{LearnedKeyRules, LearnedKeys, ListedKey};
use crate::limits::{DayCount, Policy, day_of};
use crate::model::KeyId;
use crate::origin::{self, Builtin, HttpOrigin, Origin};
use crate::store::{IfMissing, Store};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::{self, ProcessLog};
use crate::tls::Certificate;

/// Open files other than those of callers: store, logs, upstream connections of 256 requests, and runtimes.
const OTHER_FILES: usize = 512;

/// Open files of each thread for requests, and of the one for handshakes beside it.
const FILES_OF_A_THREAD: usize = 4;

/// A process that does not accept connections yet.
pub(super) struct Startup {
    /// The path of the configuration file that the command line gives, if it gives one.
    pub(super) config_path: Option<PathBuf>,
    pub(super) loaded: Loaded,
    pub(super) inputs: Inputs,
    /// The states of the files before they were read.
    pub(super) looked: States,
    pub(super) demo: Option<Arc<Demo>>,
    /// Those of a demo.
    pub(super) sockets: Vec<ListeningSocket>,
    pub(super) log: Arc<ProcessLog>,
    /// How many files may be open.
    pub(super) open_files: u64,
}

/// A process whose parts are built and whose addresses are its own, so that it has only to accept connections.
pub(super) struct Built {
    serving: Serving,
    urls: Vec<String>,
    handover: Option<Handover>,
    predecessor: Option<Predecessor>,
    demo: Option<Arc<Demo>>,
    /// `None`: a demo, whose configuration is not the file's.
    reloader: Option<Reloader>,
}

/// The listening sockets, new ones or the predecessor's.
struct Sockets {
    predecessor: Option<Predecessor>,
    listeners: Vec<Listener>,
    admin: AdminStartup,
    handover: Option<Handover>,
}

impl Startup {
    /// Builds every part. May be dropped at any await: the addresses are the predecessor's until this returns.
    pub(super) async fn run(self) -> Result<Built, ProcessError> {
        let Startup { config_path, loaded, mut inputs, looked, demo, sockets, log, open_files } = self;
        let is_demo = demo.is_some();
        let threads = loaded.config.server.threads;
        let caller_files = caller_files(&loaded.config, open_files);
        let tls = inputs.certificate.take().map(|certificate| Tls::new(certificate, threads).map(Arc::new)).transpose();
        let tls = tls.map_err(|e| ProcessError::Unusable(e.to_string()))?;
        let admin_ends = inputs.admin_certificate.as_ref().and_then(Certificate::ends);
        let Sockets { predecessor, listeners, admin, handover } =
            Sockets::open(&loaded, inputs.admin_certificate.take(), sockets).await?;
        let clock = Clock::system();
        tokio::spawn(warn_of_ends(tls.clone(), admin_ends, clock.clone()));
        let store = open_store(&loaded.config, demo.as_deref()).await?;
        let logs = Logs::open(log, &loaded.config.log, &clock)?;
        let file = config_file(config_path.as_deref());
        let in_force = InForce { file, has_file: loaded.path.is_some(), warnings: loaded.warnings };
        let (gateway, background) = build_gateway(loaded.config, inputs, store.as_ref(), &logs, clock).await?;
        let urls = listeners.iter().map(|listener| listener.url().to_owned()).collect();
        let edge = Edge::new(gateway.clone(), tls.clone(), caller_files);
        let metrics = Metrics::new(vec![
            Box::new(gateway.clone()),
            Box::new(EdgeMetrics::new(&edge)),
            Box::new(ProcessMetrics::new(gateway.clock().unix(), admin.state.clone(), store.clone())),
        ]);
        let mut server = Server::start(edge, listeners, threads)
            .map_err(|e| ProcessError::Failed(format!("cannot start a thread: {e}")))?;
        if !server.is_prepared().await {
            return Err(listeners_failed("started"));
        }
        if !server.is_reachable() {
            return Err(listeners_failed("opened"));
        }
        let state = admin.state.clone();
        let (admin, requests) = admin.start(&gateway, store.as_ref(), logs.audit.clone(), metrics, is_demo)?;
        let (files, requests) = ((in_force, looked), (state.clone(), requests));
        let mut reloader = Reloader::new(gateway.clone(), store, tls, logs.clone(), files, requests);
        let up_to_date = if is_demo { Ok(()) } else { reloader.catch_up().await };
        if let Some(predecessor) = &predecessor {
            // It has in force what has changed meanwhile, and goes on if this process ends.
            up_to_date.map_err(ProcessError::Unusable)?;
            gateway.not_alone();
            predecessor.take_over().await?;
        }
        let serving = Serving { gateway, server, logs, background, handover: None, admin: (admin, state) };
        Ok(Built { serving, urls, handover, predecessor, demo, reloader: (!is_demo).then_some(reloader) })
    }
}

impl Built {
    /// Accepts connections.
    pub(super) async fn serve(self) -> Result<(Serving, Option<Reloader>), ProcessError> {
        let Built { mut serving, urls, handover, predecessor, demo, reloader } = self;
        if !serving.server.accept().await {
            return Err(listeners_failed("opened"));
        }
        supervise("a listener for callers", &serving.logs, serving.server.failed());
        let gateway = &serving.gateway;
        gateway.shared_limits().inspect(|limits| limits.set_state(NodeState::Serving));
        let is_first = predecessor.is_none();
        serving.handover = handover.map(|handover| handover.start(predecessor, gateway.clone()));
        print_ready(&urls, gateway.state().config.log.is_json(), gateway.clock(), demo.as_deref());
        if is_first {
            systemd::ready();
        }
        tokio::spawn(systemd::notify_watchdog());
        Ok((serving, reloader))
    }
}

impl Sockets {
    /// Takes the sockets of the predecessor, if there is one, or these, and binds the addresses that are not among them.
    async fn open(
        loaded: &Loaded,
        certificate: Option<Certificate>,
        sockets: Vec<ListeningSocket>,
    ) -> Result<Self, ProcessError> {
        let config = &loaded.config;
        let (path, schema) = (config.server.handover.as_deref(), Store::schema(&config.origin.store));
        let (predecessor, passed_on) = Predecessor::connect(path, schema).await?.unzip();
        let inherited = &mut passed_on.unwrap_or(sockets);
        let tls = config.server.tls.is_some();
        let bind = |listen: &Listen| {
            let only_v6 = has_v4_of_its_port(listen, config);
            Listener::bind(Audience::Callers, listen, only_v6, tls, inherited).map_err(|e| match (&e, path) {
                (BindError::InUse(..), Some(path)) if predecessor.is_none() => {
                    let path = path.display();
                    format!("{e}. To take over from it, this process must find it at {path} (server.handover)")
                }
                _ => e.to_string(),
            })
        };
        let listeners: Result<Vec<_>, _> = config.server.listen.iter().map(bind).collect();
        let listeners = listeners.map_err(ProcessError::Failed)?;
        let admin = AdminStartup::prepare(loaded, certificate, inherited)?;
        inherited.clear(); // addresses that the configuration does not name any more
        let shared = listeners.iter().chain(admin.socket()).map(Listener::share);
        let shared = shared.collect::<io::Result<_>>().map_err(|e| ProcessError::Failed(e.to_string()))?;
        let handover = path.map(|path| Handover::prepare(path, shared, schema)).transpose()?;
        Ok(Sockets { predecessor, listeners, admin, handover })
    }
}

/// Whether the configuration names an IPv4 address with the same port, whose connections an IPv6 address for all of the
/// machine's would take as well.
fn has_v4_of_its_port(listen: &Listen, config: &Config) -> bool {
    let Listen::Tcp(address) = listen else { return false };
    let is_v4 = |other: &Listen| matches!(other, Listen::Tcp(at) if at.is_ipv4() && at.port() == address.port());
    config.server.listen.iter().any(is_v4)
}

/// Builds the gateway and starts its background tasks.
async fn build_gateway(
    config: Config,
    inputs: Inputs,
    store: Option<&Arc<Store>>,
    logs: &Logs,
    clock: Clock,
) -> Result<(Arc<Gateway>, BackgroundTasks), ProcessError> {
    let Joined { limits, bus } = join_cluster(&config, &clock).await?;
    let origin = start_origin(&config, inputs.upstream_tls, store, &clock).await?;
    // After most of what may take seconds, since the age of a list of keys counts from here (guarantee 7).
    let (keys, key_list, day_counts) = load_keys(&config, inputs.keys, store, &clock).await?;
    let state = State::new(config, origin, keys, key_list, day_counts, &clock);
    let (bus, stream) = bus.unzip();
    let gateway = Arc::new(Gateway::new(clock, state, logs.observer()).beside(limits.clone(), bus));
    let background = BackgroundTasks::start(&gateway, logs, store.cloned(), limits, stream);
    begin_bus(&gateway).await?;
    Ok((gateway, background))
}

fn listeners_failed(what: &str) -> ProcessError {
    ProcessError::Failed(format!("the listeners could not be {what}; the lines above say why"))
}

/// How many of `open_files` callers may keep open, so that they do not keep the process from opening others, as that of its
/// keys. Warns if that is less than `server.max_connections`.
fn caller_files(config: &Config, open_files: u64) -> CallerFiles {
    let all = CallerFiles::of(config.server.max_connections);
    let others = OTHER_FILES + FILES_OF_A_THREAD * config.server.threads;
    let needed = all.connections.saturating_add(all.detached + others);
    let limit = usize::try_from(open_files).unwrap_or(usize::MAX);
    if limit >= needed {
        return all;
    }
    let for_callers = limit - others.min(limit / 2);
    let detached = all.detached.min(for_callers / 4);
    let connections = for_callers - detached;
    tracing::warn!(
        limit,
        needed,
        connections,
        "server.max_connections is more than the limit of open files (ulimit -n) allows; raise that or lower it"
    );
    CallerFiles { connections, detached }
}

/// Opens the store where it is needed. A tier's `daily` limit needs it too (contract section 3).
async fn open_store(config: &Config, demo: Option<&Demo>) -> Result<Option<Arc<Store>>, ProcessError> {
    if !config.needs_store() {
        return Ok(None);
    }
    // This may wait a minute for other processes.
    let store = Store::open(&config.origin.store, IfMissing::Make).await.map_err(|e| match e {
        e if config.limits.counts_days() => ProcessError::Unusable(format!("a tier's `daily` needs the store: {e}")),
        e => e.into(),
    })?;
    match demo {
        Some(demo) => demo.fill(&store).await?,
        None if store.is_new() => tracing::info!("made a new store at {}", store.location()),
        None => {}
    }
    Ok(Some(store))
}

/// What this process shares with other nodes, and what it is shared through.
#[derive(Default)]
struct Joined {
    limits: Option<Arc<SharedLimits>>,
    bus: Option<(Bus, RedisStream)>,
}

/// Connects to the Redis through which nodes share limits and tell each other of writes, if one is named. The two processes
/// of a hand-over are two incarnations to the other nodes.
async fn join_cluster(config: &Config, clock: &Clock) -> Result<Joined, ProcessError> {
    let Some(cluster) = config.cluster.clone() else { return Ok(Joined::default()) };
    let bus = RedisStream::of(&cluster).map(|stream| (Bus::new(clock.clone()), stream));
    let limits = SharedLimits::start(cluster, clock.clone()).await.map_err(ProcessError::Unusable)?;
    Ok(Joined { limits: Some(limits), bus })
}

/// Waits until the other nodes can be told of writes, if there are any.
async fn begin_bus(gateway: &Gateway) -> Result<(), ProcessError> {
    let Some(peers) = gateway.peers() else { return Ok(()) };
    peers.bus.tell(Notice::Beat, START_TIMEOUT).await.map_err(|_| {
        let why = "no notice of writes was confirmed within 5 s; the lines above say why";
        ProcessError::Unusable(format!("cluster.redis cannot be used: {why}"))
    })
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
fn print_ready(urls: &[String], json: bool, clock: &Clock, demo: Option<&Demo>) {
    let line = |url: &String| match json {
        true => telemetry::ready_as_json(url, clock.unix_ms()),
        false => format!("ready: {url}\n"),
    };
    let ready: String = urls.iter().map(line).collect();
    let instructions = demo.zip(urls.first()).map(|(demo, url)| demo.instructions(url));
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
