//! Checks the upstreams of `[origin]`: their URLs, health checks and TLS. No message shows a URL, which may hold a
//! password.

use std::net::Ipv6Addr;
use std::num::NonZeroU16;

use http::uri::PathAndQuery;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Checker;
use crate::config::file::{HealthFile, OriginFile, UpstreamTlsFile};
use crate::config::usable::{CertificateFiles, Health, Upstream, UpstreamTls, Upstreams};

/// The most upstreams of one service. For more, one name with many addresses is simpler.
const MAX_UPSTREAMS: usize = 64;

/// The longest host name that DNS can hold.
const MAX_HOST_NAME: usize = 253;

/// The fault of an upstream that is not a URL.
const NO_URL: &str = "is not an upstream's URL; write http://host:port or http://host:port/path, or https://…";

/// A host, and its port where it is written.
struct Authority {
    /// Without brackets.
    name: String,
    port: Option<u16>,
}

impl Checker<'_> {
    pub(super) fn upstreams(&mut self, file: &OriginFile) -> Upstreams {
        let host = file.host.as_deref().and_then(Authority::parse);
        if file.host.is_some() && host.is_none() {
            self.fault("origin.host", "must be a host's name or address, with or without a port");
        }
        let tls = file.tls.clone().unwrap_or_default();
        if let Some(name) = &tls.server_name {
            self.server_name("origin.tls.server_name", name);
        }
        // The name that all certificates must be for, where it is not each upstream's own.
        let server_name = tls.server_name.clone().or_else(|| host.map(|host| host.name));
        if let (Some(name), None) = (&server_name, &tls.server_name)
            && file.upstreams.iter().any(|url| url.starts_with("https://"))
        {
            self.server_name("origin.host", name);
        }
        if file.upstreams.len() > MAX_UPSTREAMS {
            let more = "use one name with several addresses, each of which gets requests";
            self.fault("origin.upstreams", format!("must be at most {MAX_UPSTREAMS}; {more}"));
        }
        let mut list = Vec::new();
        for (i, url) in file.upstreams.iter().enumerate() {
            let path = format!("origin.upstreams[{i}]");
            match self.upstream(&path, url, file.host.as_deref(), server_name.as_deref()) {
                Ok(upstream) if list.contains(&upstream) => self.fault(&path, "is listed twice"),
                Ok(upstream) => list.push(upstream),
                Err(why) => self.fault(&path, why),
            }
        }
        if file.tls.is_some() && !file.upstreams.is_empty() && list.iter().all(|u| u.server_name.is_none()) {
            self.warning("origin.tls", "has no effect without an https upstream");
        }
        let timeout = self.timeout("origin.timeout", file.timeout);
        let first = file.first_byte_timeout.map(|first| self.timeout("origin.first_byte_timeout", first));
        if first.is_some_and(|first| first >= timeout) {
            self.warning("origin.first_byte_timeout", "has no effect, since `origin.timeout` is shorter");
        }
        Upstreams {
            list,
            connect_timeout: self.timeout("origin.connect_timeout", file.connect_timeout),
            first_byte_timeout: first,
            timeout,
            max_in_flight: file.max_in_flight,
            queue_timeout: file.queue_timeout.0,
            retries: file.retries,
            health: file.health.as_ref().map(|health| self.upstream_health(health)),
            tls: self.upstream_tls(&tls),
        }
    }

    /// Parses `http[s]://host[:port][/path]`.
    fn upstream(
        &mut self,
        path: &str,
        text: &str,
        host: Option<&str>,
        server_name: Option<&str>,
    ) -> Result<Upstream, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or(NO_URL)?;
        let is_https = scheme == "https";
        let (authority, below) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("must not have a user or password; the caller's key is sent instead");
        }
        if below.contains(['?', '#']) {
            return Err("must not have a query or fragment; the operation's name is appended to the path");
        }
        let Authority { name, port } =
            Authority::parse(authority).filter(|_| is_https || scheme == "http").ok_or(NO_URL)?;
        self.asked_path(path, below);
        if is_https && server_name.is_none() {
            self.server_name(path, &name);
        }
        Ok(Upstream {
            port: port.unwrap_or(if is_https { 443 } else { 80 }),
            path: below.trim_end_matches('/').to_owned(),
            host: host.unwrap_or(authority).to_owned(),
            server_name: is_https.then(|| server_name.unwrap_or(&name).to_owned()),
            name,
        })
    }

    /// A path that can be sent to an upstream.
    fn asked_path(&mut self, path: &str, text: &str) {
        self.url_path(path, text);
        if !text.is_empty() && PathAndQuery::try_from(text).is_err() {
            self.fault(path, "contains a character that a path cannot have; write it percent-encoded");
        }
    }

    /// A name or address that a certificate can be for.
    fn server_name(&mut self, path: &str, name: &str) {
        if ServerName::try_from(name).is_err() {
            self.fault(path, "is not a name that a certificate can be for; set `origin.tls.server_name`");
        }
    }

    fn upstream_health(&mut self, file: &HealthFile) -> Health {
        if !file.path.starts_with('/') {
            self.fault("origin.health.path", "must begin with `/`");
        }
        self.asked_path("origin.health.path", &file.path);
        Health {
            path: file.path.clone(),
            interval: self.timeout("origin.health.interval", file.interval),
            fall: file.fall,
            rise: file.rise,
        }
    }

    /// The files of TLS; they are read where they are used.
    fn upstream_tls(&mut self, file: &UpstreamTlsFile) -> UpstreamTls {
        let identity = match (&file.certificate, &file.private_key) {
            (Some(certificate), Some(private_key)) => Some(CertificateFiles {
                certificate: self.file("origin.tls.certificate", certificate),
                private_key: self.file("origin.tls.private_key", private_key),
            }),
            (None, None) => None,
            _ => {
                self.fault("origin.tls", "needs both `certificate` and `private_key`, or neither");
                None
            }
        };
        UpstreamTls { ca: file.ca.as_ref().map(|ca| self.file("origin.tls.ca", ca)), identity }
    }
}

impl Authority {
    /// Reads `host[:port]`; `None` where it is not that.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon inside brackets is the address's own.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let is_name = |host: &str| {
            (1..=MAX_HOST_NAME).contains(&host.len())
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        let name = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => Some(address).filter(|address| address.parse::<Ipv6Addr>().is_ok())?,
            None => Some(host).filter(|host| is_name(host))?,
        };
        let number = |port: &str| Some(port).filter(|port| !port.starts_with('+'))?.parse().ok().map(NonZeroU16::get);
        let port = port.map(|port| number(port).ok_or(())).transpose().ok()?;
        Some(Authority { name: name.to_owned(), port })
    }
}
