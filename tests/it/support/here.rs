//! A gateway in the test's own process: the parts that `serve` connects, behind real sockets, with a clock that the test may
//! move, and without what only a process has (signals, logs, the watch on its files).

use std::io::Cursor;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;

use guildgate::clock::{Clock, Tick};
use guildgate::config::{self, Config, Keys, OriginKind};
use guildgate::edge::{Edge, Listener, Server, Tls};
use guildgate::gateway::{Gateway, KeyFile, KeySource, NewKeys, State};
use guildgate::keys::{LearnedKeyRules, LearnedKeys, read_key_file};
use guildgate::limits::Policy;
use guildgate::origin::{self, Builtin, HttpOrigin, Origin};
use guildgate::store::{IfMissing, KeyRecord, Mode, Store};
use guildgate::telemetry::Observer;
use guildgate::tls::Certificate;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::World;

/// A gateway that serves in this process until it is dropped.
pub struct Here {
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    /// Its threads never end: Pingora takes a later thread that gets the number of one that has ended for that one.
    server: ManuallyDrop<Server>,
}

impl Drop for Here {
    fn drop(&mut self) {
        self.server.begin_drain(false);
        self.server.close_idle();
    }
}

/// The configuration of this world.
fn load(world: &World) -> Config {
    config::load(Some(&world.path("gateway.toml"))).unwrap().config
}

/// The store of this world with these records and keys in it, if its configuration needs one.
pub async fn store(world: &World, records: String, keys: Vec<KeyRecord>) -> Option<Arc<Store>> {
    let config = load(world);
    if !config.needs_store() {
        return None;
    }
    let store = Store::open(&config.origin.store, IfMissing::Make).await.unwrap();
    let lines = move || Ok(Cursor::new(records.clone()));
    store.import(lines, Mode::AllOrNothing, |_| {}).await.unwrap().commit().await.unwrap();
    for key in keys {
        store.create_key(key).await.unwrap();
    }
    Some(store)
}

impl Here {
    pub async fn start(world: &World, store: Option<Arc<Store>>, clock: Clock) -> Here {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }); // callers and gateways share this process
        let config = load(world);
        let origin = Arc::new(match &config.origin.kind {
            OriginKind::Builtin => Origin::Builtin(Builtin::new(store.clone().unwrap(), clock.clone())),
            OriginKind::Http(upstreams) => {
                let tls = origin::Tls::load(upstreams).unwrap();
                Origin::Http(HttpOrigin::start((**upstreams).clone(), tls, clock.clone(), None).await)
            }
        });
        let keys = match &config.keys {
            Keys::Store => KeySource::Store(store.unwrap()),
            Keys::File(path) => KeySource::File(KeyFile::new(read_key_file(path).unwrap(), store)),
            Keys::Origin { accepted_for, refused_for } => {
                let policy = Arc::new(Policy::new(config.limits.default_tier.clone()));
                let (accepted_for, refused_for) = (*accepted_for, *refused_for);
                let rules = LearnedKeyRules { policy, accepted_for, refused_for, since: Tick(0) };
                KeySource::Origin(Arc::new(LearnedKeys::new(rules, Vec::new())))
            }
        };
        let (list, threads) = (keys.list().await.unwrap(), config.server.threads);
        let pair = config.server.tls.as_ref().map(|pair| Certificate::load("server.tls", pair).unwrap());
        let tls = pair.map(|pair| Arc::new(Tls::new(pair, threads).unwrap()));
        let bind = |listen| Listener::bind("server.listen", listen, false, tls.is_some(), &mut Vec::new()).unwrap();
        let listeners: Vec<Listener> = config.server.listen.iter().map(bind).collect();
        let address = listeners[0].url.rsplit('/').next().unwrap().parse().unwrap();
        let state = State::new(config, origin, keys, list, Vec::new(), &clock);
        let gateway = Arc::new(Gateway::new(clock, state, Observer::default()));
        let edge = Arc::new(Edge::new(gateway.clone(), tls, usize::MAX));
        let mut server = Server::start(edge, listeners, threads).unwrap();
        server.accept();
        Here { gateway, address, server: ManuallyDrop::new(server) }
    }

    /// Puts in force what is in the files of this world now.
    pub async fn reload(&self, world: &World) {
        let (before, clock) = (self.gateway.state().clone(), self.gateway.clock());
        let config = before.config.reloaded(load(world), true).config;
        let keys = match (&config.keys, &before.keys) {
            (Keys::File(path), KeySource::File(file)) => {
                NewKeys::File(KeyFile::new(read_key_file(path).unwrap(), file.guilds.clone()))
            }
            _ => NewKeys::Unchanged,
        };
        let origin = match (&config.origin.kind, &*before.origin) {
            (OriginKind::Http(upstreams), Origin::Http(origin)) => {
                let tls = origin::Tls::load(upstreams).unwrap();
                match origin.has_settings(upstreams, &tls) {
                    true => before.origin.clone(),
                    false => {
                        let next = HttpOrigin::start((**upstreams).clone(), tls, clock.clone(), Some(&**origin)).await;
                        Arc::new(Origin::Http(next))
                    }
                }
            }
            _ => before.origin.clone(),
        };
        self.gateway.reload(config, origin, keys);
    }
}
