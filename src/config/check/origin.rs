//! `[origin]` and `[keys]`, judged.

use std::path::PathBuf;

use super::Checker;
use crate::config::file::{KeySource, KeysFile, OriginFile, OriginKindFile};
use crate::config::secret::{Secret, Source};
use crate::config::usable::{Keys, Origin, OriginKind, Upstream};

/// Requests at the upstream at once: each holds a connection, of which one address gives fewer than this.
const MAX_IN_FLIGHT: u64 = 65_536;

/// How often a read is asked again. More turns an outage of the origin into a flood of it.
const MAX_RETRIES: u64 = 10;

/// What is said of an upstream's URL that is none.
const NO_URL: &str = "is no upstream; write http://host:port or http://host:port/path";

/// An upstream's URL in its parts.
struct Url {
    /// As written, which is what the upstream is used to in `Host`.
    authority: String,
    /// With a port in any case.
    address: String,
    path: String,
}

impl Checker<'_> {
    pub(super) fn origin(&mut self, file: &OriginFile) -> Origin {
        let urls: Vec<Option<Url>> = (0..).zip(&file.upstreams).map(|(i, url)| self.upstream(i, url)).collect();
        let first = urls.into_iter().next().flatten();
        let connect_timeout = self.timeout("origin.connect_timeout", file.connect_timeout);
        let timeout = self.timeout("origin.timeout", file.timeout);
        let max_in_flight = self.count("origin.max_in_flight", file.max_in_flight, 1..=MAX_IN_FLIGHT);
        let retries = self.whole("origin.retries", file.retries, 0..=MAX_RETRIES);
        if let Some(host) = &file.host {
            self.host(host);
        }
        if file.health.is_some() {
            self.notice("origin.health", "not in force yet: health checks come with a later version");
        }
        if file.upstreams.len() > 1 {
            self.notice("origin.upstreams", "not in force yet beyond the first: only that one is asked");
        }
        let kind = match (file.kind, first) {
            (OriginKindFile::Builtin, _) => {
                self.unused_upstream_settings();
                OriginKind::Builtin
            }
            (OriginKindFile::Http, Some(url)) => OriginKind::Http(Upstream {
                host: file.host.clone().unwrap_or(url.authority),
                authority: url.address,
                path: url.path,
                connect_timeout,
                timeout,
                max_in_flight,
                retries: u32::try_from(retries).unwrap_or(u32::MAX),
            }),
            (OriginKindFile::Http, None) => {
                if file.upstreams.is_empty() {
                    self.fault("origin.upstreams", "kind \"http\" needs one, such as [\"http://10.0.0.7:3000\"]");
                }
                OriginKind::Builtin // never seen: there is a fault
            }
        };
        Origin { kind, store: self.store(&file.store) }
    }

    fn unused_upstream_settings(&mut self) {
        for name in ["upstreams", "host", "connect_timeout", "timeout", "max_in_flight", "retries"] {
            let path = format!("origin.{name}");
            if self.places.given(&path) {
                self.notice(&path, "has no effect with `origin.kind` \"builtin\"");
            }
        }
    }

    /// Takes `http://host[:port][/path]` apart. The text is in no message: it may hold a password.
    fn upstream(&mut self, i: usize, text: &str) -> Option<Url> {
        let path = format!("origin.upstreams[{i}]");
        if text.starts_with("https://") {
            let why = "TLS to an upstream comes with a later version; use http:// or a proxy";
            self.fault(&path, format!("an https upstream is not in force yet: {why}"));
            return None;
        }
        let Some(rest) = text.strip_prefix("http://") else {
            self.fault(&path, NO_URL);
            return None;
        };
        let (authority, below) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            self.fault(&path, "must not hold a user or password: the caller's key is what is sent");
            return None;
        }
        if below.contains(['?', '#']) {
            self.fault(&path, "must not hold a query or fragment: the operation's name is put behind its path");
            return None;
        }
        let Some(address) = with_port(authority) else {
            self.fault(&path, NO_URL);
            return None;
        };
        self.url_path(&path, below);
        let below = below.trim_end_matches('/').to_owned();
        Some(Url { authority: authority.to_owned(), address, path: below })
    }

    fn host(&mut self, host: &str) {
        if with_port(host).is_none() {
            self.fault("origin.host", "must be a host's name or address, with or without a port");
        }
    }

    /// Where the store is. A store's URL is in no message: it may hold a password.
    fn store(&mut self, secret: &Secret) -> PathBuf {
        let path = "origin.store";
        let found = match secret.source() {
            Source::Written(text) => text.to_owned(),
            Source::File(_) => {
                self.fault(path, "must be a path without `file:`, or \"env:NAME\"");
                return PathBuf::new();
            }
            Source::Env(name) => {
                self.env_name(path, name);
                match (self.env)(name) {
                    Some(text) => text,
                    None => {
                        let name = name.escape_debug();
                        self.fault(path, format!("the environment variable `{name}` is not set, or is no text"));
                        return PathBuf::new();
                    }
                }
            }
        };
        if found.starts_with("postgres://") || found.starts_with("postgresql://") {
            let why = "a PostgreSQL store comes with a later version; name an SQLite file";
            self.fault(path, format!("a postgres:// store is not in force yet: {why}"));
        } else if found.contains("://") {
            self.fault(path, "must be a path of an SQLite file");
        } else if found == ":memory:" {
            // SQLite would take it and lose every setPoints that was answered with success.
            self.fault(path, "must be a file: what is in memory is lost at the end");
        }
        self.file(path, &found)
    }

    pub(super) fn keys(&mut self, file: &KeysFile, origin: &OriginFile) -> Keys {
        let accepted_for = self.timeout("keys.accepted_for", file.accepted_for);
        let refused_for = self.duration("keys.refused_for", file.refused_for);
        for path in ["keys.accepted_for", "keys.refused_for"] {
            if file.source != KeySource::Origin && self.places.given(path) {
                self.notice(path, "has no effect unless `keys.source` is \"origin\"");
            }
        }
        if file.file.is_some() && file.source != KeySource::File {
            self.notice("keys.file", "has no effect unless `keys.source` is \"file\"");
        }
        match (file.source, &file.file) {
            (KeySource::Store, _) => Keys::Store,
            (KeySource::File, Some(keys)) => Keys::File(self.file("keys.file", keys)),
            (KeySource::File, None) => {
                self.fault("keys.file", "`keys.source` \"file\" needs it: the path of the key file");
                Keys::Store // never seen: there is a fault
            }
            (KeySource::Origin, _) => {
                if origin.kind == OriginKindFile::Builtin {
                    let why = "the built-in backend learns its keys from the store; use \"store\" or \"file\"";
                    self.fault("keys.source", format!("\"origin\" needs `origin.kind` \"http\": {why}"));
                }
                Keys::Origin { accepted_for, refused_for }
            }
        }
    }
}

/// An authority with port 80 where it has none; `None` where it is no authority.
fn with_port(authority: &str) -> Option<String> {
    let (host, port) = match authority.rfind(':') {
        // A colon inside brackets is the address's own.
        Some(colon) if !authority.ends_with(']') => (&authority[..colon], Some(&authority[colon + 1..])),
        _ => (authority, None),
    };
    let named = !host.is_empty()
        && host.len() <= 253 // the longest name there can be
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    if !named && bracketed.and_then(|h| h.parse::<std::net::Ipv6Addr>().ok()).is_none() {
        return None;
    }
    match port {
        None => Some(format!("{host}:80")),
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse::<u16>().ok().filter(|port| *port != 0).map(|port| format!("{host}:{port}"))
        }
        Some(_) => None,
    }
}
