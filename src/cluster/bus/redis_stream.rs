//! The stream in Redis 6.2 or newer, or Valkey: `XADD` with `MINID` on one connection, a blocking `XREAD` on another. The
//! reader asks after each read whether the entry that it read last is still there. So it sees a stream that was trimmed
//! beyond it or removed, which `XREAD` alone skips or waits for without a word.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value, cmd};
use tokio::time::timeout;

use super::driver::{Opened, StreamReader, StreamWriter, Transport, TransportError};
use super::entry::StreamId;
use super::node::Fetched;
use crate::cluster::redis::{RedisFault, note_garbage, open_alone};
use crate::config::{Cluster, RedisAt};

/// Entries that are older than this are removed from the stream. A node that stood still for longer drops everything
/// that it has cached.
const KEEP_MILLIS: u64 = 10_000;

/// How long a read waits for entries. This node's beats end it earlier.
const BLOCK_MILLIS: u64 = 400;

/// Entries in one answer.
const READ_COUNT: usize = 200;

/// Entries in one millisecond of the server's clock beyond which that clock must be behind the stream's last entry: it was
/// set back, or somebody else added an entry of a time to come. Nothing would be removed from the stream then.
const MAX_SEQUENCE: u64 = 100_000;

/// How long an append waits for the replicas.
const WAIT_MILLIS: u64 = 200;

/// How long a check may take.
const CHECK_WITHIN: Duration = Duration::from_secs(1);

/// The field of an entry that holds its text.
const FIELD: &str = "e";

/// Removes what is no stream, in one step: by the second of two, another node may have begun the stream.
const REMOVE_GARBAGE: &str = "local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'stream' or kind == 'none' then return 0 end
return redis.call('DEL', KEYS[1])";

/// A stream under one key, in the primary that is in charge now.
#[derive(Debug)]
pub struct RedisStream {
    at: RedisAt,
    key: String,
    /// How many replicas must have an entry before it counts as confirmed.
    replicas: u32,
    /// How often something else stood in the key.
    garbage: Arc<AtomicU64>,
}

impl RedisStream {
    pub fn new(at: RedisAt, prefix: &str, replicas: u32) -> Self {
        RedisStream { at, key: format!("{prefix}:bus"), replicas, garbage: Arc::default() }
    }

    /// The same stream, which counts there how often something else stood in its key.
    pub fn counting_garbage(self, garbage: Arc<AtomicU64>) -> Self {
        RedisStream { garbage, ..self }
    }

    /// The stream that the nodes of a cluster share, if they need one.
    pub fn of(cluster: &Cluster) -> Option<Self> {
        cluster.replicas.map(|replicas| RedisStream::new(cluster.redis.clone(), &cluster.prefix, replicas))
    }

    /// Tries what the bus does on a key beside the stream's: the rights, the version and the replicas.
    pub(in crate::cluster) async fn check(&self) -> Result<(), RedisFault> {
        let key = format!("{}:probe", self.key);
        let probe = RedisStream { at: self.at.clone(), key, replicas: self.replicas, garbage: Arc::default() };
        let check = async {
            let Opened { mut writer, mut reader, .. } = probe.connect().await?;
            writer.add(&["probe".to_owned()]).await?;
            reader.fetch(None).await?;
            let () = cmd("DEL").arg(&probe.key).query_async(&mut writer.connection).await?;
            Ok(())
        };
        let late = |_| RedisFault::new("the notices of writes took longer than a second", true);
        timeout(CHECK_WITHIN, check).await.map_err(late)?
    }

    async fn connect(&self) -> Result<Opened<RedisWriter, RedisReader>, RedisFault> {
        let mut reader = open_alone(&self.at).await?;
        let mut writer = open_alone(&self.at).await?;
        let server = server(&mut reader).await?;
        if server != self::server(&mut writer).await? {
            return Err(RedisFault::new("two connections led to two servers", true));
        }
        let had_garbage: bool = Script::new(REMOVE_GARBAGE).key(&self.key).invoke_async(&mut writer).await?;
        if had_garbage {
            note_garbage(&self.key, &self.garbage);
        }
        let (key, replicas) = (self.key.clone(), self.replicas);
        let writer = RedisWriter { connection: writer, key: key.clone(), replicas, last: None };
        Ok(Opened { server, writer, reader: RedisReader { connection: reader, key } })
    }
}

impl Transport for RedisStream {
    type Writer = RedisWriter;
    type Reader = RedisReader;

    async fn open(&self) -> Result<Opened<RedisWriter, RedisReader>, TransportError> {
        Ok(self.connect().await?)
    }
}

/// The connection that appends.
#[derive(Debug)]
pub struct RedisWriter {
    connection: MultiplexedConnection,
    key: String,
    replicas: u32,
    /// The last entry, by whose time older ones are removed: clocks of nodes may differ from the server's.
    last: Option<StreamId>,
}

