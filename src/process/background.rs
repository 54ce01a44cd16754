//! The gateway's background tasks. A process in which one of them has ended cannot go on.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cluster::Turns;
use crate::cluster::bus::RedisStream;
use crate::gateway::Gateway;
use crate::store::Store;

/// How long a process that ends waits for Redis to know, and to have back what this process holds: as long as thousands of
/// keys take at a Redis that is far away.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The same where Redis is away: as long as connecting again takes a few times.
const LEAVE_AWAY_WITHIN: Duration = Duration::from_millis(500);

/// The tasks that need the store, and those that share limits with other nodes and hear of their writes; without a store
/// or a cluster there are none of them.
#[derive(Debug)]
pub(super) struct BackgroundTasks {
    store: Option<StoreTasks>,
    turns: Option<JoinHandle<()>>,
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
        turns: Option<Turns>,
        stream: Option<RedisStream>,
    ) -> Self {
        let reports = gateway.clone();
        tokio::spawn(async move { reports.limit_report.run().await });
        let turns = turns.map(|turns| {
            let gateway = gateway.clone();
            tokio::spawn(async move { turns.run(|| gateway.node_report()).await })
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
        BackgroundTasks { store, turns, peers }
    }

    /// Waits until one of them has ended, which is a defect; returns which one.
    pub(super) async fn ended(&mut self) -> &'static str {
        let BackgroundTasks { store, turns, peers } = self;
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
            Some(_) = async { Some(turns.as_mut()?.await) } => "the task that shares limits with other nodes has ended",
            Some(_) = async { Some(peers.as_mut()?.await) } => "the task that hears of other nodes' writes has ended",
        }
    }

    /// Logs the last counts of requests over a limit, tells the other nodes that this process stops, and writes the last
    /// counts of keys to the store within `limit` (`None`: neither of these two).
    pub(super) async fn finish(&mut self, gateway: &Gateway, limit: Option<Duration>) {
        gateway.limit_report.report();
        if let (Some(peers), Some(_)) = (gateway.peers(), limit) {
            peers.bus.leave().await;
        }
        if let (Some(tasks), Some(limit)) = (&self.store, limit) {
            gateway.usage_flush.finish(&tasks.store, limit).await;
        }
        if let (Some(turns), Some(limits), Some(_)) = (&mut self.turns, gateway.shared_limits(), limit) {
            limits.set_state(None);
            let within = if limits.is_away() { LEAVE_AWAY_WITHIN } else { LEAVE_WITHIN };
            let _ = timeout(within, turns).await; // the others hear no more of it in any case
        }
    }
}
