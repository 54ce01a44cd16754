//! The stream of the bus, in Redis 6.2 or newer, or Valkey: `XADD` on one connection, a blocking `XREAD` on another. A
//! stream that was removed is noticed by who appends to it next, and begun anew with a notice to drop everything.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, Cmd, cmd};
use tokio::time::timeout;

use super::redis::{RedisFault, note_garbage, open_alone};
use crate::config::{Cluster, RedisAt};

/// About how many entries the stream keeps: more than all nodes append in a second, in some 3 MB.
const MAX_ENTRIES: usize = 30_000;

/// Entries in one answer.
const READ_COUNT: usize = 1000;

/// How long a read waits for entries. This node's beats end it earlier.
const BLOCK_MILLIS: usize = 1000;

/// How long an append waits for the replicas.
const WAIT_MILLIS: u64 = 1000;

/// How long an append or a read may take, with packets that are lost twice in a row. A connection that needs longer is
/// given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The field of an entry that holds its text.
const FIELD: &str = "e";

/// A stream under one key, in the primary that is in charge now.
#[derive(Debug)]
pub struct RedisStream {
    at: RedisAt,
    pub(super) key: String,
    /// How many replicas must have an entry before it counts as confirmed.
    replicas: u32,
}

impl RedisStream {
    /// The stream that the nodes of a cluster share, if they need one.
    pub fn of(cluster: &Cluster) -> Option<Self> {
        let (at, key) = (cluster.redis.clone(), format!("{}:bus", cluster.prefix));
        cluster.replicas.map(|replicas| RedisStream { at, key, replicas })
    }

    /// Tries what the bus does on a key beside the stream's: the rights, the version and the replicas.
    pub(super) async fn check(&self) -> Result<(), RedisFault> {
        let probe = RedisStream { at: self.at.clone(), key: format!("{}:probe", self.key), replicas: self.replicas };
        let (mut writer, mut reader) = probe.connect().await?;
        writer.begin("probe", "probe").await?;
        "0".clone_into(&mut reader.after);
        reader.next().await?;
        in_time(cmd("DEL").arg(&probe.key).query_async(&mut writer.connection)).await
    }

    pub(super) async fn connect(&self) -> Result<(RedisWriter, RedisReader), RedisFault> {
        let (writer, reader) = tokio::try_join!(open_alone(&self.at), open_alone(&self.at))?;
        let writer = RedisWriter { connection: writer, key: self.key.clone(), replicas: self.replicas };
        Ok((writer, RedisReader { connection: reader, key: self.key.clone(), after: "$".to_owned() }))
    }
}

/// The connection that appends.
#[derive(Debug)]
pub(super) struct RedisWriter {
    connection: MultiplexedConnection,
    key: String,
    replicas: u32,
}

impl RedisWriter {
    /// Appends the first entry of this connection, or `anew` where there is no stream; returns its id.
    pub(super) async fn begin(&mut self, first: &str, anew: &str) -> Result<String, RedisFault> {
        let begun = async {
            match self.xadd(true, first).query_async(&mut self.connection).await? {
                Some(id) => Ok(id),
                None => self.xadd(false, anew).query_async(&mut self.connection).await,
            }
        };
        match in_time(begun).await {
            Ok(id) => self.wait_for_replicas().await.map(|()| id),
            Err(fault) if fault.is_of_another_type() => {
                note_garbage(&self.key);
                in_time(cmd("DEL").arg(&self.key).query_async::<()>(&mut self.connection)).await?;
                Err(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Appends all entries. An error leaves open which of them are there.
    pub(super) async fn append(&mut self, entries: &[String]) -> Result<(), RedisFault> {
        let mut pipe = redis::pipe();
        for text in entries {
            pipe.add_command(self.xadd(true, text));
        }
        let ids: Vec<Option<String>> = in_time(pipe.query_async(&mut self.connection)).await?;
        if ids.iter().any(Option::is_none) {
            return Err(RedisFault::new("somebody has removed the stream", true));
        }
        self.wait_for_replicas().await
    }

    fn xadd(&self, must_exist: bool, text: &str) -> Cmd {
        let mut xadd = cmd("XADD");
        xadd.arg(&self.key);
        if must_exist {
            xadd.arg("NOMKSTREAM");
        }
        xadd.arg("MAXLEN").arg("~").arg(MAX_ENTRIES).arg("*").arg(FIELD).arg(text);
        xadd
    }

    async fn wait_for_replicas(&mut self) -> Result<(), RedisFault> {
        if self.replicas == 0 {
            return Ok(());
        }
        let wait = cmd("WAIT").arg(self.replicas).arg(WAIT_MILLIS).take();
        let reached: u32 = in_time(wait.query_async(&mut self.connection)).await?;
        if reached < self.replicas {
            let message = format!("only {reached} of {} replicas have a notice (cluster.replicas)", self.replicas);
            return Err(RedisFault::new(message, true));
        }
        Ok(())
    }
}

/// The connection that reads.
#[derive(Debug)]
pub(super) struct RedisReader {
    connection: MultiplexedConnection,
    key: String,
    /// The id of the last entry that was read.
    pub(super) after: String,
}

impl RedisReader {
    /// Waits for entries; none within a second. The text of one that has none is empty.
    pub(super) async fn next(&mut self) -> Result<Vec<String>, RedisFault> {
        let options = StreamReadOptions::default().count(READ_COUNT).block(BLOCK_MILLIS);
        let read: Option<StreamReadReply> =
            in_time(self.connection.xread_options(&[&self.key], &[&self.after], &options)).await?;
        let entries: Vec<_> = read.into_iter().flat_map(|read| read.keys).flat_map(|stream| stream.ids).collect();
        if let Some(last) = entries.last() {
            self.after.clone_from(&last.id);
        }
        Ok(entries.iter().map(|entry| entry.get(FIELD).unwrap_or_default()).collect())
    }
}

async fn in_time<T>(command: impl Future<Output = redis::RedisResult<T>>) -> Result<T, RedisFault> {
    match timeout(ANSWER_WITHIN, command).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(RedisFault::new(format!("a notice took longer than {ANSWER_WITHIN:?}"), true)),
    }
}
