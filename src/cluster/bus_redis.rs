//! The stream of the bus, in Redis 6.2 or newer, or Valkey: `XADD` on one connection, a blocking `XREAD` on another. A
//! stream that was removed is noticed by who appends to it next, and begun anew with a notice to drop everything.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, cmd};

use super::redis::{RedisFault, open_alone};
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
        probe.append(&mut writer, &["probe".to_owned()], true).await?;
        probe.read(&mut reader, &mut "0".to_owned()).await?;
        in_time(cmd("DEL").arg(&probe.key).query_async(&mut writer)).await
    }

    /// A connection that appends, and one that reads.
    pub(super) async fn connect(&self) -> Result<(MultiplexedConnection, MultiplexedConnection), RedisFault> {
        tokio::try_join!(open_alone(&self.at), open_alone(&self.at))
    }

    /// Appends all entries, and returns the id of the last one; `None`: there is no stream, which only one that begins makes.
    /// An error leaves open which of the entries are there.
    pub(super) async fn append(
        &self,
        writer: &mut MultiplexedConnection,
        entries: &[String],
        begins: bool,
    ) -> Result<Option<String>, RedisFault> {
        let mut pipe = redis::pipe();
        for text in entries {
            let xadd = pipe.cmd("XADD").arg(&self.key);
            if !begins {
                xadd.arg("NOMKSTREAM");
            }
            xadd.arg("MAXLEN").arg("~").arg(MAX_ENTRIES).arg("*").arg(FIELD).arg(text);
        }
        let appended: Result<Vec<Option<String>>, _> = in_time(pipe.query_async(writer)).await;
        if appended.as_ref().is_err_and(RedisFault::is_garbage) {
            in_time(cmd("DEL").arg(&self.key).query_async::<()>(writer)).await?;
        }
        let ids = appended?;
        let Some(last) = ids.into_iter().collect::<Option<Vec<_>>>().and_then(|mut ids| ids.pop()) else {
            return Ok(None);
        };
        if self.replicas > 0 {
            let wait = cmd("WAIT").arg(self.replicas).arg(WAIT_MILLIS).take();
            let reached: u32 = in_time(wait.query_async(writer)).await?;
            if reached < self.replicas {
                let text = format!("only {reached} of {} replicas have a notice (cluster.replicas)", self.replicas);
                return Err(RedisFault::new(text));
            }
        }
        Ok(Some(last))
    }

    /// Waits for entries after the one with this id, and moves it on. The text of one that has none is empty.
    pub(super) async fn read(
        &self,
        reader: &mut MultiplexedConnection,
        after: &mut String,
    ) -> Result<Vec<String>, RedisFault> {
        let options = StreamReadOptions::default().count(READ_COUNT).block(BLOCK_MILLIS);
        let read: Option<StreamReadReply> =
            in_time(reader.xread_options(&[&self.key], &[after.as_str()], &options)).await?;
        let entries: Vec<_> = read.into_iter().flat_map(|read| read.keys).flat_map(|stream| stream.ids).collect();
        let Some(last) = entries.last() else {
            return Err(RedisFault::new("not even this node's own notices were read for a second"));
        };
        after.clone_from(&last.id);
        Ok(entries.iter().map(|entry| entry.get(FIELD).unwrap_or_default()).collect())
    }
}

async fn in_time<T>(command: impl Future<Output = redis::RedisResult<T>>) -> Result<T, RedisFault> {
    super::redis::in_time("a notice", ANSWER_WITHIN, async { Ok(command.await?) }).await
}
