//! `guildgate cluster`: the nodes that share one Redis. It asks Redis itself, so that it works while the node of this
//! machine is down.

use std::io::Write;
use std::time::Duration;

use clap::Subcommand;

use super::Failure;
use super::error::CommandError;
use super::output::{JsonArg, print_record};
use super::table::{Column, table};
use crate::cluster::{self, Node};
use crate::config::{Loaded, SettingFault};
use crate::model::{counted, rough};

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

/// The columns of a node.
const COLUMNS: [Column<Node>; 8] = [
    ("NODE", |node| node.node.clone()),
    ("STATE", |node| node.state_in_words().to_owned()),
    ("VERSION", |node| node.version.clone()),
    ("CONFIGURATION", |node| node.config_hash.clone()),
    ("PID", |node| node.pid.to_string()),
    ("UP", |node| rough(Duration::from_millis(node.uptime_ms))),
    ("HEARD", |node| format!("{} ago", rough(Duration::from_millis(node.age_ms)))),
    ("WRITES HEARD", Node::writes_in_words),
];

impl ClusterCommand {
    pub(super) async fn run(self, loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
        let ClusterCommand::Status { json } = self;
        let fault =
            |why: String| Failure::Unusable(loaded.faults(&[SettingFault::new("cluster.redis", why)]).to_string());
        let Some(config) = &loaded.config.cluster else {
            return Err(fault(
                "is not set, so this node shares nothing with others; docs/cluster.md has the set-up".into(),
            ));
        };
        let (info, status) = cluster::status(config)
            .await
            .map_err(|why| fault(format!("Redis at {} cannot be used: {why}", config.redis)))?;
        let version = if info.version.is_empty() { String::new() } else { format!(" (version {})", info.version) };
        let nodes = counted(status.nodes.len() as u64, "node");
        let mut text = format!("Redis at {}{version}; {nodes}", status.redis);
        if !status.nodes.is_empty() {
            text += &format!("\n\n{}", table(&status.nodes, &COLUMNS, "more node").trim_end());
        }
        print_record(out, json, &status, &text)?;
        match status.warnings.as_slice() {
            [] => Ok(()),
            warnings => Err(CommandError::new(warnings.join("\n")).into()),
        }
    }
}
