//! One member, an origin, and callers whose history is held to what a register may say.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicI64, Ordering};
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::cache::answers::{Entry, EntryKey, Landed, Realm};
use crate::cache::fence::Epoch;
use crate::cache::flights::{ReadySeat, Seat};
use crate::cache::memory::{Memory, Realms};
use crate::cache::{board_any, move_once, put_unchecked, small_memory};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::sync::Notify;
use crate::wire::{Fault, Read};

/// How a reader and a writer go about it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Way {
    /// As the gateway does.
    #[default]
    Right,
    /// A write moves the epoch before it asks the origin, and not after.
    NoSecondMove,
    /// What came back is kept without a look at the epoch.
    FillWithoutCheck,
    /// A flight is joined whenever it began.
    JoinOldFlight,
    /// Learned keys of one guild are treated as if they were of two, by their readers.
    RealmsTakenApart,
    /// Learned keys of one guild are treated as if they were of two, by their writers.
    WriteOfOneRealm,
}

pub struct World {
    memory: Memory,
    points: AtomicI64,
    history: std::sync::Mutex<LinearizabilityTester<usize, Register<i64>>>,
    /// The epoch before everything: what a caller that looks at none takes.
    first: Epoch,
    questions: Mutex<u64>,
    places: Places,
    way: Way,
    realms: Realms,
    /// Steps for which a write that took effect stays unanswered.
    write_takes: usize,
}

/// The places at the origin that are free, and who waits for one.
struct Places {
    free: Mutex<usize>,
    given_back: Notify,
}

/// One of them, given back when dropped.
struct Place<'p>(&'p Places);

impl Places {
    async fn take(&self) -> Result<Place<'_>, Fault> {
        loop {
            let mut given_back = std::pin::pin!(self.given_back.notified());
            given_back.as_mut().enable();
            let taken = {
                let mut free = self.free.lock().unwrap();
                let taken = *free > 0;
                *free -= usize::from(taken);
                taken
            };
            if taken {
                return Ok(Place(self));
            }
            given_back.await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap() += 1;
        self.0.given_back.notify_waiters();
    }
}

const NOW: Tick = Tick(1);
/// Fewer than there are readers, and enough for two questions at once.
const PLACES: usize = 2;
const HOUR: Duration = Duration::from_secs(3600);

fn entry_key(realm: u64) -> EntryKey {
    EntryKey { realm: Realm(realm), member: "7".parse().unwrap(), read: Read::Points }
}

impl World {
    pub fn new(way: Way, realms: Realms) -> Arc<World> {
        let memory = small_memory(&[0, 1, 2].map(entry_key));
        let first = memory.epoch(&entry_key(0));
        Arc::new(World {
            memory,
            points: AtomicI64::new(0),
            history: std::sync::Mutex::new(LinearizabilityTester::new(Register(0))),
            first,
            questions: Mutex::new(0),
            places: Places { free: Mutex::new(PLACES), given_back: Notify::new() },
            way,
            realms,
            write_takes: if realms == Realms::MayOverlap { 4 } else { 0 },
        })
    }

    /// `Gateway::write`, its origin a cell.
    pub fn set(&self, caller: usize, points: i64) {
        self.history.lock().unwrap().on_invoke(caller, RegisterOp::Write(points)).unwrap();
        if self.way == Way::NoSecondMove {
            move_once(&self.memory, &entry_key(0));
            self.points.store(points, Ordering::SeqCst);
        } else {
            let at = entry_key(0);
            let written = if self.way == Way::WriteOfOneRealm { Realms::Apart } else { self.realms };
            let write = self.memory.begin_write((at.realm, written), at.member, HOUR, NOW);
            self.points.store(points, Ordering::SeqCst);
            // Its answer is on the way: long where much is to happen before it is there.
            (0..self.write_takes).for_each(|_| shuttle::thread::yield_now());
            write.settled();
        }
        self.history.lock().unwrap().on_return(caller, RegisterRet::WriteOk).unwrap();
    }

    /// `Gateway::look` and `Gateway::miss`.
    pub fn get(&self, caller: usize, realm: u64) {
        self.history.lock().unwrap().on_invoke(caller, RegisterOp::Read).unwrap();
        let at = entry_key(realm);
        let entry = match self.memory.held(&at) {
            Some(entry) => entry,
            None => self.miss(at).unwrap(),
        };
        let points = entry.text.parse().unwrap();
        self.history.lock().unwrap().on_return(caller, RegisterRet::ReadOk(points)).unwrap();
    }

    fn miss(&self, at: EntryKey) -> Landed {
        loop {
            let seat = match self.way {
                Way::JoinOldFlight => match board_any(&self.memory, at, self.first) {
                    Seat::Lead(lead) => ReadySeat::Lead(lead, None),
                    Seat::Follow(follow) => ReadySeat::Follow(follow),
                },
                _ => {
                    let place = async { self.places.take().await.map(Some) };
                    shuttle::future::block_on(self.memory.board_ready(at, place, || self.memory.held(&at).is_some()))?
                }
            };
            match seat {
                ReadySeat::Answered => {
                    if let Some(entry) = self.memory.held(&at) {
                        return Ok(entry);
                    }
                }
                ReadySeat::Follow(follow) => {
                    if let Some(landed) = shuttle::future::block_on(follow.landed()) {
                        return landed;
                    }
                }
                ReadySeat::Lead(lead, place) => {
                    if let Some(entry) = self.memory.held(&at).filter(|entry| entry.epoch == lead.epoch()) {
                        lead.land(Ok(entry.clone()));
                        return Ok(entry);
                    }
                    let entry = self.ask(lead.epoch());
                    drop(place);
                    self.keep(at, &entry);
                    lead.land(Ok(entry.clone()));
                    return Ok::<_, Fault>(entry);
                }
            }
        }
    }

    fn ask(&self, epoch: Epoch) -> Arc<Entry> {
        *self.questions.lock().unwrap() += 1;
        let points = self.points.load(Ordering::SeqCst).to_string();
        shuttle::thread::yield_now(); // its answer is on the way
        let z = Duration::ZERO;
        let freshness = Freshness { ttl: HOUR, stale_while_revalidate: z, stale_if_error: z };
        Arc::new(Entry::new(&points, epoch, NOW, freshness, None))
    }

    fn keep(&self, at: EntryKey, entry: &Arc<Entry>) {
        match self.way {
            Way::FillWithoutCheck => {
                // Stamped with the epoch that stands now, as one would who took it too late.
                let z = Duration::ZERO;
                let freshness = Freshness { ttl: HOUR, stale_while_revalidate: z, stale_if_error: z };
                let late = Entry::new(&entry.text, self.memory.epoch(&at), NOW, freshness, None);
                put_unchecked(&self.memory, at, Arc::new(late));
            }
            Way::RealmsTakenApart => drop(self.memory.keep(at, entry, Realms::Apart, NOW)),
            Way::Right | Way::NoSecondMove | Way::JoinOldFlight | Way::WriteOfOneRealm => {
                self.memory.keep(at, entry, self.realms, NOW);
            }
        }
    }

    /// Panics where no order of the calls explains what the callers were told.
    pub fn judge(&self) {
        let history = self.history.lock().unwrap().clone();
        assert!(history.is_consistent(), "not linearizable: {history:#?}");
        assert!(!self.memory.is_in_the_air(&entry_key(0)), "a flight was left behind");
    }

    pub fn questions(&self) -> u64 {
        *self.questions.lock().unwrap()
    }
}
