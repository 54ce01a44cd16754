//! The hosts that the URL names, and which is asked first: the one that took writes last. One that was
//! silent is asked last, so that it costs no other connection its time.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// What an address is given while there is another one to try, where the URL says nothing: for TCP, TLS,
/// who we are, and whether it takes writes. A server that hangs still takes connections.
const EACH: Duration = Duration::from_millis(1500);

/// No address is given less, however many there are: TLS and a password take some round trips. Those that
/// nobody came to are asked first the next time.
const LEAST: Duration = Duration::from_millis(400);

/// Silent ways remembered: more than any URL names.
const SILENT: usize = 64;

/// A way to a server: a host by its place in the URL, and its address; a Unix socket has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    host: usize,
    ip: Option<IpAddr>,
}

/// The hosts of the URL, and what was met there.
#[derive(Debug)]
pub(super) struct Hosts {
    /// All of the URL but its hosts.
    common: Config,
    named: Vec<Named>,
    each: Duration,
    /// `load_balance_hosts=random`: all that take writes are as good as each other.
    random: bool,
    met: Mutex<Met>,
    /// New connections lead elsewhere from now on.
    moved: Notify,
}

/// A host, as the URL names it.
#[derive(Debug)]
struct Named {
    host: Option<Host>,
    ip: Option<IpAddr>,
    port: u16,
}

#[derive(Debug, Default)]
struct Met {
    /// The way of the connection that was made last.
    good: Option<Way>,
    /// What did not answer in its time, and has not answered since; without an address it is the whole host.
    silent: Vec<Way>,
}

impl Hosts {
    pub(super) fn of(server: &Config) -> Self {
        let (hosts, ips, ports) = (server.get_hosts(), server.get_hostaddrs(), server.get_ports());
        let named = (0..hosts.len().max(ips.len())).map(|at| Named {
            host: hosts.get(at).cloned(),
            ip: ips.get(at).copied(),
            port: ports.get(at).or(ports.first()).copied().unwrap_or(5432),
        });
        let mut common = without_hosts(server);
        let each = server.get_connect_timeout().copied().unwrap_or(EACH);
        common.connect_timeout(each);
        let random = server.get_load_balance_hosts() == LoadBalanceHosts::Random;
        Hosts { common, named: named.collect(), each, random, met: Mutex::default(), moved: Notify::new() }
    }

    /// The hosts in the order in which they are to be asked.
    pub(super) fn in_order(&self) -> Vec<Way> {
        self.ordered((0..self.named.len()).map(|host| Way { host, ip: None }).collect())
    }

    /// The ways to a host, in the order in which they are to be tried. A look-up that hangs is the caller's
    /// to bound.
    pub(super) async fn ways(&self, to: Way) -> io::Result<Vec<Way>> {
        let Named { host, ip, port } = &self.named[to.host];
        let ips = match (ip, host) {
            (Some(ip), _) => vec![*ip],
            (None, Some(Host::Tcp(name))) => {
                lookup_host((name.as_str(), *port)).await?.map(|found| found.ip()).collect()
            }
            (None, _) => return Ok(vec![to]),
        };
        Ok(self.ordered(ips.into_iter().map(|ip| Way { ip: Some(ip), ..to }).collect()))
    }

    fn ordered(&self, mut ways: Vec<Way>) -> Vec<Way> {
        let met = self.met.lock();
        if self.random {
            fastrand::shuffle(&mut ways);
        }
        let is_good =
            |way: &Way| met.good.is_some_and(|good| good == *way || (way.ip.is_none() && good.host == way.host));
        ways.sort_by_key(|way| (met.silent.contains(way), !self.random && !is_good(way)));
        ways
    }

    /// Until when one of `left` ways may take, so that all of them have had a turn by `until`.
    pub(super) fn turn(&self, now: Instant, until: Instant, left: usize) -> Instant {
        match u32::try_from(left) {
            Ok(0 | 1) | Err(_) => until,
            Ok(left) => {
                let share = until.saturating_duration_since(now) / left;
                until.min(now + share.min(self.each).max(LEAST))
            }
        }
    }

