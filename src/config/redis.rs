//! Where Redis is (contract section 3, `[cluster] redis`): one server, a Unix socket, Sentinels or a Redis Cluster.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, slice};

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
    /// Its URL without user and password.
    shown: String,
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
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name, unescaped(value)?))
        });
        let mut parameters: HashMap<&str, String> = pairs.collect::<Option<_>>()?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").unwrap_or(scheme)),
        };
        if kind == "unix" && !tls && rest.starts_with('/') {
            let database = number(parameters.remove("db").as_deref().unwrap_or("0"))?;
            let [user, password] = ["user", "pass"].map(|name| parameters.remove(name));
            let (servers, shown) = (RedisServers::Unix(rest.into()), format!("unix://{rest}?db={database}"));
            return parameters.is_empty().then_some(RedisAt { servers, tls, user, password, database, shown });
        }
        let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (user, password) = login.split_once(':').unwrap_or(("", login));
        let given = |text: &str| Some(unescaped(text)?).map(|text| Some(text).filter(|text| !text.is_empty()));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let database = if path.is_empty() { 0 } else { number(path)? };
        let list = |port| hosts.split(',').map(|host| HostPort::read(host, port)).collect::<Option<Vec<_>>>();
        let servers = match kind {
            "" => RedisServers::One(HostPort::read(hosts, REDIS_PORT)?),
            "-sentinel" => {
                let master = parameters.remove("master").filter(|master| !master.is_empty())?;
                RedisServers::Sentinels { sentinels: list(SENTINEL_PORT)?, master }
            }
            "-cluster" if database == 0 => RedisServers::Cluster(list(REDIS_PORT)?),
            _ => return None,
        };
        let (user, password) = (given(user)?, given(password)?);
        let shown = format!("{scheme}://{place}{}{query}", if query.is_empty() { "" } else { "?" });
        parameters.is_empty().then_some(RedisAt { servers, tls, user, password, database, shown })
    }

    /// Whether what is sent can be read on the way to another host.
    pub fn is_plain_remote(&self) -> bool {
        let hosts = match &self.servers {
            RedisServers::Unix(_) => &[],
            RedisServers::One(at) => slice::from_ref(at),
            RedisServers::Sentinels { sentinels: list, .. } | RedisServers::Cluster(list) => list.as_slice(),
        };
        let is_loopback = |host: &str| host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        !self.tls && hosts.iter().any(|HostPort { host, .. }| host != "localhost" && !is_loopback(host))
    }
}

impl HostPort {
    /// Reads `host` or `host:port`; an IPv6 address has brackets. `port` is that of a text without one.
    pub(super) fn read(text: &str, port: u16) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon inside brackets is the address's own.
            Some((host, port)) if !port.ends_with(']') => (host, number(port).filter(|port| *port > 0)?),
            _ => (text, port),
        };
        let is_name = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match address {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => (1..=MAX_HOST_NAME).contains(&host.len()) && is_name(host),
        };
        is_host.then(|| HostPort { host: address.unwrap_or(host).to_owned(), port })
    }
}

/// A number without a sign.
fn number<N: FromStr>(text: &str) -> Option<N> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
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

impl fmt::Display for RedisAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_url_is_read_and_shown_without_its_password() {
        for (url, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1"),
            ("rediss://me:hunter%402@cache.example:7000/3", "rediss://cache.example:7000/3"),
            ("redis://:hunter2@[::1]", "redis://[::1]"),
            ("unix:///run/redis.sock?db=2&pass=hunter2", "unix:///run/redis.sock?db=2"),
            ("redis-sentinel://a,b:1/?master=m", "redis-sentinel://a,b:1/?master=m"),
            ("redis-cluster://a,b:7001", "redis-cluster://a,b:7001"),
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
