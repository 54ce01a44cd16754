//! `guildgate cluster`: the nodes that share one Redis. It asks Redis itself, so that it works while the node of this
//! machine is down.

use std::io::Write;

use clap::Subcommand;

use super::error::CommandError;
use super::output::{JsonArg, table};
use crate::cluster;
use crate::config::Loaded;
use crate::model::counted;

/// `guildgate cluster …`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows the nodes, how far they hear each other, and whether their configurations differ
    ///
    /// Exit 1: something is wrong, and stderr says what. Exit 2: Redis cannot be asked.
    Status {
        #[command(flatten)]
        json: JsonArg,
    },
}

/// What is printed of a node.
const FIELDS: [&str; 9] =
    ["node", "state", "cut_off", "version", "config_hash", "pid", "uptime_ms", "age_ms", "writes_age_ms"];

impl ClusterCommand {
    pub(super) async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
        let ClusterCommand::Status { json: JsonArg { json } } = self;
        let fault = |why| CommandError::of_setting(loaded, "cluster.redis", why);
        let unset = "is not set, so this node shares nothing with others; docs/cluster.md has the set-up";
        let config = loaded.config.cluster.as_ref().ok_or_else(|| fault(unset.to_owned()))?;
        let asked = cluster::status(config).await;
        let (info, status) = asked.map_err(|why| fault(format!("Redis at {} cannot be used: {why}", config.redis)))?;
        if json {
            writeln!(out, "{}", serde_json::to_string(&status)?)?;
        } else {
            let version = if info.version.is_empty() { String::new() } else { format!(" (version {})", info.version) };
            let nodes = counted(status.nodes.len() as u64, "node");
            let table = table(&status.nodes, &FIELDS)?;
            write!(out, "Redis at {}{version}; {nodes}\n\n{table}", status.redis)?;
        }
        match status.warnings.as_slice() {
            [] => Ok(()),
            warnings => Err(CommandError::new(warnings.join("\n"))),
        }
    }
}
