//! Tests of the rules of the bus: two nodes on one stream, whose times the test sets.

use std::time::Duration;

use super::*;

const MEMBER: MemberId = MemberId::new(7).unwrap();

#[derive(Debug, PartialEq)]
enum Heard {
    Dropped(DropReason),
    Begun(u64),
    Over(u64, bool),
    Purged,
}

/// What a node's cache is told.
#[derive(Default)]
struct Recorder(Vec<Heard>);

impl Listener for Recorder {
    fn drop_everything(&mut self, reason: DropReason) {
        self.0.push(Heard::Dropped(reason));
    }

    fn write_begun(&mut self, write: RemoteWrite, member: MemberId) {
        assert_eq!(member, MEMBER);
        self.0.push(Heard::Begun(write.write));
    }

    fn write_over(&mut self, write: RemoteWrite, member: MemberId, settled: bool) {
        assert_eq!(member, MEMBER);
        self.0.push(Heard::Over(write.write, settled));
    }

    fn purge(&mut self, _: Option<&GuildId>, _: Option<MemberId>) {
        self.0.push(Heard::Purged);
    }
}

/// A stream that answers at once.
#[derive(Default)]
struct Stream {
    last: u64,
    entries: Vec<(StreamId, Option<String>)>,
}

impl Stream {
    fn append(&mut self, entries: Vec<String>) {
        for entry in entries {
            self.last += 1;
            self.entries.push((StreamId { millis: self.last, sequence: 0 }, Some(entry)));
        }
    }
}

struct TestNode {
    node: Node,
    heard: Recorder,
}

impl TestNode {
    /// Connected at 0 ms to the server "a".
    fn new(incarnation: u64) -> Self {
        let mut test = TestNode { node: Node::new(Incarnation(incarnation), at(0)), heard: Recorder::default() };
        test.node.connected("a", at(0), &mut test.heard);
        test
    }

    /// Appends what is to be told at `now`, confirmed.
    fn send(&mut self, stream: &mut Stream, now: Tick) {
        if let Some(batch) = self.node.next_batch(now) {
            stream.append(batch);
            self.node.batch_confirmed(&mut self.heard);
        }
    }

    /// Reads what is after the position at `now`; what it means for the cache.
    fn read(&mut self, stream: &Stream, now: Tick) -> Vec<Heard> {
        let position = self.node.position();
        let entries = stream.entries.iter().filter(|(id, _)| position.is_none_or(|after| *id > after)).cloned();
        let is_continuous = stream.entries.iter().any(|(id, _)| Some(*id) == position);
        self.node.read(&Fetched { entries: entries.collect(), is_continuous }, now, &mut self.heard);
        self.heard()
    }

    fn heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.0)
    }

    fn is_stale(&self, now: Tick) -> bool {
        self.node.freshness().is_stale(now)
    }
}

/// Two nodes that have heard each other at 0 ms.
fn two_nodes() -> (Stream, TestNode, TestNode) {
    let (mut stream, mut a, mut b) = (Stream::default(), TestNode::new(1), TestNode::new(2));
    a.send(&mut stream, at(0));
    b.send(&mut stream, at(0));
    assert_eq!(a.read(&stream, at(0)), [Heard::Dropped(DropReason::NotContinuous)]);
    assert_eq!(b.read(&stream, at(0)), [Heard::Dropped(DropReason::NotContinuous)]);
    (stream, a, b)
}

fn at(millis: u64) -> Tick {
    Tick::default().plus(Duration::from_millis(millis))
}

#[test]
fn a_node_is_as_fresh_as_the_sending_of_its_last_own_entry_that_was_confirmed_and_read_back() {
    let (mut stream, mut a, _) = two_nodes();
    assert!(a.node.next_batch(at(149)).is_none(), "no beat is due");
    let beat = a.node.next_batch(at(150)).unwrap();
    stream.append(beat);
    a.read(&stream, at(900));
    assert!(a.is_stale(at(950)), "it was read back, but a server that is cut off from its replicas would do that too");
    a.node.batch_confirmed(&mut a.heard);
    assert!(!a.is_stale(at(1099)) && a.is_stale(at(1100)));
    a.send(&mut stream, at(1100));
    assert!(a.is_stale(at(1100)), "it was confirmed, and not read back");
    a.read(&stream, at(1101));
    assert!(!a.is_stale(at(2049)) && a.is_stale(at(2050)));
}

