//! `serve --demo`: a gateway with settings of its own, whatever the configuration says: on loopback, with a temporary
//! store that is filled here and removed at the end. Explains how to try it.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use tempfile::TempDir;

use super::ProcessError;
use crate::clock::Clock;
use crate::config::{self, Loaded};
use crate::model::Scope;
use crate::records::{Records, key};
use crate::store::{IfMissing, Mode, Store};

/// What is in its store, as `guildgate import` reads it.
const RECORDS: &str = r#"
{"guild":"81384788765712384","name":"Night Watch"}
{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}
{"guild":"81384788765712384","member":"190551803669118977","name":"Bo","points":310}
{"guild":"81384788765712384","member":"190551803669118978","name":"Cy","points":40}
{"guild":"81384788765712384","member":"190551803669118979","name":"Dee","points":0}
{"guild":"81384788765712384","member":"190551803669118976","warn":"1","author":"Mod","reason":"spam in #general after two reminders","expires":4102444800}
{"guild":"81384788765712384","member":"190551803669118978","warn":"2","author":"Mod","reason":"advertising","expires":4102444800}
{"guild":"81384788765712384","member":"190551803669118976","review":"1","author":"Bo","rating":5,"text":"Quick and kind, solved it in minutes"}
{"guild":"81384788765712384","member":"190551803669118976","review":"2","author":"Cy","rating":4,"text":"Helpful, if a little late"}
"#;

const GUILD: &str = "81384788765712384";
const ADA: u64 = 190_551_803_669_118_976;

/// The demo's folder, which is removed when this is dropped, and the key that it prints.
#[derive(Debug)]
pub(super) struct Demo {
    key: String,
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
        let text = format!(
            "server.listen = [\"127.0.0.1:{callers}\"]\norigin.kind = \"builtin\"\nadmin.listen = \"127.0.0.1:{admins}\"\n"
        );
        let loaded =
            config::load_str(&text, folder.path(), "the demo's settings").map_err(|e| failed(e.to_string()))?;
        let store = Store::open(&loaded.config.origin.store, IfMissing::Make).await?;
        let imported = store.import(|| Ok(RECORDS.trim_start().as_bytes()), Mode::AllOrNothing, drop).await;
        imported.map_err(|e| failed(e.to_string()))?.commit().await?;
        let guild = GUILD.parse().map_err(|e: &str| failed(e.to_owned()))?;
        let input = key::KeyInput { guild, name: "demo".to_owned(), tier: None, scope: Scope::Write, expires: None };
        let records = Records { store, config: Arc::new(loaded.config.clone()), clock: Clock::system() };
        let key = key::create(&records, input).await?.key;
        Ok((loaded, Demo { key, _folder: folder }))
    }

    /// The key, and a curl command that uses it.
    pub(super) fn instructions(&self, url: &str) -> String {
        let key = &self.key;
        format!(
            "This server has a temporary guild, which is removed when you press Ctrl-C. Its key:\n\n{key}\n\nRead a member's \
             points:\n\ncurl -d memberID={ADA} -H 'Authorization: {key}' {url}/getPoints\n\n"
        )
    }
}
