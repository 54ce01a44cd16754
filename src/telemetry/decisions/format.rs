//! Encodes decisions into a block's content, about six bytes each, and decodes them. Keys are numbered in the order in
//! which they are first seen; a new number is followed by the key's id and its tier. Times are nanoseconds since the
//! decision before. A key's count today is omitted if it follows from its decision before. A start block, with which
//! every file and every run of the server begins, resets all of that. Pure; decoding trusts no byte.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Decision, raw_blocks, varint};
use crate::clock::Tick;
use crate::model::{KeyId, Limit};
use crate::wire::Operation;

/// The same moment on both clocks, to convert ticks to wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub tick: Tick,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
}

impl ClockReading {
    /// Converts a tick to milliseconds since the Unix epoch.
    pub fn unix_ms(&self, tick: Tick) -> i64 {
        let later = i128::from(tick.0) - i128::from(self.tick.0);
        let later = i64::try_from(later.div_euclid(1_000_000)).unwrap_or_default(); // the difference in ms always fits
        self.unix_ms.saturating_add(later)
    }
}

/// What is only counted, between the end of the block before and the end of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decisions that could not be recorded.
    pub lost: u64,
    /// Requests without a valid key that exceeded `limits.strangers`. They are only counted: the record holds no address,
    /// and a flood of them must not displace the decisions about keys.
    pub strangers: u64,
}

/// A decoded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The run of a server that wrote it. Only ticks of the same run can be compared.
    pub run: u64,
    pub counts: Counts,
    pub written_at: ClockReading,
    /// Ordered by their ticks.
    pub decisions: Vec<Decision>,
}

/// The bits of a block's first byte.
mod first {
    /// A start block; the run's number follows.
    pub(super) const START: u8 = 1;
    /// A count of strangers follows the count of lost decisions. Blocks of older versions have none.
    pub(super) const STRANGERS: u8 = 1 << 1;
    pub(super) const ALL: u8 = START | STRANGERS;
}

/// The bits of a decision's first byte.
mod bits {
    /// Five bits: the operation and the limit that was exceeded (`packed`).
    pub(super) const PACKED: u8 = 0b1_1111;
    pub(super) const REFUSED: u8 = 1 << 5;
    pub(super) const OVER_CANDIDATE: u8 = 1 << 6;
    /// The requests in flight and the count today follow.
    pub(super) const MORE: u8 = 1 << 7;
}

/// The limits that may have been exceeded, and none.
const OVER: u8 = Limit::ALL.len() as u8 + 1;
const _: () = assert!(Operation::COUNT <= (bits::PACKED as usize + 1) / OVER as usize, "an operation does not fit in");

/// The numbers of an operation and of a limit (0 for none) in five bits. The first four operations had two bits and the
/// limit three, of whose numbers 5 to 7 were free.
const fn packed(operation: u8, over: u8) -> u8 {
    if operation < 4 { operation | over << 2 } else { operation * OVER + over }
}

const fn unpacked(packed: u8) -> (u8, u8) {
    if packed < 4 * OVER { (packed & 0b11, packed >> 2) } else { (packed / OVER, packed % OVER) }
}

/// Keys of which an encoder remembers the number, each with some 370 bytes. There may be more before an origin that judges
/// keys, where strangers' keys have decisions as well: the next block starts over then.
const MAX_KEYS: usize = 1 << 18;

/// Encodes decisions into blocks.
#[derive(Debug)]
pub struct Encoder {
    run: u64,
    /// By id. A key whose tier has changed gets a new number.
    keys: HashMap<KeyId, EncodedKey>,
    next_number: u64,
    started: bool,
    /// Kept to reuse its memory.
    content: Vec<u8>,
}

#[derive(Debug)]
struct EncodedKey {
    number: u64,
    tier: Option<Arc<str>>,
    /// Its expected count today at the next decision.
    used_next: u64,
}

/// A key's expected count after this decision.
fn used_after(decision: &Decision) -> u64 {
    // 0 may mean that the key's requests are not counted; if it is a count, the next one is written in full.
    decision.used_today.wrapping_add(u64::from(decision.used_today > 0 && decision.over.is_none()))
}