    /// How to connect by this way.
    pub(super) fn config(&self, way: Way) -> Config {
        let (mut config, named) = (self.common.clone(), &self.named[way.host]);
        match &named.host {
            Some(Host::Tcp(name)) => drop(config.host(name)), // whose certificate it must be
            Some(Host::Unix(folder)) => drop(config.host_path(folder)),
            None => {}
        }
        if let Some(ip) = way.ip {
            config.hostaddr(ip);
        }
        config.port(named.port);
        config
    }

    /// By which way new connections are made first.
    pub(super) fn good(&self) -> Option<Way> {
        self.met.lock().good
    }

    /// A connection was made: new ones are made by this way first. False where another way than `seen`, at which that
    /// began, was found meanwhile: a server that was given up, and is back, is not gone back to.
    pub(super) fn was_good(&self, way: Way, seen: Option<Way>) -> bool {
        let mut met = self.met.lock();
        met.forget(way);
        if !self.random && met.good != seen && met.good != Some(way) {
            return false;
        }
        let before = met.good.replace(way);
        drop(met);
        if before.is_some_and(|before| before != way) && !self.random {
            tracing::warn!("PostgreSQL is followed at {} from now on", self.named(way));
            self.moved.notify_waiters();
        }
        true
    }

    /// It said something, if only that it cannot be used.
    pub(super) fn answered(&self, way: Way) {
        self.met.lock().forget(way);
    }

    /// It did not answer, and had this long for it.
    pub(super) fn was_silent(&self, way: Way, given: Duration) {
        if given < LEAST {
            return; // the caller's patience was over, and says nothing of the host
        }
        let mut met = self.met.lock();
        let known = met.silent.contains(&way);
        if !known {
            met.silent.push(way);
            // Of a name that leads elsewhere with each look-up, what it led to last is of use.
            let oldest = met.silent.len().saturating_sub(SILENT);
            met.silent.drain(..oldest);
        }
        drop(met);
        if !known && way.ip.is_none() && self.named.len() > 1 {
            tracing::warn!("{} does not answer; PostgreSQL's other hosts are asked first", self.named(way));
        }
    }

    /// Whether a connection by this way leads to where new ones do.
    pub(super) fn is_followed(&self, way: Way) -> bool {
        self.random || self.met.lock().good.is_none_or(|good| good == way)
    }

    /// Until a connection by this way does not lead to where new ones do.
    pub(super) async fn left(&self, way: Way) {
        loop {
            let moved = self.moved.notified();
            if !self.is_followed(way) {
                return;
            }
            moved.await;
        }
    }

    /// A host as an operator knows it.
    pub(super) fn named(&self, way: Way) -> String {
        let Named { host, ip, port } = &self.named[way.host];
        match (host, way.ip.or(*ip)) {
            (Some(Host::Tcp(name)), _) => format!("{name}:{port}"),
            (Some(Host::Unix(folder)), _) => format!("{}:{port}", folder.display()),
            (None, Some(ip)) => format!("{ip}:{port}"),
            (None, None) => format!("port {port}"),
        }
    }
}

impl Met {
    fn forget(&mut self, way: Way) {
        self.silent.retain(|silent| *silent != way && *silent != Way { ip: None, ..way });
    }
}

