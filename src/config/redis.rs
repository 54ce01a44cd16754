//! Where Redis is (contract section 3, `[cluster] redis`): one server, a Unix socket, Sentinels or a Redis Cluster.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// The ports where a URL names none.
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The longest host name that DNS can hold.
const MAX_HOST_NAME: usize = 253;

/// A Redis or Valkey. Neither `Debug` nor `Display` shows its password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAt {
    pub servers: RedisServers,
    pub tls: bool,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
}

/// How the server is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    One(HostPort),
    Unix(PathBuf),
    /// Any of these Sentinels tells which server is the primary of this name.
    Sentinels {
        sentinels: Vec<HostPort>,
        master: String,
    },
    /// Any of these nodes of a Redis Cluster tells the others.
    Cluster(Vec<HostPort>),
}

/// A host's name or address, without brackets, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl RedisAt {
    /// Reads a URL. The message of one that cannot be used repeats nothing of it: any part may be a piece of a password
    /// that was not escaped.
    pub fn parse(url: &str) -> Result<Self, String> {
        Self::read(url).ok_or_else(|| {
            "is no usable Redis URL. It is redis://USER:PASSWORD@HOST:PORT/DATABASE (rediss:// with TLS), \
             unix:///PATH?db=DATABASE, redis-sentinel://HOST:PORT,HOST:PORT/DATABASE?master=NAME or \
             redis-cluster://HOST:PORT,HOST:PORT; in a password, a character such as @ : / ? # % is written %40 and so on"
                .to_owned()
        })
    }

    fn read(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parameters = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            parameters.push((name, unescaped(value)?));
        }
        let mut take = |name| {
            let at = parameters.iter().position(|(found, _)| *found == name)?;
            Some(parameters.swap_remove(at).1)
        };
        let at = match scheme {
            "unix" => {
                let path = rest.starts_with('/').then(|| PathBuf::from(rest))?;
                let database = take("db").map_or(Some(0), |db| database(&db))?;
                let (user, password) = (take("user"), take("pass"));
                RedisAt { servers: RedisServers::Unix(path), tls: false, user, password, database }
            }
            "redis" | "rediss" | "redis-sentinel" | "rediss-sentinel" | "redis-cluster" | "rediss-cluster" => {
                let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
                let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
                let database = if path.is_empty() { 0 } else { database(path)? };
                let (user, password) = match login.map(|login| login.split_once(':').unwrap_or(("", login))) {
                    None => (None, None),
                    Some((user, password)) => (Some(unescaped(user)?), Some(unescaped(password)?)),
                };
                let user = user.filter(|user| !user.is_empty());
                let is_sentinel = scheme.ends_with("-sentinel");
                let port = if is_sentinel { SENTINEL_PORT } else { REDIS_PORT };
                let hosts: Option<Vec<HostPort>> = hosts.split(',').map(|host| HostPort::read(host, port)).collect();
                let hosts = hosts?;
                let servers = match (is_sentinel, scheme.ends_with("-cluster"), hosts.as_slice()) {
                    (true, _, _) => {
                        let master = take("master").filter(|master| !master.is_empty())?;
                        RedisServers::Sentinels { sentinels: hosts, master }
                    }
                    (false, true, _) if database == 0 => RedisServers::Cluster(hosts),
                    (false, false, [one]) => RedisServers::One(one.clone()),
                    (false, _, _) => return None,
                };
                RedisAt { servers, tls: scheme.starts_with("rediss"), user, password, database }
            }
            _ => return None,
        };
        parameters.is_empty().then_some(at)
    }

    /// Whether what is sent can be read on the way to another host.
    pub fn is_plain_remote(&self) -> bool {
        let is_here = |at: &HostPort| {
            at.host == "localhost" || at.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        !self.tls
            && match &self.servers {
                RedisServers::Unix(_) => false,
                RedisServers::One(at) => !is_here(at),
                RedisServers::Sentinels { sentinels: list, .. } | RedisServers::Cluster(list) => {
                    !list.iter().all(is_here)
                }
            }
    }
}

impl HostPort {
    /// Reads `host` or `host:port`; an IPv6 address has brackets. `port` is that of a text without one.
    pub(super) fn read(text: &str, port: u16) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon inside brackets is the address's own.
            Some((host, port)) if !port.ends_with(']') => (host, decimal(port)?),
            _ => (text, port),
        };
        let is_name = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => (1..=MAX_HOST_NAME).contains(&host.len()) && is_name(host),
        };
        is_host.then(|| HostPort { host: address.unwrap_or(host).to_owned(), port })
    }
}

/// A port from 1 on.
fn decimal(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0 && text.bytes().all(|b| b.is_ascii_digit()))
}

fn database(text: &str) -> Option<i64> {
    text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit())).map(i64::from)
}

fn unescaped(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
    (!text.contains(char::is_control)).then_some(text)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPort { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The URL without its user and password.
impl fmt::Display for RedisAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        let database = self.database;
        let list = |list: &[HostPort]| list.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",");
        match &self.servers {
            RedisServers::One(at) => write!(f, "redis{s}://{at}/{database}"),
            RedisServers::Unix(path) => write!(f, "unix://{}?db={database}", path.display()),
            RedisServers::Sentinels { sentinels, master } => {
                write!(f, "redis{s}-sentinel://{}/{database}?master={master}", list(sentinels))
            }
            RedisServers::Cluster(nodes) => write!(f, "redis{s}-cluster://{}", list(nodes)),
        }
    }
}

impl fmt::Debug for RedisAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_url_is_read_and_shown_without_its_password() {
        for (url, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("rediss://me:hunter%402@cache.example:7000/3", "rediss://cache.example:7000/3"),
            ("redis://:hunter2@[::1]", "redis://[::1]:6379/0"),
            ("unix:///run/redis.sock?db=2&pass=hunter2", "unix:///run/redis.sock?db=2"),
            ("redis-sentinel://a,b:1/?master=m", "redis-sentinel://a:26379,b:1/0?master=m"),
            ("redis-cluster://a,b:7001", "redis-cluster://a:6379,b:7001"),
        ] {
            let at = RedisAt::parse(url).unwrap();
            assert_eq!((at.to_string(), format!("{at:?}")), (shown.to_owned(), shown.to_owned()));
            assert_eq!(RedisAt::parse(shown).unwrap().to_string(), shown);
        }
        let at = RedisAt::parse("rediss://me:hunter%402@cache.example").unwrap();
        assert_eq!((at.user.as_deref(), at.password.as_deref()), (Some("me"), Some("hunter@2")));
        assert!(!at.is_plain_remote() && RedisAt::parse("redis://cache.example").unwrap().is_plain_remote());
    }

    #[test]
    fn a_url_with_a_typo_is_refused_and_not_repeated() {
        for url in [
            "redsi://:hunter2@127.0.0.1",
            "redis:/127.0.0.1",
            "127.0.0.1:6379",
            "redis://:hunter2@127.0.0.1:x",
            "redis://:hunter2@127.0.0.1/two",
            "redis://:hunter2@127.0.0.1/0?ssl=on",
            "redis://:hunter2/3@127.0.0.1:1",
            "redis://a,b",
            "redis-sentinel://a",
            "redis-cluster://a/1",
            "unix://socket",
            "redis://",
        ] {
            let message = RedisAt::parse(url).err();
            if url.contains("hunter2/3") {
                assert!(message.is_none(), "the last @ ends the password");
                continue;
            }
            assert!(message.is_some_and(|text| text.contains("%40") && !text.contains("hunter2")), "{url}");
        }
    }
}
