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

use answers::Answers;
use fence::Fence;
use flights::Flights;

/// A memory of tables so small that the checker can make one for each of its tries.
pub fn small_memory() -> memory::Memory {
    memory::Memory { answers: Answers::new(1 << 20), fence: Fence::of(4, 1), flights: Flights::default() }
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
    memory.fence.move_on(at.member, at.read);
}
