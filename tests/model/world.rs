//! One member, an origin, and callers whose history is held to what a register may say.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicI64, Ordering};
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::cache::answer_cache::AnswerCache;
use crate::cache::entry::{Entry, EntryKey, FetchError, FetchResult, FlightKey, Realm};
use crate::cache::epochs::{Epoch, FlightEpoch, Realms};
use crate::cache::single_flight::{Joined, Role};
use crate::cache::{advance_once, join_any, put_unchecked, small_cache};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::sync::Notify;
use crate::wire::{Fault, Operation};

/// How a reader and a writer go about it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Way {
    /// As the gateway does.
    #[default]
    Right,
    /// A write advances the epoch before it asks the origin, and not after.
    NoSecondAdvance,
    /// The answer is stored without a look at the epoch.
    FillWithoutCheck,
    /// A flight is joined whatever its epoch is.
    JoinOldFlight,
    /// Readers treat learned keys of one guild as if they were of two guilds.
    RealmsTakenAsDisjoint,
    /// Writers treat learned keys of one guild as if they were of two guilds.
    WriteOfOneRealm,
}

pub struct World {
    cache: AnswerCache,
    points: AtomicI64,
    history: std::sync::Mutex<LinearizabilityTester<usize, Register<i64>>>,
    /// The epoch before everything: what a caller that looks at none takes.
    first: FlightEpoch,
    requests: Mutex<u64>,
    permits: Permits,
    way: Way,
    /// Whether all realms are of one guild, as those of learned keys may be.
    is_one_guild: bool,
    /// Steps for which a write that took effect stays unanswered.
    write_takes: usize,
}

/// The permits of the origin that are free, and who waits for one.
struct Permits {
    free: Mutex<usize>,
    released: Notify,
}

/// One of them, released when dropped.
struct Permit<'p>(&'p Permits);

impl Permits {
    async fn acquire(&self) -> Result<Permit<'_>, Fault> {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            let taken = {
                let mut free = self.free.lock().unwrap();
                let taken = *free > 0;
                *free -= usize::from(taken);
                taken
            };
            if taken {
                return Ok(Permit(self));
            }
            released.await;
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap() += 1;
        self.0.released.notify_waiters();
    }
}

const NOW: Tick = Tick(1);
/// Fewer than there are readers, and enough for two requests at once.
const PERMITS: usize = 2;
const HOUR: Duration = Duration::from_secs(3600);

fn entry_key(realm: u64) -> EntryKey {
    EntryKey { realm: Realm(realm), member: "7".parse().unwrap(), read: Operation::GetPoints }
}

impl World {
    pub fn new(way: Way, is_one_guild: bool) -> Arc<World> {
        let cache = small_cache(&[0, 1, 2].map(entry_key));
        let first = cache.epochs().flight_epoch(&entry_key(0), NOW);
        Arc::new(World {
            cache,
            points: AtomicI64::new(0),
            history: std::sync::Mutex::new(LinearizabilityTester::new(Register(0))),
            first,
            requests: Mutex::new(0),
            permits: Permits { free: Mutex::new(PERMITS), released: Notify::new() },
            way,
            is_one_guild,
            write_takes: if is_one_guild { 4 } else { 0 },
        })
    }

    /// `Caller::realms`.
    fn realms(&self, at: &EntryKey) -> Realms {
        if self.is_one_guild { Realms::All } else { Realms::One(at.realm) }
    }

    /// `Gateway::write`, its origin a cell.
    pub fn set(&self, caller: usize, points: i64) {
        self.history.lock().unwrap().on_invoke(caller, RegisterOp::Write(points)).unwrap();
        if self.way == Way::NoSecondAdvance {
            advance_once(&self.cache, &entry_key(0));
            self.points.store(points, Ordering::SeqCst);
        } else {
            let at = entry_key(0);
            let realms = if self.way == Way::WriteOfOneRealm { Realms::One(at.realm) } else { self.realms(&at) };
            let write = self.cache.begin_write(at.member, &[Operation::GetPoints], realms, HOUR, NOW);
            self.points.store(points, Ordering::SeqCst);
            // Its answer is on the way: long where much is to happen before it is there.
            (0..self.write_takes).for_each(|_| shuttle::thread::yield_now());
            write.end_settled();
        }
        self.history.lock().unwrap().on_return(caller, RegisterRet::WriteOk).unwrap();
    }

