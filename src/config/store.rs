//! Where the store is (contract section 3, `[origin] store`).

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// What a `postgres://` URL may say, for the message about one that says something else.
const PARAMETERS: &str = "sslmode, sslrootcert, connect_timeout, application_name, options, keepalives, \
    keepalives_idle, tcp_user_timeout, channel_binding, load_balance_hosts, hostaddr";

/// Every parameter that its reader knows besides `sslmode` and `sslrootcert`.
const KNOWN: &str = "application_name channel_binding connect_timeout dbname host hostaddr keepalives keepalives_idle \
    keepalives_interval keepalives_retries load_balance_hosts options password port replication ssl_negotiation \
    sslnegotiation sslcert target_session_attrs tcp_user_timeout user";

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// How the words of libpq's other form of a connection string begin, by which it is recognised.
const CONNECTION_STRING: [&str; 6] = ["host=", "hostaddr=", "user=", "password=", "dbname=", "service="];

/// The store's location, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreAt {
    /// An SQLite file.
    Sqlite(PathBuf),
    Postgres(Box<PostgresAt>),
}

/// A database of a PostgreSQL server. Neither `Debug` nor `Display` shows its password.
#[derive(Clone, PartialEq)]
pub struct PostgresAt {
    /// Whom to connect to, and as whom.
    pub server: tokio_postgres::Config,
    pub tls: PostgresTls,
}

/// What `sslmode` asks for. The names and their meaning are libpq's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostgresTls {
    /// `disable`: none.
    Off,
    /// `prefer` (the default; where the server has it) and `require`: encrypted, to whoever answers.
    Unverified,
    /// `verify-ca` and `verify-full`: to a server whose certificate one of these has signed.
    Verified {
        /// `sslrootcert`; `None`: whom the system trusts.
        roots: Option<PathBuf>,
        /// `verify-full`: the certificate must be for the host in the URL as well.
        name: bool,
    },
}

impl PostgresTls {
    /// What these values of `sslmode` and `sslrootcert` mean. The first is for the client, which knows no certificates.
    fn of(mode: &str, roots: Option<PathBuf>) -> Result<(SslMode, Self), String> {
        let has_roots = roots.is_some();
        let verified = |name| PostgresTls::Verified { roots, name };
        let (mode, tls) = match mode {
            "disable" => (SslMode::Disable, PostgresTls::Off),
            "prefer" => (SslMode::Prefer, PostgresTls::Unverified),
            "require" => (SslMode::Require, PostgresTls::Unverified),
            "verify-ca" => (SslMode::Require, verified(false)),
            "verify-full" => (SslMode::Require, verified(true)),
            _ => return Err("sslmode is disable, prefer, require, verify-ca or verify-full".into()),
        };
        if has_roots && !matches!(tls, PostgresTls::Verified { .. }) {
            return Err("sslrootcert has an effect with sslmode=verify-ca or verify-full only; add one".into());
        }
        Ok((mode, tls))
    }
}

impl fmt::Display for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAt::Sqlite(path) => path.display().fmt(f),
            StoreAt::Postgres(at) => at.fmt(f),
        }
    }
}

impl PostgresAt {
    /// Whether a text is a `postgres://` URL, usable or not, or a connection string of another form (`host=… password=…`). It
    /// may hold a password, so it is never shown as a path.
    pub fn is_meant(text: &str) -> bool {
        let begins = |begin: &str| text.starts_with(begin);
        let is_setting = |word: &str| CONNECTION_STRING.iter().any(|name| word.starts_with(name));
        ["postgres:", "postgresql:", "postgres//", "postgresql//"].into_iter().any(begins)
            || text.split_whitespace().any(is_setting)
    }

    /// Reads a URL; relative paths in it start at `folder`. The message of a URL that cannot be used
    /// repeats nothing of it: any part may be a piece of a password that was not escaped.
    pub fn parse(url: &str, folder: &Path) -> Result<Self, String> {
        // As its reader does: the user and the password end at the first @, whatever is in them.
        let (user, rest) = url.split_at(url.find('@').map_or(0, |at| at + 1));
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut mode, mut roots, mut others) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => roots = Some(unescaped(value)?),
                _ => others.push(pair),
            }
        }
        let unusable = || {
            format!(
                "is no usable postgres:// URL. It is postgres://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE; in a \
                 password, a character such as @ : / ? # % is written %40 and so on; names are {PARAMETERS}"
            )
        };
        if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            let missing_colon = ["postgres//", "postgresql//"].into_iter().find(|begin| url.starts_with(begin));
            return Err(missing_colon.map_or_else(unusable, |begin| {
                format!("begins with {begin} and not with {}; put the colon in", begin.replace("//", "://"))
            }));
        }
        // Behind a second @ may be a piece of a password.
        let names =
            others.iter().map(|pair| pair.split('=').next().unwrap_or_default()).filter(|_| !rest.contains('@'));
        if let Some(unknown) = names.into_iter().find(|name| KNOWN.split(' ').all(|known| known != *name)) {
            return Err(format!("has the parameter `{unknown}`, which there is not; names are {PARAMETERS}"));
        }
        let url = format!("{user}{place}?{}", others.join("&"));
        let mut server: tokio_postgres::Config = url.parse().map_err(|_| unusable())?;
        // The rest of a password with an @ in it.
        if server.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            return Err(unusable());
        }
        if server.get_hosts().is_empty() && server.get_hostaddrs().is_empty() {
            return Err("names no host; for a Unix socket write postgres://USER@%2Frun%2Fpostgresql/DATABASE".into());
        }
        let (hosts, addresses, ports) =
            (server.get_hosts().len(), server.get_hostaddrs().len(), server.get_ports().len());
        if (hosts > 0 && addresses > 0 && hosts != addresses) || (ports > 1 && ports != hosts.max(addresses)) {
            return Err("names several hosts, and not as many addresses (hostaddr) or ports".into());
        }
        let roots = roots.filter(|path| path != "system").map(|path| folder.join(path));
        let (mode, tls) = PostgresTls::of(mode.unwrap_or("prefer"), roots)?;
        server.ssl_mode(mode);
        // A standby shows commits late, and takes no writes.
        server.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(PostgresAt { server, tls })
    }

    /// Whether the server is on another machine and its certificate is not verified.
    pub fn is_unverified_remote(&self) -> bool {
        let is_remote = |host: &Host| match host {
            Host::Tcp(name) => name != "localhost" && !name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
            Host::Unix(_) => false,
        };
        !matches!(self.tls, PostgresTls::Verified { name: true, .. }) && self.server.get_hosts().iter().any(is_remote)
    }
}

