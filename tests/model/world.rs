//! One member of one guild, an origin, two secrets, and callers whose history is held to what a register may say.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use shuttle::thread;
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::cache::answers::Answers;
use crate::cache::entry::{Entry, EntryKey, Realm};
use crate::cache::flights::{FlightKey, Joinable};
use crate::cache::gate::{Epoch, Realms};
use crate::cache::{count_write, put_unchecked, small_cache};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::Digest;
use crate::wire::Operation;

/// How the gateway goes about it: as it does, or with a bug.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Way {
    #[default]
    Right,
    /// An answer is kept although a write began after it was asked for.
    KeptAcrossAWrite,
    /// Under *Ask* a question is joined after it was sent.
    SentFlightJoined,
    /// A write moves the epoch and is not counted as under way.
    NoAskDuringAWrite,
    /// A write of unknown outcome ends as any other.
    NoAskAfterAnUnknownOutcome,
    /// Another process serves, and the gate is not told.
    NoAskBesideAnotherProcess,
    /// A write is counted as under way and does not move the epoch.
    EpochNotMovedAtTheBegin,
    /// A reload moves the epochs before it swaps the configuration.
    EpochsMovedBeforeTheSwap,
}

/// What an answer is kept for, and how long a write of unknown outcome may still take effect.
const TTL: Duration = Duration::from_secs(30);

type History = LinearizabilityTester<usize, Register<i64>>;

pub struct World {
    cache: Answers<i64>,
    /// What each origin says; a reload puts the second one in force.
    origins: [AtomicI64; 2],
    in_force: AtomicU64,
    now: AtomicU64,
    history: std::sync::Mutex<History>,
    questions: Mutex<u64>,
    way: Way,
}

fn member_points() -> EntryKey {
    EntryKey { realm: Realm(1), member: "7".parse().unwrap(), read: Operation::GetPoints }
}

impl World {
    pub fn new(way: Way) -> Arc<World> {
        Arc::new(World {
            cache: small_cache(),
            origins: [AtomicI64::new(0), AtomicI64::new(0)],
            in_force: AtomicU64::new(0),
            now: AtomicU64::new(1),
            history: std::sync::Mutex::new(LinearizabilityTester::new(Register(0))),
            questions: Mutex::new(0),
            way,
        })
    }

    fn invoke(&self, caller: usize, call: RegisterOp<i64>) {
        self.history.lock().unwrap().on_invoke(caller, call).unwrap();
    }

    fn return_(&self, caller: usize, answer: RegisterRet<i64>) {
        self.history.lock().unwrap().on_return(caller, answer).unwrap();
    }

    fn now(&self) -> Tick {
        Tick(self.now.load(Ordering::SeqCst))
    }

    fn origin(&self) -> &AtomicI64 {
        &self.origins[self.in_force.load(Ordering::SeqCst) as usize]
    }

    /// `Gateway::write`, its origin a cell.
    pub fn set(&self, caller: usize, points: i64) {
        self.invoke(caller, RegisterOp::Write(points));
        self.during_a_write(|| {
            self.origin().store(points, Ordering::SeqCst);
            for_a_while(); // its answer is on the way
        });
        self.return_(caller, RegisterRet::WriteOk);
    }

    fn during_a_write(&self, write: impl FnOnce()) {
        let (gate, at) = (&self.cache.gate, member_points());
        match self.way {
            Way::NoAskDuringAWrite => {
                gate.invalidate_member(at.member, Realms::One(at.realm));
                write();
            }
            Way::EpochNotMovedAtTheBegin => {
                count_write(gate, &at, 1);
                write();
                count_write(gate, &at, -1);
            }
            _ => {
                let reads = &[Operation::GetPoints];
                let guard = gate.begin_write(at.member, reads, Realms::One(at.realm), self.now().plus(TTL));
                write();
                guard.end(None);
            }
        }
    }

    /// A write whose answer is lost. It takes effect at any time before `TTL` is over, and its caller is told nothing.
    pub fn set_late(self: &Arc<Self>, caller: usize, points: i64) {
        self.invoke(caller, RegisterOp::Write(points));
        let (gate, at) = (&self.cache.gate, member_points());
        let guard = gate.begin_write(at.member, &[Operation::GetPoints], Realms::One(at.realm), self.now().plus(TTL));
        let until = self.now().plus(TTL);
        match self.way {
            Way::NoAskAfterAnUnknownOutcome => guard.end(None),
            _ => guard.end(Some(until)),
        }
        for_a_while();
        self.origin().store(points, Ordering::SeqCst);
        self.now.store(until.0, Ordering::SeqCst);
    }