impl Encoder {
    /// An encoder for one run of a server; `run` is a random number.
    pub fn new(run: u64) -> Self {
        Encoder { run, keys: HashMap::new(), next_number: 0, started: false, content: Vec::new() }
    }

    /// Makes the next block a start block, because it begins a file or the block before was lost.
    pub fn start_over(&mut self) {
        *self = Encoder::new(self.run);
    }

    /// Appends a block to a file's bytes. It sorts the decisions by their ticks.
    pub fn block(&mut self, written_at: ClockReading, counts: Counts, decisions: &mut [Decision], out: &mut Vec<u8>) {
        if self.keys.len() > MAX_KEYS {
            self.start_over();
        }
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        self.encode(written_at, counts, decisions, &mut content);
        raw_blocks::put(&content, out);
        self.content = content;
    }

    fn encode(&mut self, written_at: ClockReading, counts: Counts, decisions: &mut [Decision], out: &mut Vec<u8>) {
        decisions.sort_by_key(|decision| decision.at);
        let starts = !std::mem::replace(&mut self.started, true);
        out.push(if starts { first::START } else { 0 } | if counts.strangers > 0 { first::STRANGERS } else { 0 });
        if starts {
            out.extend_from_slice(&self.run.to_le_bytes());
        }
        varint::put(counts.lost, out);
        if counts.strangers > 0 {
            varint::put(counts.strangers, out);
        }
        varint::put(written_at.tick.0, out);
        varint::put_signed(written_at.unix_ms, out);
        varint::put(decisions.len() as u64, out);
        let mut before = decisions.first().map_or(Tick(0), |first| first.at);
        varint::put(before.0, out);
        for decision in decisions {
            varint::put(decision.at.0 - before.0, out);
            before = decision.at;
            self.decision(decision, out);
        }
    }

