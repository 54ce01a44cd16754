//! What a transaction changed, as rows of the table `change`, from which other processes and nodes read it.

use super::Change;
use crate::model::{KeyId, MemberId};

/// Changes that are kept. Each transaction adds one, and followers read several times a second. This is most of a second
/// of the fastest transactions, and minutes of usual traffic.
pub(super) const KEPT: i64 = 8192;

/// Old changes are pruned once for so many new ones, so that few commits pay for it.
pub(super) const PRUNE_EVERY: i64 = 64;

/// Changed members that are reported one by one. With more, dropping everything is cheaper.
const MAX_MEMBERS: usize = 100_000;

const KIND_MEMBERS: i64 = 1;
const KIND_DIRECTORY: i64 = 2;
const KIND_EVERYTHING: i64 = 3;
// Versions that do not know it take it for everything.
const KIND_DAY_RESET: i64 = 4;

/// What was changed.
#[derive(Debug, Default)]
pub(super) struct ChangeSet {
    members: Vec<MemberId>,
    day_resets: Vec<KeyId>,
    directory: bool,
    everything: bool,
}

impl ChangeSet {
    pub(super) fn add(&mut self, change: &Change) {
        match change {
            Change::Member(member) => self.members.push(*member),
            Change::DayReset(key) => self.day_resets.push(key.clone()),
            Change::Directory => self.directory = true,
            Change::Everything => self.everything = true,
        }
    }

    /// The rows of the table `change`: the kind, and the ids of members (8 bytes each, little endian) or of a key.
    pub(super) fn rows(&self) -> impl Iterator<Item = (i64, Option<Vec<u8>>)> {
        let ids = || self.members.iter().flat_map(|m| m.as_i64().to_le_bytes()).collect();
        let everything = self.everything.then_some((KIND_EVERYTHING, None));
        let directory = (self.directory && !self.everything).then_some((KIND_DIRECTORY, None));
        let members = (!self.members.is_empty() && !self.everything).then(|| (KIND_MEMBERS, Some(ids())));
        let day_resets = self.day_resets.iter().map(|key| (KIND_DAY_RESET, Some(key.as_bytes().to_vec())));
        [everything, directory, members].into_iter().flatten().chain(day_resets)
    }

    /// Adds a row that was read.
    pub(super) fn add_row(&mut self, kind: i64, members: &[u8]) {
        match kind {
            KIND_MEMBERS => {
                let ids = members.as_chunks::<8>().0.iter();
                self.members.extend(ids.filter_map(|bytes| MemberId::new(u64::from_le_bytes(*bytes))));
            }
            KIND_DIRECTORY => self.directory = true,
            KIND_DAY_RESET => self.day_resets.push(String::from_utf8_lossy(members).into()),
            _ => self.everything = true,
        }
    }

    /// The changes to report; everything if rows were missed (`gap`).
    pub(super) fn into_changes(mut self, gap: bool) -> Vec<Change> {
        self.members.sort_unstable();
        self.members.dedup();
        self.day_resets.sort_unstable();
        self.day_resets.dedup();
        let day_resets = self.day_resets.into_iter().map(Change::DayReset);
        if gap || self.everything || self.members.len() > MAX_MEMBERS {
            return std::iter::once(Change::Everything).chain(day_resets).collect();
        }
        let directory = self.directory.then_some(Change::Directory);
        directory.into_iter().chain(self.members.into_iter().map(Change::Member)).chain(day_resets).collect()
    }
}
