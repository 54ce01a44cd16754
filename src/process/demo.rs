//! `serve --demo`: a gateway with settings of its own, whatever the configuration says: on loopback, with a temporary
//! store that is filled here and removed at the end. Explains how to try it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::ProcessError;
use crate::clock::Clock;
use crate::config::{self, Loaded};
use crate::keys::random_token;
use crate::model::{GuildId, Scope};
use crate::records::{Records, key};
use crate::store::{IfMissing, Mode, Store};

/// What is in its store, as `guildgate import` reads it.
const RECORDS: &str = r#"
{"guild":"81384788765712384","name":"Night Watch"}
{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}
{"guild":"81384788765712384","member":"190551803669118977","name":"Bo","points":310}
{"guild":"81384788765712384","member":"190551803669118978","name":"Cy","points":40}
{"guild":"81384788765712384","member":"190551803669118979","name":"Dee","points":0}
{"guild":"81384788765712384","member":"190551803669118980","name":"Eve","points":95}
{"guild":"81384788765712384","member":"190551803669118981","name":"Fay","points":7}
{"guild":"81384788765712384","member":"190551803669118976","warn":"1","author":"Mod","reason":"spam in #general after two reminders","expires":4102444800}
{"guild":"81384788765712384","member":"190551803669118978","warn":"2","author":"Mod","reason":"advertising","expires":4102444800}
{"guild":"81384788765712384","member":"190551803669118976","review":"1","author":"Bo","rating":5,"text":"Quick and kind, solved it in minutes"}
{"guild":"81384788765712384","member":"190551803669118976","review":"2","author":"Cy","rating":4,"text":"Helpful, if a little late"}
"#;

const GUILD: &str = "81384788765712384";
const ADA: u64 = 190_551_803_669_118_976;

/// The settings beyond the addresses: a tier that one of the callers of the demo exceeds, and a record for the page Tuning.
const SETTINGS: &str = r#"
origin.kind = "builtin"
log = { access = "", decisions = "decisions.log" }
limits.tiers.standard = {}
limits.tiers.free = { rate = "2/s", burst = 5, daily = 100000 }
"#;

/// The keys of the demo: the first is printed, and the others send requests of their own.
const KEYS: [(&str, &str); 4] = [
    ("demo", "standard"),
    ("moderation bot", "standard"),
    ("website", "standard"),
    ("leaderboard, over its limit", "free"),
];

/// What the demo's own callers ask, four times a second: the number of the key, how often (1: each time), the path and the
/// body. Some of it is refused. They ask about Eve and Fay alone, so that whoever tries the others finds them as they left
/// them.
const TRAFFIC: [(usize, u64, &str, &str); 6] = [
    (1, 1, "getPoints", "memberID=190551803669118980"),
    (1, 5, "setPoints", "memberID=190551803669118981&amount=7"),
    (2, 2, "getReviews", "memberID=190551803669118980"),
    (2, 9, "getWarns", "memberID=190551803669118981"),
    (2, 40, "getPoints", "member=1"),
    (3, 1, "getPoints", "memberID=190551803669118981"),
];

/// The demo's folder, which is removed when this is dropped, its keys, and the secret of its link to log in with.
#[derive(Debug)]
pub(super) struct Demo {
    keys: Vec<String>,
    pub(super) link: String,
    _folder: TempDir,
}

impl Demo {
    /// Makes both, with a store of one guild, its key, members, warns and reviews, and a gateway.toml. Relative paths, the
    /// defaults of `origin.store` and `admin.token` among them, are in the folder.
    pub(super) async fn prepare() -> Result<(Loaded, Self), ProcessError> {
        let failed = |why: String| ProcessError::Failed(format!("the demo cannot start: {why}"));
        let folder = tempfile::Builder::new().prefix("guildgate-demo-").tempdir().map_err(|e| failed(e.to_string()))?;
        // It starts on any free port rather than not at all.
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let [callers, admins] = [8080, 9180].map(|port| Some(port).filter(is_free).unwrap_or_default());
        let text =
            format!("server.listen = [\"127.0.0.1:{callers}\"]\nadmin.listen = \"127.0.0.1:{admins}\"\n{SETTINGS}");
        let loaded =
            config::load_str(&text, folder.path(), "the demo's settings").map_err(|e| failed(e.to_string()))?;
        let store = Store::open(&loaded.config.origin.store, IfMissing::Make).await?;
        let imported = store.import(|| Ok(RECORDS.trim_start().as_bytes()), Mode::AllOrNothing, drop).await;
        imported.map_err(|e| failed(e.to_string()))?.commit().await?;
        let guild: GuildId = GUILD.parse().map_err(|e: &str| failed(e.to_owned()))?;
        let records = Records { store, config: Arc::new(loaded.config.clone()), clock: Clock::system() };
        let (mut keys, scope, expires) = (Vec::new(), Scope::Write, None);
        for (name, tier) in KEYS {
            let (guild, name, tier) = (guild.clone(), name.to_owned(), Some(tier.to_owned()));
            keys.push(key::create(&records, key::KeyInput { guild, name, tier, scope, expires }).await?.key);
        }
        let link = random_token().map_err(failed)?;
        Ok((loaded, Demo { keys, link, _folder: folder }))
    }

    /// Sends requests of its own to `url`, so that the pages of the dashboard show something, until the process ends.
    pub(super) fn start_traffic(&self, url: &str) {
        let (keys, address) = (self.keys.clone(), url.trim_start_matches("http://").to_owned());
        tokio::spawn(async move {
            for turn in 0.. {
                for (key, _, path, body) in TRAFFIC.iter().filter(|(_, every, ..)| turn % every == 0) {
                    // Errors are those of a gateway that is about to end.
                    let _ = ask(&address, &keys[*key], path, body).await;
                }
                sleep(Duration::from_millis(250)).await;
            }
        });
    }

    /// The key, a curl command that uses it, and the dashboard.
    pub(super) fn instructions(&self, url: &str, admin_url: &str) -> String {
        let (key, link) = (&self.keys[0], &self.link);
        format!(
            "This server has a temporary guild, which is removed when you press Ctrl-C. Its key:\n\n{key}\n\nRead a member's \
             points:\n\ncurl -d memberID={ADA} -H 'Authorization: {key}' {url}/getPoints\n\nThe dashboard, with some traffic to \
             look at; this link logs in once:\n\n{admin_url}/login?once={link}\n\n"
        )
    }
}

async fn ask(address: &str, key: &str, path: &str, body: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: demo\r\nAuthorization: {key}\r\nConnection: close\r\nContent-Type: \
         application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}
