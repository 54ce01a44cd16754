//! The stream in Redis 6.2 or newer, or Valkey: `XADD` with `MINID` on one connection, a blocking `XREAD` on another. The
//! reader asks after each read whether the entry that it read last is still there. So it sees a stream that was trimmed
//! beyond it or removed, which `XREAD` alone skips or waits for without a word.

use std::future::Future;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value, cmd};

use super::driver::{Opened, StreamReader, StreamWriter, Transport, TransportError};
use super::entry::StreamId;
use super::node::Fetched;

/// Entries that are older than this are removed from the stream. A node that stood still for longer drops everything
/// that it has cached.
const KEEP_MILLIS: u64 = 10_000;

/// How long a read waits for entries. This node's beats end it earlier.
const BLOCK_MILLIS: u64 = 400;

/// Entries in one answer.
const READ_COUNT: usize = 1000;

/// How long an append waits for the replicas.
const WAIT_MILLIS: u64 = 200;

/// The field of an entry that holds its text.
const FIELD: &str = "e";

/// Opens connections to the primary that is in charge now.
pub trait Connect: Send + Sync {
    /// A connection that nothing else uses, without a time limit for responses.
    fn connect(&self) -> impl Future<Output = Result<MultiplexedConnection, RedisError>> + Send;
}

impl<C, F> Connect for C
where
    C: Fn() -> F + Send + Sync,
    F: Future<Output = Result<MultiplexedConnection, RedisError>> + Send,
{
    fn connect(&self) -> impl Future<Output = Result<MultiplexedConnection, RedisError>> + Send {
        self()
    }
}

/// A stream under one key.
#[derive(Debug)]
pub struct RedisStream<C> {
    connect: C,
    key: String,
    /// How many replicas must have an entry before it counts as confirmed.
    replicas: u32,
}

impl<C: Connect> RedisStream<C> {
    /// The stream `{prefix}:bus`.
    pub fn new(connect: C, prefix: &str, replicas: u32) -> Self {
        RedisStream { connect, key: format!("{{{prefix}}}:bus"), replicas }
    }
}

impl<C: Connect> Transport for RedisStream<C> {
    type Writer = RedisWriter;
    type Reader = RedisReader;

    async fn open(&self) -> Result<Opened<RedisWriter, RedisReader>, TransportError> {
        let mut reader = self.connect.connect().await?;
        let mut writer = self.connect.connect().await?;
        let server = server(&mut reader).await?;
        if server != self::server(&mut writer).await? {
            return Err(TransportError("two connections led to two servers".to_owned()));
        }
        let kind: String = cmd("TYPE").arg(&self.key).query_async(&mut writer).await?;
        if kind != "stream" && kind != "none" {
            tracing::error!(key = self.key, kind, "a key of Guildgate in Redis is no stream, and is replaced");
            let () = cmd("UNLINK").arg(&self.key).query_async(&mut writer).await?;
        }
        let (key, replicas) = (self.key.clone(), self.replicas);
        let writer = RedisWriter { connection: writer, key: key.clone(), replicas, last: None };
        Ok(Opened { server, writer, reader: RedisReader { connection: reader, key } })
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

impl StreamWriter for RedisWriter {
    async fn append(&mut self, entries: &[String]) -> Result<(), TransportError> {
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
        let ids: Vec<String> = pipe.query_async(&mut self.connection).await?;
        self.last = ids.last().and_then(|id| id.parse().ok());
        if self.replicas > 0 {
            let wait = cmd("WAIT").arg(self.replicas).arg(WAIT_MILLIS).take();
            let reached: u32 = wait.query_async(&mut self.connection).await?;
            if reached < self.replicas {
                let message = format!("only {reached} of {} replicas have a notice (cluster.replicas)", self.replicas);
                return Err(TransportError(message));
            }
        }
        Ok(())
    }
}

/// The connection that reads.
#[derive(Debug)]
pub struct RedisReader {
    connection: MultiplexedConnection,
    key: String,
}

impl StreamReader for RedisReader {
    async fn read(&mut self, after: Option<StreamId>) -> Result<Fetched, TransportError> {
        let position = after.map_or("0-0".to_owned(), |id| id.to_string());
        // The server runs the second command once the first has its answer.
        let read = cmd("XREAD").arg("COUNT").arg(READ_COUNT).arg("BLOCK").arg(BLOCK_MILLIS).take();
        let read = { read }.arg("STREAMS").arg(&self.key).arg(&position).take();
        let look_back: Cmd = cmd("XRANGE").arg(&self.key).arg(&position).arg(&position).take();
        let mut pipe = redis::pipe();
        pipe.add_command(read).add_command(look_back);
        let (streams, at_position): (Value, Vec<Value>) = pipe.query_async(&mut self.connection).await?;
        let entries =
            streams_entries(streams).ok_or_else(|| TransportError("XREAD answered in another form".into()))?;
        Ok(Fetched { entries, is_continuous: after.is_none() || !at_position.is_empty() })
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
async fn server(connection: &mut MultiplexedConnection) -> Result<String, TransportError> {
    let info: redis::InfoDict = cmd("INFO").query_async(connection).await?;
    let value = |name: &str| info.get::<String>(name);
    if value("role").is_some_and(|role| role != "master") {
        return Err(TransportError("the server is a replica".to_owned()));
    }
    match (value("run_id"), value("master_replid")) {
        (Some(run), Some(history)) => Ok(format!("{run} {history}")),
        _ => Err(TransportError("INFO does not name the server (run_id, master_replid)".to_owned())),
    }
}

impl From<RedisError> for TransportError {
    fn from(error: RedisError) -> Self {
        TransportError(error.to_string())
    }
}