/// The same server's settings, but for where it is: a [`Config`]'s hosts cannot be taken out of it.
fn without_hosts(server: &Config) -> Config {
    let mut config = Config::new();
    server.get_user().map(|user| config.user(user));
    server.get_password().map(|password| config.password(password));
    server.get_dbname().map(|name| config.dbname(name));
    server.get_options().map(|options| config.options(options));
    server.get_application_name().map(|name| config.application_name(name));
    server.get_tcp_user_timeout().map(|timeout| config.tcp_user_timeout(*timeout));
    server.get_keepalives_interval().map(|interval| config.keepalives_interval(interval));
    server.get_keepalives_retries().map(|retries| config.keepalives_retries(retries));
    config
        .ssl_mode(server.get_ssl_mode())
        .ssl_negotiation(server.get_ssl_negotiation())
        .keepalives(server.get_keepalives())
        .keepalives_idle(server.get_keepalives_idle())
        .target_session_attrs(server.get_target_session_attrs())
        .channel_binding(server.get_channel_binding());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(url: &str) -> Hosts {
        Hosts::of(&url.parse().unwrap())
    }

    fn order(hosts: &Hosts) -> Vec<String> {
        hosts.in_order().into_iter().map(|way| hosts.named(way)).collect()
    }

    #[test]
    fn the_host_that_was_good_last_is_asked_first_and_one_that_was_silent_last() {
        let hosts = hosts("postgres://me@a:1,b:2,c:3/db");
        assert_eq!(order(&hosts), ["a:1", "b:2", "c:3"]);
        let [a, b, c] = hosts.in_order()[..] else { panic!() };
        hosts.was_silent(a, LEAST);
        assert_eq!(order(&hosts), ["b:2", "c:3", "a:1"]);
        assert!(hosts.is_followed(b), "none was good yet");
        let good = Way { ip: Some([127, 0, 0, 1].into()), ..c };
        assert!(hosts.was_good(good, None));
        assert!(!hosts.was_good(a, None) && hosts.good() == Some(good), "c was found meanwhile");
        hosts.was_silent(a, LEAST);
        assert_eq!(order(&hosts), ["c:3", "b:2", "a:1"]);
        assert!(!hosts.is_followed(b));
        hosts.was_silent(b, LEAST / 2);
        hosts.was_silent(c, LEAST);
        assert_eq!(order(&hosts), ["b:2", "c:3", "a:1"], "it is still the first of the silent ones");
        hosts.answered(a);
        assert_eq!(order(&hosts), ["a:1", "b:2", "c:3"]);
    }

    #[test]
    fn with_load_balance_hosts_any_order_is_as_good_and_silent_ones_are_last_all_the_same() {
        let hosts = hosts("postgres://me@a,b,c/db?load_balance_hosts=random");
        let [_, b, _] = hosts.in_order()[..] else { panic!() };
        let way = |host: usize| Way { host, ip: None };
        assert!(hosts.was_good(way(2), None) && hosts.was_good(way(0), None));
        hosts.was_silent(way(1), LEAST);
        let firsts: std::collections::HashSet<_> = (0..1000).map(|_| hosts.in_order()[0].host).collect();
        assert_eq!(firsts, [0, 2].into());
        assert!((0..100).all(|_| hosts.in_order()[2] == way(1)));
        assert!(hosts.is_followed(b));
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_a_way_of_its_own_and_so_is_a_unix_socket() {
        let by_address = hosts("postgres://me@db.example:7/db?hostaddr=127.0.0.2");
        let ways = by_address.ways(by_address.in_order()[0]).await.unwrap();
        assert_eq!(ways, [Way { host: 0, ip: Some([127, 0, 0, 2].into()) }]);
        let config = by_address.config(ways[0]);
        assert_eq!(config.get_hosts(), [Host::Tcp("db.example".into())], "whose certificate it must be");
        assert_eq!((config.get_hostaddrs(), config.get_ports()), (&[[127, 0, 0, 2].into()][..], &[7][..]));
        by_address.was_silent(ways[0], LEAST);
        assert_eq!(by_address.met.lock().silent, ways);
        let socket = hosts("postgres://me@%2Frun%2Fpostgresql:8/db");
        let ways = socket.ways(socket.in_order()[0]).await.unwrap();
        assert_eq!(ways, socket.in_order());
        assert_eq!(socket.config(ways[0]).get_hosts(), [Host::Unix("/run/postgresql".into())]);
    }

    #[test]
    fn each_has_its_share_of_the_time_and_the_last_has_all_that_is_left() {
        let one = hosts("postgres://me@a,b/db");
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(one.turn(now, now + 2 * second, 2), now + second);
        assert_eq!(one.turn(now, now + 20 * second, 2), now + EACH);
        assert_eq!(one.turn(now, now + 2 * second, 20), now + LEAST);
        assert_eq!(one.turn(now, now + LEAST / 2, 20), now + LEAST / 2);
        assert_eq!(one.turn(now, now + 20 * second, 1), now + 20 * second);
        let patient = hosts("postgres://me@a,b/db?connect_timeout=5");
        assert_eq!(patient.turn(now, now + 20 * second, 2), now + 5 * second);
    }
}