#[test]
fn a_write_is_heard_from_its_begin_to_its_end_by_others_and_not_by_its_own_node() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, begun) = a.node.begin(MEMBER).unwrap();
    assert!(!a.node.is_announced(write, at(1)));
    a.send(&mut stream, at(1));
    assert!(a.node.is_announced(write, at(1)) && a.node.confirmed() == begun);
    assert_eq!(b.read(&stream, at(1)), [Heard::Begun(write)]);
    let over = a.node.end(write, true);
    a.send(&mut stream, at(2));
    assert_eq!(a.node.confirmed(), over);
    a.node.tell(Notice::Purge { guild: None, member: None });
    a.send(&mut stream, at(3));
    assert_eq!(b.read(&stream, at(3)), [Heard::Over(write, true), Heard::Purged]);
    assert_eq!(a.read(&stream, at(3)), []);
}

#[test]
fn what_was_sent_twice_is_heard_once_in_the_order_of_its_numbers() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    let sent = a.node.next_batch(at(1)).unwrap();
    stream.append(sent.clone()); // and the connection breaks before it is confirmed
    a.node.disconnected();
    assert!(a.node.begin(MEMBER).is_none(), "while the stream is away no write begins");
    a.node.connected("a", at(2), &mut a.heard);
    a.node.end(write, false);
    a.send(&mut stream, at(2));
    stream.append(sent); // what was still under way to the server
    assert_eq!(b.read(&stream, at(3)), [Heard::Begun(write), Heard::Over(write, false)]);
    assert_eq!(a.heard(), [], "the same server has all that was told");
}

#[test]
fn a_gap_in_a_nodes_numbers_drops_everything_and_leaves_its_writes_unknown() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    a.send(&mut stream, at(1));
    b.read(&stream, at(1));
    a.node.end(write, true);
    a.send(&mut stream, at(2));
    stream.entries.pop();
    a.node.tell(Notice::Purge { guild: None, member: None });
    a.send(&mut stream, at(3));
    assert_eq!(b.read(&stream, at(3)), [Heard::Over(write, false), Heard::Dropped(DropReason::Gap), Heard::Purged]);
}

#[test]
fn a_node_that_is_not_known_and_does_not_begin_at_1_counts_as_a_gap_once_the_own_entry_was_read_back() {
    let (mut stream, _, mut b) = two_nodes();
    stream.append(vec!["3 1 beat".to_owned()]);
    assert_eq!(b.read(&stream, at(1)), []);
    stream.append(vec!["4 7 beat".to_owned()]);
    assert_eq!(b.read(&stream, at(2)), [Heard::Dropped(DropReason::Gap)]);
    let mut c = TestNode::new(5);
    assert_eq!(c.read(&stream, at(3)), [Heard::Dropped(DropReason::NotContinuous)], "it is catching up");
}

#[test]
fn an_entry_of_another_form_drops_everything() {
    let (mut stream, _, mut b) = two_nodes();
    stream.append(vec!["3 1 sing".to_owned()]);
    assert_eq!(b.read(&stream, at(1)), [Heard::Dropped(DropReason::BadEntry)]);
    stream.append(vec!["3 2 beat".to_owned()]);
    stream.entries.last_mut().unwrap().1 = None;
    assert_eq!(b.read(&stream, at(2)), [Heard::Dropped(DropReason::BadEntry)]);
}

#[test]
fn the_writes_of_a_node_that_is_silent_for_2_s_are_of_unknown_outcome() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    a.send(&mut stream, at(1));
    assert_eq!(b.read(&stream, at(1)), [Heard::Begun(write)]);
    b.send(&mut stream, at(2000));
    assert_eq!(b.read(&stream, at(5000)), [], "nothing is known of the time after its own entry");
    b.send(&mut stream, at(5000));
    assert_eq!(b.read(&stream, at(5000)), [Heard::Over(write, false)]);
}

#[test]
fn a_write_is_to_be_announced_again_after_a_standstill_or_over_another_connection() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    a.send(&mut stream, at(1));
    assert!(a.node.is_announced(write, at(1000)) && !a.node.is_announced(write, at(1001)), "it may have stood still");
    a.send(&mut stream, at(1500));
    assert!(!a.node.is_announced(write, at(1500)), "it was silent for a while");
    a.node.announce_again(write);
    a.send(&mut stream, at(1501));
    assert!(a.node.is_announced(write, at(1501)));
    a.send(&mut stream, at(2300));
    assert!(a.node.is_announced(write, at(3000)), "it was never silent for a second since");
    a.node.disconnected();
    a.node.connected("a", at(3001), &mut a.heard);
    a.send(&mut stream, at(3001));
    assert!(!a.node.is_announced(write, at(3001)));
    assert_eq!(b.read(&stream, at(3001)), [Heard::Begun(write)], "others know it as one write");
}

