//! `serve --demo`: changes the configuration into the demo's, fills its store, and explains how to try it. Whatever the
//! configuration says, the demo listens on TCP addresses of loopback only, without TLS, has a temporary store that is
//! removed at the end, and writes no record of decisions.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tempfile::TempDir;
use toml::Value;

use super::ProcessError;
use crate::clock::Clock;
use crate::config::{AdminListener, Config, Keys, Listen, Loaded, OriginKind, StoreAt, TokenSource};
use crate::keys::ApiKey;
use crate::model::{GuildId, MemberId, Note, REVIEW, Scope, WARN};
use crate::store::{KeyRecord, Store};

/// Where the demo listens if its address is in use.
pub(super) const ANY_PORT: Listen = Listen::Tcp(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0));

const GUILD: &str = "81384788765712384";
const ADA: u64 = 190_551_803_669_118_976;

/// The demo's store, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Demo {
    key: ApiKey,
    guild: GuildId,
    // Removes the folder when it is dropped.
    _folder: TempDir,
}

impl Demo {
    /// Changes the configuration into the demo's: built-in backend, temporary store, loopback only, no TLS.
    pub(super) fn prepare(loaded: &mut Loaded) -> Result<Self, ProcessError> {
        let config = &mut loaded.config;
        let folder = tempfile::Builder::new()
            .prefix("guildgate-demo-")
            .tempdir()
            .map_err(|e| ProcessError::Failed(format!("cannot make a folder for the demo's store: {e}")))?;
        config.origin.kind = OriginKind::Builtin;
        config.origin.store = StoreAt::Sqlite(folder.path().join("guildgate.db"));
        config.keys = Keys::Store;
        // They may belong to a running server.
        config.log.decisions = None;
        config.log.audit = None;
        config.log.otlp = None;
        config.server.handover = None; // it takes over from nobody, and nobody from it
        let token = folder.path().join("admin.token");
        if let Some(listener) = &mut config.admin.listener {
            let token = TokenSource::File(token.clone());
            let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.address.port());
            *listener =
                AdminListener { address, hosts: Vec::new(), token, read_token: None, bot_token: None, tls: None };
        }
        // The operator's certificate is for no loopback address.
        config.server.tls = None;
        for listen in &mut config.server.listen {
            if let Listen::Tcp(address) = listen
                && !address.ip().is_loopback()
            {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
        }
        show_changes(loaded, &token);
        let guild = GUILD.parse().map_err(|e| ProcessError::Failed(format!("{e}")))?;
        Ok(Demo { key: ApiKey::generate().map_err(ProcessError::Failed)?, guild, _folder: folder })
    }

    /// Puts one guild, its key, members, warns and reviews into the store.
    pub(super) async fn fill(&self, store: &Store) -> Result<(), ProcessError> {
        let (guild, now) = (&self.guild, Clock::system().unix());
        let day = 86_400;
        store.add_guild(guild, "Night Watch").await?;
        let key = KeyRecord {
            id: "k_demo".into(),
            name: "demo".into(),
            guild: guild.clone(),
            digest: self.key.digest(),
            tier: None,
            scope: Scope::Write,
            created: now,
            expires: None,
            last_used: None,
            previous: None,
        };
        store.create_key(key).await?;
        let member = |n: u64| {
            MemberId::new(ADA + n).ok_or_else(|| ProcessError::Failed("the demo's members are invalid".to_owned()))
        };
        for (n, name, points) in [(0, "Ada", 1250), (1, "Bo", 310), (2, "Cy", 40), (3, "Dee", 0)] {
            store.set_member(guild, member(n)?, Some(name), Some(points)).await?;
        }
        for (n, reason, days) in [(0, "spam in #general after two reminders", 30), (2, "advertising", 7)] {
            let (author, reason, expires) = ("Mod".to_owned(), reason.to_owned(), now + days * day);
            store.add_note(&WARN, guild, member(n)?, Note { id: 0, author, text: reason, number: expires }).await?;
        }
        for (author, rating, text) in
            [("Bo", 5, "Quick and kind, solved it in minutes"), ("Cy", 4, "Helpful, if a little late")]
        {
            let (author, text) = (author.to_owned(), text.to_owned());
            store.add_note(&REVIEW, guild, member(0)?, Note { id: 0, author, text, number: rating }).await?;
        }
        Ok(())
    }

    /// The key, and a curl command that uses it.
    pub(super) fn instructions(&self, urls: &[String], config: &Config) -> String {
        let key = self.key.reveal();
        let base = &config.server.base_path;
        let curl = match urls.iter().find(|url| url.starts_with("http")) {
            Some(url) => format!("curl -d memberID={ADA} -H 'Authorization: {key}' {url}{base}/getPoints"),
            None => {
                let socket = urls.first().map_or("", |url| url.trim_start_matches("unix:"));
                format!(
                    "curl --unix-socket {socket} -d memberID={ADA} -H 'Authorization: {key}' http://localhost{base}/getPoints"
                )
            }
        };
        format!(
            "This server has a temporary guild, which is removed when you press Ctrl-C. Its key:\n\n{key}\n\nRead a member's points:\n\n{curl}\n"
        )
    }
}

/// Shows admins the demo's own settings, and not those of the file.
fn show_changes(loaded: &mut Loaded, token: &Path) {
    let config = &loaded.config;
    let section = |values: &[(&str, String)]| {
        Some(Value::Table(values.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect()))
    };
    let listen = config.server.listen.iter().map(|listen| match listen {
        Listen::Tcp(address) => address.to_string().into(),
        Listen::Unix(path) => Value::from(format!("unix:{}", path.display())),
    });
    let origin = section(&[("kind", "builtin".to_owned()), ("store", config.origin.store.to_string())]);
    let admin = match &config.admin.listener {
        Some(listener) => {
            section(&[("listen", listener.address.to_string()), ("token", format!("file:{}", token.display()))])
        }
        None => section(&[("listen", String::new())]),
    };
    loaded.show([
        ("server.listen", Some(Value::Array(listen.collect()))),
        ("server.tls", None),
        ("server.handover", None),
        ("origin", origin),
        ("keys", section(&[("source", "store".to_owned())])),
        ("admin", admin),
        ("log.decisions", Some(String::new().into())),
        ("log.audit", Some(String::new().into())),
        ("log.otlp", Some(String::new().into())),
    ]);
}
