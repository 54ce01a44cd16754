//! The upstreams of `[origin]`, judged.

use std::net::Ipv6Addr;

use http::uri::PathAndQuery;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Checker;
use super::server::did_you_mean;
use crate::config::file::{HealthFile, OriginFile, UpstreamTlsFile};
use crate::config::usable::{Health, Identity, Upstream, UpstreamTls, Upstreams};

/// Upstreams of one service. More are no longer written by hand: one name with many addresses says it better.
const MAX_UPSTREAMS: usize = 64;

/// Requests at the upstreams at once: each holds a connection, of which one address gives fewer than this.
const MAX_IN_FLIGHT: u64 = 65_536;

/// How often a read is asked again. More turns an outage of the origin into a flood of it.
const MAX_RETRIES: u64 = 10;

/// Health checks in a row. More would take minutes to see anything.
const MAX_CHECKS: u64 = 100;

/// What is said of an upstream's URL that is none.
const NO_URL: &str = "is no upstream; write http://host:port or http://host:port/path, or https://…";

/// A host, and its port where it is written.
struct Authority {
    /// Without brackets.
    name: String,
    port: Option<u16>,
}

impl Checker<'_> {
    pub(super) fn upstreams(&mut self, file: &OriginFile) -> Upstreams {
        let host = file.host.as_deref().and_then(|host| self.host(host));
        let tls = file.tls.clone().unwrap_or_default();
        if let Some(name) = &tls.server_name {
            self.server_name("origin.tls.server_name", name);
        }
        // Whose name the certificates are for, where it is not each upstream's own.
        let server_name = tls.server_name.clone().or_else(|| host.map(|host| host.name));
        if let (Some(name), None) = (&server_name, &tls.server_name)
            && file.upstreams.iter().any(|url| url.starts_with("https://"))
        {
            self.server_name("origin.host", name);
        }
        if file.upstreams.len() > MAX_UPSTREAMS {
            let more = "name them as one: a name with several addresses is asked at each";
            self.fault("origin.upstreams", format!("must be at most {MAX_UPSTREAMS}; {more}"));
        }
        let mut list = Vec::new();
        for (i, url) in file.upstreams.iter().enumerate() {
            let path = format!("origin.upstreams[{i}]");
            let Some(upstream) = self.upstream(&path, url, file.host.as_deref(), server_name.as_deref()) else {
                continue;
            };
            if list.contains(&upstream) {
                self.fault(&path, "stands here twice");
            }
            list.push(upstream);
        }
        if file.tls.is_some() && !file.upstreams.is_empty() && list.iter().all(|u| u.server_name.is_none()) {
            self.notice("origin.tls", "has no effect without an https upstream");
        }
        let timeout = self.timeout("origin.timeout", file.timeout);
        let first = file.first_byte_timeout.map(|first| self.timeout("origin.first_byte_timeout", first));
        if first.is_some_and(|first| first >= timeout) {
            self.notice("origin.first_byte_timeout", "has no effect: `origin.timeout` is over before");
        }
        let retries = self.whole("origin.retries", file.retries, 0..=MAX_RETRIES);
        Upstreams {
            list,
            connect_timeout: self.timeout("origin.connect_timeout", file.connect_timeout),
            first_byte_timeout: first,
            timeout,
            max_in_flight: self.count("origin.max_in_flight", file.max_in_flight, 1..=MAX_IN_FLIGHT),
            queue_timeout: self.duration("origin.queue_timeout", file.queue_timeout),
            retries: u32::try_from(retries).unwrap_or(u32::MAX),
            health: file.health.as_ref().map(|health| self.upstream_health(health)),
            tls: self.upstream_tls(&tls),
        }
    }

    /// Takes `http[s]://host[:port][/path]` apart. The text is in no message: it may hold a password.
    fn upstream(&mut self, path: &str, text: &str, host: Option<&str>, server_name: Option<&str>) -> Option<Upstream> {
        let (rest, secure) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => {
                self.fault(path, NO_URL);
                return None;
            }
        };
        let (authority, below) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            self.fault(path, "must not hold a user or password: the caller's key is what is sent");
            return None;
        }
        if below.contains(['?', '#']) {
            self.fault(path, "must not hold a query or fragment: the operation's name is put behind its path");
            return None;
        }
        let Some(Authority { name, port }) = Authority::read(authority) else {
            self.fault(path, NO_URL);
            return None;
        };
        self.asked_path(path, below);
        if secure && server_name.is_none() {
            self.server_name(path, &name);
        }
        Some(Upstream {
            port: port.unwrap_or(if secure { 443 } else { 80 }),
            path: below.trim_end_matches('/').to_owned(),
            host: host.unwrap_or(authority).to_owned(),
            server_name: secure.then(|| server_name.unwrap_or(&name).to_owned()),
            name,
        })
    }

    /// A path that we can ask for.
    fn asked_path(&mut self, path: &str, text: &str) {
        let before = self.problems.len();
        self.url_path(path, text);
        if self.problems.len() == before && !text.is_empty() && PathAndQuery::try_from(text).is_err() {
            self.fault(path, "holds a character that no path can have; it has to be percent-encoded");
        }
    }

    fn host(&mut self, host: &str) -> Option<Authority> {
        let read = Authority::read(host);
        if read.is_none() {
            self.fault("origin.host", "must be a host's name or address, with or without a port");
        }
        read
    }

    /// A name or address that a certificate can be for.
    fn server_name(&mut self, path: &str, name: &str) {
        if ServerName::try_from(name).is_err() {
            self.fault(path, "is no name that a certificate can be for; name it in `origin.tls.server_name`");
        }
    }

    fn upstream_health(&mut self, file: &HealthFile) -> Health {
        if !file.path.starts_with('/') {
            let hint = did_you_mean(&format!("/{}", file.path));
            self.fault("origin.health.path", format!("must begin with `/`{hint}"));
        } else {
            self.asked_path("origin.health.path", &file.path);
        }
        let fall = self.whole("origin.health.fall", file.fall, 1..=MAX_CHECKS);
        let rise = self.whole("origin.health.rise", file.rise, 1..=MAX_CHECKS);
        Health {
            path: file.path.clone(),
            interval: self.timeout("origin.health.interval", file.interval),
            fall: u32::try_from(fall).unwrap_or(u32::MAX),
            rise: u32::try_from(rise).unwrap_or(u32::MAX),
        }
    }

    /// Which files; they are read where they are used.
    fn upstream_tls(&mut self, file: &UpstreamTlsFile) -> UpstreamTls {
        let identity = match (&file.certificate, &file.private_key) {
            (Some(certificate), Some(private_key)) => Some(Identity {
                certificate: self.file("origin.tls.certificate", certificate),
                private_key: self.file("origin.tls.private_key", private_key),
            }),
            (Some(_), None) => {
                self.fault(
                    "origin.tls.private_key",
                    "`certificate` needs it: the path of the certificate's private key",
                );
                None
            }
            (None, Some(_)) => {
                self.fault("origin.tls.certificate", "`private_key` needs it: the path of the key's certificate");
                None
            }
            (None, None) => None,
        };
        UpstreamTls { ca: file.ca.as_ref().map(|ca| self.file("origin.tls.ca", ca)), identity }
    }
}

impl Authority {
    /// `host[:port]`; `None` where it is no authority.
    fn read(text: &str) -> Option<Self> {
        let (host, port) = match text.rfind(':') {
            // A colon inside brackets is the address's own.
            Some(colon) if !text.ends_with(']') => (&text[..colon], Some(&text[colon + 1..])),
            _ => (text, None),
        };
        let named = !host.is_empty()
            && host.len() <= 253 // the longest name there can be
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let name = match bracketed {
            Some(inner) => inner.parse::<Ipv6Addr>().ok().map(|_| inner)?,
            None if named => host,
            None => return None,
        };
        let digits = |port: &&str| port.bytes().all(|b| b.is_ascii_digit());
        let port = match port {
            None => None,
            Some(port) => Some(Some(port).filter(digits)?.parse().ok().filter(|port| *port != 0)?),
        };
        Some(Authority { name: name.to_owned(), port })
    }
}