    /// Another process serves beside this one for a while, and answers a write.
    pub fn hand_over(&self, caller: usize, points: i64) {
        let gate = &self.cache.gate;
        if self.way != Way::NoAskBesideAnotherProcess {
            gate.not_alone();
        }
        for_a_while();
        self.invoke(caller, RegisterOp::Write(points));
        self.origin().store(points, Ordering::SeqCst);
        self.return_(caller, RegisterRet::WriteOk);
        for_a_while();
        gate.alone(Tick(0));
    }

    /// `Gateway::reload` with another origin, which says something else. Who reloads is told when it is done.
    pub fn reload(&self, caller: usize, points: i64) {
        self.origins[1].store(points, Ordering::SeqCst);
        self.invoke(caller, RegisterOp::Write(points));
        if self.way == Way::EpochsMovedBeforeTheSwap {
            self.cache.gate.invalidate_all();
        }
        self.in_force.store(1, Ordering::SeqCst);
        if self.way != Way::EpochsMovedBeforeTheSwap {
            self.cache.gate.invalidate_all();
        }
        self.return_(caller, RegisterRet::WriteOk);
    }

    pub fn purge(&self) {
        self.cache.gate.invalidate_member(member_points().member, Realms::All);
    }

    /// `Gateway::read`.
    pub fn get(self: &Arc<Self>, caller: usize, secret: &str) {
        self.invoke(caller, RegisterOp::Read);
        let points = self.read(Digest::of(secret.as_bytes()));
        self.return_(caller, RegisterRet::ReadOk(points));
    }

    fn read(self: &Arc<Self>, secret: Digest) -> i64 {
        let at = member_points();
        let gate = self.cache.gate.state(&at, self.now());
        if let Some(entry) = gate.epoch().and_then(|epoch| self.cache.get(&at, epoch)) {
            return entry.text.parse().unwrap();
        }
        let flight = FlightKey { secret, entry: at, gate, is_proof: false };
        let (question, _) = self.cache.flights.join(flight, |joinable| self.clone().ask(flight, joinable));
        shuttle::future::block_on(question)
    }

    /// `Gateway::ask` and `Gateway::fetch`.
    async fn ask(self: Arc<Self>, FlightKey { entry: at, gate, .. }: FlightKey, joinable: Joinable<i64>) -> i64 {
        shuttle::future::yield_now().await; // it waits for a place
        if let Some(entry) = gate.epoch().and_then(|epoch| self.cache.get(&at, epoch)) {
            return entry.text.parse().unwrap();
        }
        let origin = self.origin();
        if self.way != Way::SentFlightJoined {
            joinable.sent();
        }
        *self.questions.lock().unwrap() += 1;
        let points = origin.load(Ordering::SeqCst);
        for_a_while(); // its answer is on the way
        let gate_now = self.cache.gate.state(&at, self.now());
        if self.way == Way::KeptAcrossAWrite {
            put_unchecked(&self.cache, &entry(at, gate_now.epoch().unwrap_or_default(), points));
        } else if let Some(epoch) = gate.epoch() {
            self.cache.insert(&entry(at, epoch, points), gate_now);
        }
        points
    }

    /// Panics where no order of the calls explains what the callers were told.
    pub fn judge(&self) {
        let history = self.history.lock().unwrap().clone();
        assert!(history.is_consistent(), "not linearizable: {history:#?}");
        assert_eq!(self.cache.flights.count(), 0, "a flight was left behind");
    }

    /// How often the origin was asked.
    pub fn questions(&self) -> u64 {
        *self.questions.lock().unwrap()
    }

    /// Callers that leave while they wait: the first one drives the question for a while and is gone.
    pub fn leaves(self: &Arc<Self>, secret: &str) {
        let (at, secret) = (member_points(), Digest::of(secret.as_bytes()));
        let flight = FlightKey { secret, entry: at, gate: self.cache.gate.state(&at, self.now()), is_proof: false };
        let (question, _) = self.cache.flights.join(flight, |joinable| self.clone().ask(flight, joinable));
        let _ = question.now_or_never();
    }
}

/// Others may do much meanwhile.
fn for_a_while() {
    (0..20).for_each(|_| thread::yield_now());
}

fn entry(at: EntryKey, epoch: Epoch, points: i64) -> Arc<Entry> {
    let freshness =
        Freshness { ttl: 100 * TTL, stale_while_revalidate: Duration::ZERO, stale_if_error: Duration::ZERO };
    Arc::new(Entry::new((at, epoch), points.to_string().into(), Tick(1), freshness, None))
}
