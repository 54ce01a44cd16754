//! Tells each node of the writes of the others, over a stream that all of them append to and read. A write is announced
//! before the origin is asked, and its end before its caller is answered. A node knows that it hears the others by
//! reading its own entries back: once it has read what it sent at a moment, it has read all that others had confirmed
//! before. `sender`, `reader` and `node` are the rules, without input or output; `driver` runs them over a stream, and
//! `redis_stream` is one in Redis.

mod driver;
mod entry;
mod node;
mod reader;
mod redis_stream;
mod sender;
#[cfg(test)]
mod tests;

use crate::clock::Tick;
use crate::model::{GuildId, MemberId};

pub use driver::{
    Bus, BusStatus, BusWrite, NotConfirmed, Opened, StreamReader, StreamWriter, Transport, TransportError,
};
pub use entry::{BadEntry, Entry, Incarnation, Notice, StreamId};
pub use node::{Fetched, Node};
pub use reader::SILENT_AFTER;
pub use redis_stream::RedisStream;
pub use sender::BEAT_INTERVAL;

/// A write of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteWrite {
    pub incarnation: Incarnation,
    /// The number that the node gave it.
    pub write: u64,
}

/// Why everything that is cached is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Entries of a node are missing.
    Gap,
    /// An entry cannot be read.
    BadEntry,
    /// Another server answers, which may not have the last entries of the one before. Nothing is kept before `until`:
    /// by then the other nodes have begun their writes in flight anew.
    OtherServer { until: Tick },
    /// The last entry that was read is gone: the stream was trimmed beyond it, or removed. `until` as above.
    Removed { until: Tick },
    /// The first entry of a stream was read.
    NotContinuous,
    /// Another node asks for it.
    Everything,
}

/// Where notices take effect: the cache.
pub trait Listener {
    /// Nothing that is cached may be used any more.
    fn drop_everything(&mut self, reason: DropReason);

    /// A write of another node begins. Nothing about the member may be kept until it is over.
    fn write_begun(&mut self, write: RemoteWrite, member: MemberId);

    /// A write of another node has ended, whether or not its begin was heard; `settled`: its outcome is known.
    fn write_over(&mut self, write: RemoteWrite, member: MemberId, settled: bool);

    /// Cached answers to the keys of a guild, about a member, or both are invalid; all where neither is given.
    fn purge(&mut self, guild: Option<&GuildId>, member: Option<MemberId>);
}
