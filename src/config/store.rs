//! Where the store is (contract section 3, `[origin] store`).

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// What a `postgres://` URL may say, for the message about one that says something else.
const PARAMETERS: &str = "sslmode, sslrootcert, connect_timeout, application_name, options, keepalives, \
    keepalives_idle, tcp_user_timeout, channel_binding, load_balance_hosts, hostaddr";

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
    /// Its URL without the password and the parameters.
    shown: String,
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
        let is_setting = |word: &str| CONNECTION_STRING.iter().any(|name| word.starts_with(name));
        let begins = ["postgres:", "postgresql:", "postgres//", "postgresql//"];
        begins.iter().any(|begin| text.starts_with(begin)) || text.split_whitespace().any(is_setting)
    }

    /// Reads a URL; relative paths in it start at `folder`. The message of a URL that cannot be used
    /// repeats nothing of it: any part may be a piece of a password that was not escaped.
    pub fn parse(url: &str, folder: &Path) -> Result<Self, String> {
        // As its reader does: the user and the password end at the first @, whatever is in them.
        let (user, rest) = url.split_at(url.find('@').map_or(0, |at| at + 1));
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut mode, mut roots, mut others) = ("prefer", None, Vec::new());
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = value,
                Some(("sslrootcert", value)) => roots = Some(unescaped(value)?),
                _ => others.push(pair),
            }
        }
        let name = user.split_once("://").map(|(_, login)| login.split([':', '@']).next().unwrap_or_default());
        let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
        // Behind a second @, and in a name that goes on into the query, may be a piece of a password.
        let is_shown = !place.contains('@') && !name.is_some_and(|name| name.contains(['/', '?']));
        let server = format!("{user}{place}?{}", others.join("&")).parse::<tokio_postgres::Config>().ok();
        let has_host =
            |server: &tokio_postgres::Config| !server.get_hosts().is_empty() || !server.get_hostaddrs().is_empty();
        let mut server = server.filter(|server| is_url && is_shown && has_host(server)).ok_or_else(|| {
            format!(
                "is no usable postgres:// URL. It is postgres://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE; in a \
                 password, a character such as @ : / ? # % is written %40 and so on, and so is the folder of a Unix \
                 socket as HOST; names are {PARAMETERS}"
            )
        })?;
        if roots.is_some() && !mode.starts_with("verify-") {
            return Err("sslrootcert has an effect with sslmode=verify-ca or verify-full only; add one".to_owned());
        }
        let roots = roots.filter(|path| path != "system").map(|path| folder.join(path));
        // The client knows no certificates.
        let (client_mode, tls) = match mode {
            "disable" => (SslMode::Disable, PostgresTls::Off),
            "prefer" => (SslMode::Prefer, PostgresTls::Unverified),
            "require" => (SslMode::Require, PostgresTls::Unverified),
            "verify-ca" => (SslMode::Require, PostgresTls::Verified { roots, name: false }),
            "verify-full" => (SslMode::Require, PostgresTls::Verified { roots, name: true }),
            _ => return Err("sslmode is disable, prefer, require, verify-ca or verify-full".to_owned()),
        };
        server.ssl_mode(client_mode);
        // A standby shows commits late, and takes no writes.
        server.target_session_attrs(TargetSessionAttrs::ReadWrite);
        let shown = name.map_or_else(|| place.to_owned(), |name| format!("postgres://{name}@{place}"));
        Ok(PostgresAt { server, tls, shown })
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
        f.write_str(&self.shown)
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
            "postgres://host/db?user=me&password=hunter2@x",
            "postgres://me@host/db?sslmode=hunter2",
            "postgres://me@host/db?sslrootcert=hunter2.pem",
            "postgres://me@host/db?sslmode=verify-full&sslrootcert=",
            "postgres:///db?user=hunter2",
            "postgres://me:hunter2@host/db?hunter2=1",
        ] {
            let why = parsed(url).unwrap_err();
            assert!(!why.contains("hunter2"), "{url}: {why}");
        }
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