impl RedisWriter {
    async fn add(&mut self, entries: &[String]) -> Result<(), RedisFault> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for entry in entries {
            let mut add = cmd("XADD");
            add.arg(&self.key);
            if let Some(last) = self.last {
                add.arg("MINID").arg("~").arg(last.millis.saturating_sub(KEEP_MILLIS));
            }
            pipe.add_command(add.arg("*").arg(FIELD).arg(entry).take());
        }
        let ids: Vec<String> = match pipe.query_async(&mut self.connection).await {
            Err(error) if error.to_string().contains("exhausted") => {
                self.remove("no id is left for another entry").await?;
                return Err(error.into());
            }
            ids => ids?,
        };
        self.last = ids.last().and_then(|id| id.parse().ok());
        if self.last.is_some_and(|last: StreamId| last.sequence > MAX_SEQUENCE) {
            self.remove("its last entry is of a time to come").await?;
        }
        if self.replicas > 0 {
            let wait = cmd("WAIT").arg(self.replicas).arg(WAIT_MILLIS).take();
            let reached: u32 = wait.query_async(&mut self.connection).await?;
            if reached < self.replicas {
                let message = format!("only {reached} of {} replicas have a notice (cluster.replicas)", self.replicas);
                return Err(RedisFault::new(message, true));
            }
        }
        Ok(())
    }
}

impl RedisWriter {
    /// Removes the stream. All nodes see that, and drop what they have in memory.
    async fn remove(&mut self, why: &str) -> Result<(), RedisFault> {
        tracing::warn!(key = self.key, why, "the stream of the bus is begun anew");
        self.last = None;
        let () = cmd("DEL").arg(&self.key).query_async(&mut self.connection).await?;
        Ok(())
    }
}

impl StreamWriter for RedisWriter {
    async fn append(&mut self, entries: &[String]) -> Result<(), TransportError> {
        Ok(self.add(entries).await?)
    }
}

/// The connection that reads.
#[derive(Debug)]
pub struct RedisReader {
    connection: MultiplexedConnection,
    key: String,
}

impl RedisReader {
    async fn fetch(&mut self, after: Option<StreamId>) -> Result<Fetched, RedisFault> {
        let position = after.map_or("0-0".to_owned(), |id| id.to_string());
        // The server runs the second command once the first has its answer.
        let read = cmd("XREAD").arg("COUNT").arg(READ_COUNT).arg("BLOCK").arg(BLOCK_MILLIS).take();
        let read = { read }.arg("STREAMS").arg(&self.key).arg(&position).take();
        let look_back: Cmd = cmd("XRANGE").arg(&self.key).arg(&position).arg(&position).take();
        let mut pipe = redis::pipe();
        pipe.add_command(read).add_command(look_back);
        let (streams, at_position): (Value, Vec<Value>) = pipe.query_async(&mut self.connection).await?;
        let entries =
            streams_entries(streams).ok_or_else(|| RedisFault::new("XREAD answered in another form", true))?;
        Ok(Fetched { entries, is_continuous: after.is_none() || !at_position.is_empty() })
    }
}

impl StreamReader for RedisReader {
    async fn read(&mut self, after: Option<StreamId>) -> Result<Fetched, TransportError> {
        Ok(self.fetch(after).await?)
    }
}

/// The entries in the answer of an XREAD of one stream.
fn streams_entries(streams: Value) -> Option<Vec<(StreamId, Option<String>)>> {
    let entries = match streams {
        Value::Nil => return Some(Vec::new()),
        Value::Array(mut streams) => match streams.pop()? {
            Value::Array(mut key_and_entries) => key_and_entries.pop()?,
            _ => return None,
        },
        // RESP3
        Value::Map(mut streams) => streams.pop()?.1,
        _ => return None,
    };
    let Value::Array(entries) = entries else { return None };
    entries.into_iter().map(entry).collect()
}

/// An entry's id, and its text if it has one.
fn entry(value: Value) -> Option<(StreamId, Option<String>)> {
    let Value::Array(id_and_fields) = value else { return None };
    let [id, fields] = <[Value; 2]>::try_from(id_and_fields).ok()?;
    let id = redis::from_redis_value::<String>(id).ok()?.parse().ok()?;
    let fields: Vec<String> = redis::from_redis_value(fields).unwrap_or_default();
    match <[String; 2]>::try_from(fields) {
        Ok([field, text]) if field == FIELD => Some((id, Some(text))),
        Ok(_) | Err(_) => Some((id, None)),
    }
}

/// Which server this is, and which history of its data. A replica cannot be written to.
async fn server(connection: &mut MultiplexedConnection) -> Result<String, RedisFault> {
    let info: redis::InfoDict = cmd("INFO").query_async(connection).await?;
    let value = |name: &str| info.get::<String>(name);
    if value("role").is_some_and(|role| role != "master") {
        return Err(RedisFault::replica());
    }
    match (value("run_id"), value("master_replid")) {
        (Some(run), Some(history)) => Ok(format!("{run} {history}")),
        _ => Err(RedisFault::new("INFO does not name the server (run_id, master_replid)", false)),
    }
}

impl From<RedisFault> for TransportError {
    fn from(fault: RedisFault) -> Self {
        TransportError(fault.to_string())
    }
}
