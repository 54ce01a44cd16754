//! `src/cache`, file by file.
#![allow(dead_code, reason = "what the model leaves alone is used by the gateway")]

#[path = "../../src/cache/answers.rs"]
pub mod answers;
#[path = "../../src/cache/fence.rs"]
pub mod fence;
#[path = "../../src/cache/flights.rs"]
pub mod flights;
#[path = "../../src/cache/memory.rs"]
pub mod memory;

use std::collections::HashSet;

use answers::Answers;
use fence::{Fence, Reach};
use flights::Flights;

/// A memory of tables so small that the checker can make one for each of its tries, in which what
/// concerns one of these entries alone concerns no other by a collision: that would hide a bug.
pub fn small_memory(entries: &[answers::EntryKey]) -> memory::Memory {
    let fence = Fence::of(16, 16);
    let reaches = || entries.iter().map(|at| Reach::Realm(at.realm)).chain([Reach::All]);
    let (member, read) = (entries[0].member, entries[0].read);
    let epochs: HashSet<_> = reaches().map(|reach| std::ptr::from_ref(fence.slot(member, read, reach))).collect();
    let unsettled: HashSet<_> = reaches().map(|reach| std::ptr::from_ref(fence.unsettled(member, reach))).collect();
    assert_eq!([epochs.len(), unsettled.len()], [entries.len() + 1; 2], "other entries are needed");
    memory::Memory { answers: Answers::new(1 << 20), fence, flights: Flights::default() }
}

/// Puts an entry in, whatever the fence says: a bug.
pub fn put_unchecked(memory: &memory::Memory, at: answers::EntryKey, entry: std::sync::Arc<answers::Entry>) {
    memory.answers.put(at, entry);
}

/// A seat in any flight there is, whenever it began: a bug.
pub fn board_any<'m>(
    memory: &'m memory::Memory,
    at: answers::EntryKey,
    first: fence::Epoch,
) -> flights::Seat<'m, answers::EntryKey, fence::Epoch, answers::Landed> {
    memory.flights.board(at, || first)
}

/// The first move alone: a bug.
pub fn move_once(memory: &memory::Memory, at: &answers::EntryKey) {
    memory.fence.move_on(at.member, at.read, fence::Reach::Realm(at.realm));
}