    /// `Gateway::look_up` and `Gateway::miss`.
    pub fn get(&self, caller: usize, realm: u64) {
        self.history.lock().unwrap().on_invoke(caller, RegisterOp::Read).unwrap();
        let at = entry_key(realm);
        let entry = match self.cache.get(&at) {
            Some(entry) => entry,
            None => self.miss(at).unwrap(),
        };
        let points = entry.text.parse().unwrap();
        self.history.lock().unwrap().on_return(caller, RegisterRet::ReadOk(points)).unwrap();
    }

    fn miss(&self, at: EntryKey) -> FetchResult {
        loop {
            let joined = match self.way {
                Way::JoinOldFlight => match join_any(&self.cache, at, self.first) {
                    Role::Leader(leader) => Joined::Leader(leader, None),
                    Role::Follower(follower) => Joined::Follower(follower),
                },
                _ => {
                    let permit = async { self.permits.acquire().await.map(Some) };
                    shuttle::future::block_on(self.cache.join_when_ready(
                        FlightKey::shared(at),
                        || NOW,
                        permit,
                        || self.cache.get(&at).is_some(),
                    ))
                    .map_err(FetchError::Fault)?
                }
            };
            match joined {
                Joined::Stored => {
                    if let Some(entry) = self.cache.get(&at) {
                        return Ok(entry);
                    }
                }
                Joined::Follower(follower) => {
                    if let Some(result) = shuttle::future::block_on(follower.wait()) {
                        return result;
                    }
                }
                Joined::Leader(leader, permit) => {
                    if let Some(entry) = self.cache.get(&at).filter(|entry| entry.epoch == leader.epoch().of_answer) {
                        leader.complete(Ok(entry.clone()));
                        return Ok(entry);
                    }
                    let entry = self.ask(at, leader.epoch().of_answer);
                    drop(permit);
                    self.store(at, &entry);
                    leader.complete(Ok(entry.clone()));
                    return Ok(entry);
                }
            }
        }
    }

    fn ask(&self, at: EntryKey, epoch: Epoch) -> Arc<Entry> {
        *self.requests.lock().unwrap() += 1;
        let points = self.points.load(Ordering::SeqCst).to_string();
        shuttle::thread::yield_now(); // its answer is on the way
        let z = Duration::ZERO;
        let freshness = Freshness { ttl: HOUR, stale_while_revalidate: z, stale_if_error: z };
        Arc::new(Entry::new((at, epoch), points.into(), (NOW, NOW), freshness, None))
    }

    fn store(&self, at: EntryKey, entry: &Arc<Entry>) {
        match self.way {
            Way::FillWithoutCheck => {
                // Stamped with the epoch that stands now, as one would who took it too late.
                let z = Duration::ZERO;
                let freshness = Freshness { ttl: HOUR, stale_while_revalidate: z, stale_if_error: z };
                let late = Entry::new((at, self.cache.epoch(&at)), entry.text.clone(), (NOW, NOW), freshness, None);
                put_unchecked(&self.cache, Arc::new(late));
            }
            Way::RealmsTakenAsDisjoint => drop(self.cache.insert(at, entry, Realms::One(at.realm), NOW)),
            Way::Right | Way::NoSecondAdvance | Way::JoinOldFlight | Way::WriteOfOneRealm => {
                self.cache.insert(at, entry, self.realms(&at), NOW);
            }
        }
    }

    /// Panics where no order of the calls explains what the callers were told.
    pub fn judge(&self) {
        let history = self.history.lock().unwrap().clone();
        assert!(history.is_consistent(), "not linearizable: {history:#?}");
        assert!(!self.cache.is_in_flight(&FlightKey::shared(entry_key(0))), "a flight was left behind");
    }

    pub fn requests(&self) -> u64 {
        *self.requests.lock().unwrap()
    }
}
