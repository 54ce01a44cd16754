//! What a transaction changed, as it is numbered in the store and told to others.

use super::Change;
use crate::model::MemberId;

/// Changes kept. One is written a batch, its own writer's among them, and a follower asks several
/// times a second: this is most of a second of one-write batches, and minutes of usual traffic.
pub(super) const KEPT: i64 = 8192;

/// Old changes are pruned once in so many, so that a commit seldom pays for it.
pub(super) const PRUNE_EVERY: i64 = 64;

/// Members told one by one in an answer; with more, forgetting everything is cheaper.
const TOLD: usize = 100_000;

const KIND_MEMBERS: i64 = 1;
const KIND_DIRECTORY: i64 = 2;
const KIND_EVERYTHING: i64 = 3;

/// What was changed, gathered.
#[derive(Debug, Default)]
pub(super) struct Marks {
    members: Vec<MemberId>,
    directory: bool,
    everything: bool,
}

impl Marks {
    pub(super) fn add(&mut self, change: &Change) {
        match change {
            Change::Member(member) => self.members.push(*member),
            Change::Directory => self.directory = true,
            Change::Everything => self.everything = true,
        }
    }

    /// As rows of the table `change`: their kinds, and the members' ids (8 bytes each, little endian).
    pub(super) fn rows(&self) -> impl Iterator<Item = (i64, Option<Vec<u8>>)> {
        let ids = || self.members.iter().flat_map(|m| m.as_i64().to_le_bytes()).collect();
        let everything = self.everything.then_some((KIND_EVERYTHING, None));
        let directory = (self.directory && !self.everything).then_some((KIND_DIRECTORY, None));
        let members = (!self.members.is_empty() && !self.everything).then(|| (KIND_MEMBERS, Some(ids())));
        [everything, directory, members].into_iter().flatten()
    }

    /// Adds a row that was read.
    pub(super) fn add_row(&mut self, kind: i64, members: &[u8]) {
        match kind {
            KIND_MEMBERS => {
                let ids = members.as_chunks::<8>().0.iter();
                self.members.extend(ids.filter_map(|bytes| MemberId::new(u64::from_le_bytes(*bytes))));
            }
            KIND_DIRECTORY => self.directory = true,
            _ => self.everything = true,
        }
    }

    /// What is told; everything, where rows were missed (`gap`).
    pub(super) fn told(mut self, gap: bool) -> Vec<Change> {
        self.members.sort_unstable();
        self.members.dedup();
        if gap || self.everything || self.members.len() > TOLD {
            return vec![Change::Everything];
        }
        let directory = self.directory.then_some(Change::Directory);
        directory.into_iter().chain(self.members.into_iter().map(Change::Member)).collect()
    }
}