#[test]
fn a_write_in_flight_is_known_to_a_node_that_starts_after_its_announcement_has_left_the_stream() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    for millis in (1..12_000).step_by(150) {
        a.send(&mut stream, at(millis));
        assert!(a.node.is_announced(write, at(millis)), "at {millis} ms");
    }
    assert_eq!(b.read(&stream, at(12_000)), [Heard::Begun(write)], "others know it as one write");
    // A second's entries are 7: the stream of the last 10 s.
    stream.entries.drain(..stream.entries.len() - 70);
    let mut c = TestNode::new(5);
    assert_eq!(c.read(&stream, at(12_000)), [Heard::Dropped(DropReason::NotContinuous), Heard::Begun(write)]);
}

#[test]
fn another_server_drops_everything_and_has_the_writes_in_flight_begun_anew() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, begun) = a.node.begin(MEMBER).unwrap();
    a.send(&mut stream, at(1));
    b.read(&stream, at(1));
    stream.entries.truncate(2); // the begin is lost
    let until = at(2010);
    for node in [&mut a, &mut b] {
        node.node.disconnected();
        node.node.connected("b", at(10), &mut node.heard);
        assert_eq!(node.heard().pop(), Some(Heard::Dropped(DropReason::OtherServer { until })));
    }
    a.send(&mut stream, at(11));
    assert!(a.node.is_announced(write, at(11)) && a.node.confirmed() > begun);
    b.send(&mut stream, at(11));
    let dropped = [DropReason::NotContinuous, DropReason::Gap, DropReason::Everything].map(Heard::Dropped);
    let heard = b.read(&stream, at(12));
    assert_eq!(heard[..3], dropped, "the stream is read from its beginning, and what A had begun is forgotten");
    assert_eq!(heard[3..], [Heard::Begun(write)]);
    assert!(!b.is_stale(at(960)) && b.is_stale(at(961)), "it hears over the new server");
}

#[test]
fn a_stream_that_was_removed_or_trimmed_beyond_the_position_drops_everything() {
    let (mut stream, mut a, mut b) = two_nodes();
    let (write, _) = a.node.begin(MEMBER).unwrap();
    a.send(&mut stream, at(1));
    b.read(&stream, at(1));
    stream.entries.clear();
    a.send(&mut stream, at(151));
    assert_eq!(
        b.read(&stream, at(152)),
        [Heard::Over(write, false), Heard::Dropped(DropReason::Removed { until: at(2152) })]
    );
    a.read(&stream, at(152));
    a.heard();
    a.send(&mut stream, at(153));
    let heard = b.read(&stream, at(154));
    assert_eq!(heard.last(), Some(&Heard::Begun(write)), "A has found it out, too: {heard:?}");
}

#[test]
fn a_node_that_says_that_it_stops_is_forgotten() {
    let (mut stream, mut a, mut b) = two_nodes();
    assert_eq!(b.node.others(at(100)), [(Incarnation(1), Duration::from_millis(100))]);
    a.node.tell(Notice::Bye);
    a.send(&mut stream, at(1));
    assert_eq!(b.read(&stream, at(1)), []);
    assert_eq!(b.node.others(at(100)), []);
    assert!(a.node.next_batch(at(10_000)).is_none() && a.node.begin(MEMBER).is_none());
}

#[test]
fn while_the_stream_is_away_any_number_of_purges_takes_bounded_memory_and_is_told_later() {
    let (mut stream, mut a, mut b) = two_nodes();
    a.node.disconnected();
    for _ in 0..100_000 {
        a.node.tell(Notice::Purge { guild: None, member: Some(MEMBER) });
    }
    a.node.connected("a", at(1), &mut a.heard);
    for _ in 0..100 {
        a.send(&mut stream, at(1));
    }
    let heard = b.read(&stream, at(2));
    assert!((4096..10_000).contains(&heard.len()), "{}", heard.len());
    assert!(stream.entries.last().unwrap().1.as_ref().unwrap().ends_with(" purge"), "of everything");
}

#[test]
fn what_other_programs_add_to_the_stream_takes_bounded_memory() {
    let (mut stream, _, mut b) = two_nodes();
    stream.append((10..400).map(|node| format!("{node:x} 1 begun 1 7")).collect());
    let heard = b.read(&stream, at(1));
    assert_eq!(b.node.others(at(1)).len(), 255, "and itself");
    assert!(heard.contains(&Heard::Over(1, false)), "the writes of those that are forgotten are of unknown outcome");
    stream.entries.clear();
    stream.append((1..=10_002).map(|n| format!("5 {n} begun {n} 7")).collect());
    stream.entries.insert(0, (b.node.position().unwrap(), None));
    let heard = b.read(&stream, at(2));
    assert!(heard.contains(&Heard::Dropped(DropReason::Gap)) && heard.contains(&Heard::Over(10_001, false)));
    stream.append(vec![format!("6 {} beat", u64::MAX), "6 5 beat".to_owned()]);
    assert_eq!(b.read(&stream, at(3)).pop(), Some(Heard::Dropped(DropReason::Gap)), "once: the second is an old one");
}