    fn decision(&mut self, decision: &Decision, out: &mut Vec<u8>) {
        let known = match self.keys.get_mut(&decision.key) {
            Some(known) if known.tier == decision.tier => {
                varint::put(known.number, out);
                known
            }
            Some(_) | None => {
                let number = self.next_number;
                self.next_number += 1;
                varint::put(number, out);
                put_text(&decision.key, out);
                // A tier's name is preceded by its length plus 1, so that 0 means no tier.
                match &decision.tier {
                    None => out.push(0),
                    Some(tier) => {
                        varint::put(tier.len() as u64 + 1, out);
                        out.extend_from_slice(tier.as_bytes());
                    }
                }
                let numbered = EncodedKey { number, tier: decision.tier.clone(), used_next: 0 };
                self.keys.entry(decision.key.clone()).insert_entry(numbered).into_mut()
            }
        };
        let more = decision.in_flight > 0 || decision.used_today != known.used_next;
        out.push(flags(decision, more));
        if more {
            varint::put(decision.in_flight.into(), out);
            varint::put_signed(decision.used_today.wrapping_sub(known.used_next) as i64, out);
        }
        known.used_next = used_after(decision);
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    varint::put(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

fn flags(decision: &Decision, more: bool) -> u8 {
    let operation = decision.operation.index() as u8;
    let over = decision.over.map_or(0, |over| 1 + over.index() as u8);
    let set = |flag: bool, bit: u8| if flag { bit } else { 0 };
    packed(operation, over)
        | set(decision.refused, bits::REFUSED)
        | set(decision.over_candidate, bits::OVER_CANDIDATE)
        | set(more, bits::MORE)
}

/// Decodes blocks.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    run: Option<u64>,
    keys: Vec<DecodedKey>,
}

#[derive(Debug)]
struct DecodedKey {
    id: KeyId,
    tier: Option<Arc<str>>,
    used_next: u64,
}

impl Decoder {
    /// Decodes a block's content; `None` if it is invalid.
    pub(super) fn decode(&mut self, mut bytes: &[u8]) -> Option<Block> {
        let bytes = &mut bytes;
        let flags = take_byte(bytes)?;
        if flags & !first::ALL != 0 {
            return None;
        }
        if flags & first::START != 0 {
            let (run, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            self.keys.clear();
            self.run = Some(u64::from_le_bytes(*run));
        }
        let run = self.run?;
        let lost = varint::take(bytes)?;
        let strangers = if flags & first::STRANGERS != 0 { varint::take(bytes)? } else { 0 };
        let counts = Counts { lost, strangers };
        let written_at = ClockReading { tick: Tick(varint::take(bytes)?), unix_ms: varint::take_signed(bytes)? };
        let count = usize::try_from(varint::take(bytes)?).ok()?;
        let mut at = varint::take(bytes)?;
        // A decision has at least three bytes, so this allocates no more than the block's size allows.
        let mut decisions = Vec::with_capacity(count.min(bytes.len() / 3));
        for _ in 0..count {
            at = at.checked_add(varint::take(bytes)?)?;
            decisions.push(self.decision(Tick(at), bytes)?);
        }
        bytes.is_empty().then_some(Block { run, counts, written_at, decisions })
    }

    fn decision(&mut self, at: Tick, bytes: &mut &[u8]) -> Option<Decision> {
        let number = usize::try_from(varint::take(bytes)?).ok()?;
        if number == self.keys.len() {
            let id = take_text(bytes, 0)?;
            let tier = if *bytes.first()? == 0 { take_byte(bytes).map(|_| None)? } else { Some(take_text(bytes, 1)?) };
            self.keys.push(DecodedKey { id, tier, used_next: 0 });
        }
        let key = self.keys.get_mut(number)?;
        let flags = take_byte(bytes)?;
        let (operation, over) = unpacked(flags & bits::PACKED);
        let over = match over {
            0 => None,
            over => Some(*Limit::ALL.get(usize::from(over) - 1)?),
        };
        let (mut in_flight, mut used_today) = (0, key.used_next);
        if flags & bits::MORE != 0 {
            in_flight = u32::try_from(varint::take(bytes)?).ok()?;
            used_today = used_today.wrapping_add_signed(varint::take_signed(bytes)?);
        }
        let decision = Decision {
            at,
            key: key.id.clone(),
            tier: key.tier.clone(),
            operation: *Operation::ALL.get(usize::from(operation))?,
            over,
            refused: flags & bits::REFUSED != 0,
            over_candidate: flags & bits::OVER_CANDIDATE != 0,
            in_flight,
            used_today,
        };
        key.used_next = used_after(&decision);
        Some(decision)
    }
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*byte)
}

/// Takes a text whose length was written plus `more`.
fn take_text(bytes: &mut &[u8], more: u64) -> Option<Arc<str>> {
    let length = usize::try_from(varint::take(bytes)?.checked_sub(more)?).ok()?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok().map(Arc::from)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any decision at all, of few keys and tiers, so that they come again.
    pub(in super::super) fn any_decision() -> impl Strategy<Value = Decision> {
        let tier = proptest::sample::select(vec![None, Some(""), Some("gold"), Some("größer")]);
        let over = proptest::sample::select(vec![
            None,
            None,
            Some(Limit::Rate),
            Some(Limit::WriteRate),
            Some(Limit::Daily),
            Some(Limit::InFlight),
        ]);
        let flags = (any::<bool>(), any::<bool>());
        let counts = (prop_oneof![Just(0), any::<u32>()], prop_oneof![Just(0), 1u64..50, any::<u64>()]);
        let at = prop_oneof![0u64..5_000_000_000, any::<u64>()];
        (at, 0u8..4, tier, proptest::sample::select(Operation::ALL.to_vec()), over, flags, counts).prop_map(
            |(at, key, tier, operation, over, (refused, over_candidate), (in_flight, used_today))| Decision {
                at: Tick(at),
                key: ["", "k1", "a key", "ключ"][usize::from(key)].into(),
                tier: tier.map(Into::into),
                operation,
                over,
                refused,
                over_candidate,
                in_flight,
                used_today,
            },
        )
    }

    pub(in super::super) fn any_blocks() -> impl Strategy<Value = Vec<Vec<Decision>>> {
        proptest::collection::vec(proptest::collection::vec(any_decision(), 0..12), 1..8)
    }

    proptest! {
        #[test]
        fn what_is_encoded_reads_back(
            blocks in any_blocks(), lost in any::<u64>(), strangers in prop_oneof![Just(0), any::<u64>()],
            tick in any::<u64>(), unix_ms in any::<i64>(), start_over_at in 0usize..8,
        ) {
            let counts = Counts { lost, strangers };
            let (mut encoder, mut decoder) = (Encoder::new(tick), Decoder::default());
            let written_at = ClockReading { tick: Tick(tick), unix_ms };
            for (n, mut decisions) in blocks.into_iter().enumerate() {
                if n == start_over_at {
                    encoder.start_over();
                }
                let mut bytes = Vec::new();
                encoder.encode(written_at, counts, &mut decisions, &mut bytes);
                prop_assert_eq!(decoder.decode(&bytes), Some(Block { run: tick, counts, written_at, decisions }));
            }
        }

        #[test]
        fn no_bytes_panic_the_decoder(
            bytes in any::<Vec<u8>>(), decisions in proptest::collection::vec(any_decision(), 1..9),
            at in any::<usize>(), with in any::<u8>(),
        ) {
            let mut decisions = decisions;
            prop_assert!(Decoder::default().decode(&bytes).is_none_or(|block| block.decisions.len() <= bytes.len()));
            let mut bytes = Vec::new();
            Encoder::new(1).encode(ClockReading { tick: Tick(0), unix_ms: 0 }, Counts::default(), &mut decisions, &mut bytes);
            let at = at % bytes.len();
            bytes[at] ^= with;
            let _ = Decoder::default().decode(&bytes);
        }
    }

    #[test]
    fn a_block_from_before_strangers_were_counted_reads_as_ever() {
        let old = [1, 7, 0, 0, 0, 0, 0, 0, 0, 3, 5, 2, 1, 9, 0, 0, 2, b'k', b'1', 0, 0b1];
        let mut decoder = Decoder::default();
        let block = decoder.decode(&old).unwrap();
        assert_eq!((block.run, block.counts), (7, Counts { lost: 3, strangers: 0 }));
        assert_eq!((block.written_at, block.decisions.len()), (ClockReading { tick: Tick(5), unix_ms: 1 }, 1));
        assert_eq!(&*block.decisions[0].key, "k1");
        let mut same = Vec::new();
        Encoder::new(7).encode(block.written_at, block.counts, &mut block.decisions.clone(), &mut same);
        assert_eq!(same, old, "what has none is written as before");
        assert_eq!(decoder.decode(&[4, 0, 0, 0, 0, 0]), None, "of a later kind");
    }

    #[test]
    fn as_many_operations_as_there_is_room_for_fit_in_beside_each_limit() {
        let operations = (bits::PACKED + 1) / OVER;
        for (operation, over) in (0..operations).flat_map(|operation| (0..OVER).map(move |over| (operation, over))) {
            let packed = packed(operation, over);
            assert!(packed <= bits::PACKED);
            assert_eq!(unpacked(packed), (operation, over));
        }
    }

    #[test]
    fn a_decision_of_a_known_key_takes_about_six_bytes() {
        let decision = |n: u64| Decision {
            at: Tick(n * 200_000), // 5,000 requests a second
            key: format!("k_{:08x}", n % 1000).into(),
            tier: Some("standard".into()),
            operation: Operation::SetPoints,
            over: (n.is_multiple_of(10)).then_some(Limit::Rate),
            refused: n.is_multiple_of(10),
            over_candidate: false,
            in_flight: 0,
            used_today: 1 + n / 1000,
        };
        let (mut encoder, written_at) = (Encoder::new(1), ClockReading { tick: Tick(0), unix_ms: 0 });
        let mut out = Vec::new();
        encoder.encode(written_at, Counts::default(), &mut (0..1000).map(decision).collect::<Vec<_>>(), &mut out);
        out.clear();
        encoder.encode(written_at, Counts::default(), &mut (1000..2000).map(decision).collect::<Vec<_>>(), &mut out);
        assert!(out.len() < 6500, "{} bytes for 1000 decisions", out.len());
    }

    #[test]
    fn ticks_before_and_after_a_reading_become_wall_time() {
        let reading = ClockReading { tick: Tick(5_000_000_000), unix_ms: 1_000_000 };
        assert_eq!(reading.unix_ms(Tick(5_001_000_000)), 1_000_001);
        assert_eq!(reading.unix_ms(Tick(4_999_999_999)), 999_999);
        assert_eq!(reading.unix_ms(Tick(0)), 995_000);
        assert_eq!(ClockReading { tick: Tick(0), unix_ms: i64::MAX }.unix_ms(Tick(u64::MAX)), i64::MAX);
    }
}
