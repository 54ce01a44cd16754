//! `[admin]`: the address and the form of the tokens. Tokens in files are read where they are used.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::file::section;
use super::problem::Faults;
use super::secret::{Secret, Source};
use super::server::{CertificateFiles, Listen, Server, tcp_address};

section! {
    /// `[admin]`
    pub struct AdminFile {
        /// A TCP address as "IP:PORT"; "" turns it off.
        pub listen: String = "127.0.0.1:9180".to_owned(),
        /// Names by which browsers may reach the dashboard, besides `localhost` and the address of `listen`.
        pub hosts: Vec<String> = Vec::new(),
        /// The bearer token, "env:NAME" or "file:PATH"; the file is made at first start if it is missing.
        pub token: Secret = Secret::new("file:admin.token"),
        /// A token that sees everything and changes nothing: "env:NAME" or "file:PATH".
        pub read_token: Option<Secret> = None,
        /// A token that writes members, warns and reviews, and does nothing else: "env:NAME" or "file:PATH".
        pub bot_token: Option<Secret> = None,
        /// TLS; wanted beyond loopback.
        pub tls: Option<CertificateFiles> = None,
        /// Listens beyond loopback without TLS.
        pub plaintext: bool = false,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// `None`: off.
    pub listener: Option<AdminListener>,
}

/// The listener for operators and admins.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminListener {
    pub address: SocketAddr,
    /// Names by which browsers may reach the dashboard.
    pub hosts: Vec<String>,
    /// Its file is made at the first start.
    pub token: TokenSource,
    /// Of a token that changes nothing.
    pub read_token: Option<TokenSource>,
    /// Of a token that writes members, warns and reviews only.
    pub bot_token: Option<TokenSource>,
    /// `None`: plain HTTP.
    pub tls: Option<CertificateFiles>,
}

/// Where a token of the admin listener is.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Value(String),
    /// It is read at the start.
    File(PathBuf),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::Value(_) => f.write_str("Value(…)"),
            TokenSource::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl AdminFile {
    pub(super) fn check(&self, faults: &mut Faults<'_>, server: &Server) -> Admin {
        let paths = faults.elements("admin.hosts", self.hosts.len());
        for (host, path) in self.hosts.iter().zip(&paths) {
            let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
            if host.is_empty() || !host.bytes().all(is_name) {
                faults.add(path, "is not a host name; write it without scheme and port");
            }
        }
        if self.listen.is_empty() {
            return Admin { listener: None };
        }
        let mut token = |name, secret: &Secret| match secret.source() {
            Source::File(path) => TokenSource::File(path.into()),
            Source::Written(_) | Source::Env(_) => TokenSource::Value(faults.secret(secret).unwrap_or_else(|why| {
                faults.add(name, why);
                String::new() // never used: there is a fault
            })),
        };
        let read_token = self.read_token.as_ref().map(|secret| token("admin.read_token", secret));
        let bot_token = self.bot_token.as_ref().map(|secret| token("admin.bot_token", secret));
        let token = token("admin.token", &self.token);
        let address = match tcp_address(&self.listen) {
            Ok(address) => address,
            Err(why) => {
                faults.add("admin.listen", why);
                return Admin { listener: None };
            }
        };
        if !address.ip().is_loopback() && self.tls.is_none() && !self.plaintext && !faults.has("admin.tls") {
            let why = "listens beyond loopback, where others could read the token on its way";
            faults.add("admin.listen", format!("{why}; set `admin.tls`, or `admin.plaintext = true` to accept that"));
        }
        if address.port() != 0 && server.listen.contains(&Listen::Tcp(address)) {
            faults.add("admin.listen", "is an address of `server.listen`; name another port");
        }
        let (hosts, tls) = (self.hosts.clone(), self.tls.clone());
        Admin { listener: Some(AdminListener { address, hosts, token, read_token, bot_token, tls }) }
    }
}