/// A value of the query with its `%XX` read.
fn unescaped(value: &str) -> Result<String, String> {
    let read = form_urlencoded::parse(value.replace('+', "%2B").as_bytes()).next().map(|(text, _)| text.into_owned());
    read.filter(|path| !path.is_empty()).ok_or_else(|| "sslrootcert is the path of a PEM file, or system".to_owned())
}

impl fmt::Display for PostgresAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = self.server.get_user() {
            write!(f, "{user}@")?;
        }
        let ports = self.server.get_ports();
        for (i, host) in self.server.get_hosts().iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match host {
                Host::Tcp(name) if name.contains(':') => write!(f, "{comma}[{name}]")?,
                Host::Tcp(name) => write!(f, "{comma}{name}")?,
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
            if let Some(port) = ports.get(i).or(ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", self.server.get_dbname().or(self.server.get_user()).unwrap_or_default())
    }
}

impl fmt::Debug for PostgresAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresAt({self}, {:?})", self.tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<PostgresAt, String> {
        PostgresAt::parse(url, Path::new("/etc/gg"))
    }

    #[test]
    fn a_password_is_shown_nowhere() {
        let at = parsed("postgres://me:hunter2@db.example.org:5433/guilds?sslmode=require").unwrap();
        assert_eq!(at.to_string(), "postgres://me@db.example.org:5433/guilds");
        assert!(!format!("{at:?}").contains("hunter2"));
        assert_eq!(at.server.get_password(), Some(&b"hunter2"[..]));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_repeating_it() {
        for url in [
            "postgres://me:x@hunter2@host/db",
            "postgres://me:hunter2@host:port/db",
            "postgres://me@host/db?sslmode=hunter2",
            "postgres://me@host/db?sslrootcert=hunter2.pem",
            "postgres://me@host/db?sslmode=verify-full&sslrootcert=",
            "postgres:///db?user=hunter2",
            "postgres://me:hunter2@a,b,c/db?hostaddr=127.0.0.1,127.0.0.2",
        ] {
            let why = parsed(url).unwrap_err();
            assert!(!why.contains("hunter2"), "{url}: {why}");
        }
    }

    #[test]
    fn a_parameter_that_there_is_not_is_named_unless_it_may_be_of_a_password() {
        assert!(parsed("postgres://me:hunter2@host/db?foo=1").unwrap_err().contains("has the parameter `foo`"));
        assert!(!parsed("postgres://me:x@host/db?hunter2=1@host").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn sslmode_means_what_it_means_to_libpq() {
        let tls = |query: &str| parsed(&format!("postgres://me@host/db?{query}")).unwrap();
        assert_eq!((tls("").tls, tls("").server.get_ssl_mode()), (PostgresTls::Unverified, SslMode::Prefer));
        assert_eq!(tls("sslmode=disable").server.get_ssl_mode(), SslMode::Disable);
        assert_eq!(tls("sslmode=require").server.get_ssl_mode(), SslMode::Require);
        let full = tls("sslmode=verify-full&sslrootcert=ca%20one.pem&connect_timeout=3");
        let roots = Some("/etc/gg/ca one.pem".into());
        assert_eq!(
            (full.tls, full.server.get_ssl_mode()),
            (PostgresTls::Verified { roots, name: true }, SslMode::Require)
        );
        assert_eq!(tls("sslmode=verify-ca&sslrootcert=system").tls, PostgresTls::Verified { roots: None, name: false });
    }

    #[test]
    fn a_remote_server_needs_a_verified_certificate() {
        for (url, unverified) in [
            ("postgres://me@db.example.org/db", true),
            ("postgres://me@10.0.0.7/db?sslmode=require", true),
            ("postgres://me@10.0.0.7/db?sslmode=verify-full", false),
            ("postgres://me@localhost/db", false),
            ("postgres://me@127.0.0.1/db", false),
            ("postgres://me@%2Frun%2Fpostgresql/db", false),
        ] {
            assert_eq!(parsed(url).unwrap().is_unverified_remote(), unverified, "{url}");
        }
    }
}
