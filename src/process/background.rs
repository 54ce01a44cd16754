//! The gateway's background tasks. A process in which one of them has ended cannot go on.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cluster::{RedisStream, SharedLimits};
use crate::gateway::Gateway;
use crate::store::Store;

/// How long a process that ends waits for Redis to know.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// The tasks that need the store, and those that share limits with other nodes and hear of their writes; without a store
/// or a cluster there are none of them.
#[derive(Debug)]
pub(super) struct BackgroundTasks {
    store: Option<StoreTasks>,
    limits: Option<JoinHandle<()>>,
    peers: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct StoreTasks {
    store: Arc<Store>,
    follower: JoinHandle<()>,
    usage_flush: JoinHandle<()>,
}

impl BackgroundTasks {
    pub(super) fn start(
        gateway: &Arc<Gateway>,
        store: Option<&Arc<Store>>,
        limits: Option<Arc<SharedLimits>>,
        stream: Option<RedisStream>,
    ) -> Self {
        let limits = limits.map(|limits| {
            let gateway = gateway.clone();
            tokio::spawn(async move { limits.run(|| gateway.node_report()).await })
        });
        let peers = stream.map(|stream| {
            let gateway = gateway.clone();
            tokio::spawn(async move { gateway.follow_peers(&stream).await })
        });
        let store = store.map(|store| {
            let (follows, followed) = (gateway.clone(), store.clone());
            let (flushes, flushed) = (gateway.clone(), store.clone());
            StoreTasks {
                store: store.clone(),
                follower: tokio::spawn(async move { follows.follower.follow(&followed).await }),
                usage_flush: tokio::spawn(async move { flushes.usage_flush.run(&flushed).await }),
            }
        });
        BackgroundTasks { store, limits, peers }
    }

    /// Waits until one of them has ended, which is a defect; returns which one.
    pub(super) async fn ended(&mut self) -> &'static str {
        let BackgroundTasks { store, limits, peers } = self;
        let of_store = async {
            let Some(StoreTasks { store, follower, usage_flush }) = store else {
                return std::future::pending().await;
            };
            tokio::select! {
                () = store.writer_ended() => "the thread that writes to the store has ended",
                _ = follower => "the task that follows the store's changes has ended",
                _ = usage_flush => "the task that keeps the counts of keys has ended",
            }
        };
        tokio::select! {
            ended = of_store => ended,
            Some(_) = async { Some(limits.as_mut()?.await) } => "the task that shares limits with other nodes has ended",
            Some(_) = async { Some(peers.as_mut()?.await) } => "the task that hears of other nodes' writes has ended",
        }
    }

    /// Tells the other nodes that this process stops, and writes the last
    /// counts of keys to the store within `limit` (`None`: neither of these two).
    pub(super) async fn finish(&mut self, gateway: &Gateway, limit: Option<Duration>) {
        // Where a write is still under way, the others are to take this node for one that ended without a word.
        if let (Some(peers), Some(_), true) = (gateway.peers(), limit, gateway.alone.end_writes()) {
            peers.bus.leave().await;
        }
        if let (Some(tasks), Some(limit)) = (&self.store, limit) {
            gateway.usage_flush.finish(&tasks.store, limit).await;
        }
        if let (Some(task), Some(limits), Some(_)) = (&mut self.limits, gateway.shared_limits(), limit) {
            limits.set_state(None);
            let _ = timeout(LEAVE_WITHIN, task).await; // the others hear no more of it in any case
        }
    }
}
