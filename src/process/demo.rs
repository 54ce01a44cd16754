//! `serve --demo`: a gateway with settings of its own, whatever the configuration says: on loopback, with a temporary
//! store that is filled here and removed at the end. Explains how to try it.

use std::net::{Ipv4Addr, TcpListener};

use tempfile::TempDir;

use super::ProcessError;
use crate::clock::Clock;
use crate::config::{self, Loaded};
use crate::keys::ApiKey;
use crate::model::Scope;
use crate::store::{KeyRecord, Mode, Store};

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
    key: ApiKey,
    folder: TempDir,
}

impl Demo {
    /// Makes both.
    pub(super) fn prepare() -> Result<Self, ProcessError> {
        let folder = tempfile::Builder::new().prefix("guildgate-demo-").tempdir();
        let folder =
            folder.map_err(|e| ProcessError::Failed(format!("cannot make a folder for the demo's store: {e}")))?;
        Ok(Demo { key: ApiKey::generate().map_err(ProcessError::Failed)?, folder })
    }

    /// Its gateway.toml. Relative paths, the defaults of `origin.store` and `admin.token` among them, are in its folder.
    pub(super) fn settings(&self) -> Result<Loaded, ProcessError> {
        // It starts on any free port rather than not at all.
        let [callers, admins] = [8080, 9180].map(|port| match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => port,
            Err(_) => 0,
        });
        let text = format!(
            "server.listen = [\"127.0.0.1:{callers}\"]\norigin.kind = \"builtin\"\nadmin.listen = \"127.0.0.1:{admins}\"\n"
        );
        let loaded = config::load_str(&text, self.folder.path(), "the demo's settings");
        loaded.map_err(|faults| ProcessError::Unusable(faults.to_string()))
    }

    /// Puts one guild, its key, members, warns and reviews into the store.
    pub(super) async fn fill(&self, store: &Store) -> Result<(), ProcessError> {
        let imported = store.import(|| Ok(RECORDS.trim_start().as_bytes()), Mode::AllOrNothing, drop).await;
        imported.map_err(|e| ProcessError::Failed(e.to_string()))?.commit().await?;
        let key = KeyRecord {
            id: "k_demo".into(),
            name: "demo".into(),
            guild: GUILD.parse().map_err(|e| ProcessError::Failed(format!("{e}")))?,
            digest: self.key.digest(),
            tier: None,
            scope: Scope::Write,
            created: Clock::system().unix(),
            expires: None,
            last_used: None,
            previous: None,
        };
        Ok(store.create_key(key).await?)
    }

    /// The key, and a curl command that uses it.
    pub(super) fn instructions(&self, url: &str) -> String {
        let key = self.key.reveal();
        format!(
            "This server has a temporary guild, which is removed when you press Ctrl-C. Its key:\n\n{key}\n\nRead a member's \
             points:\n\ncurl -d memberID={ADA} -H 'Authorization: {key}' {url}/getPoints\n\n"
        )
    }
}
