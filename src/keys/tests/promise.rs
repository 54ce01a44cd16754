//! The promise of guarantee 6 over random changes of keys: a reload never raises what a secret or an id has available,
//! and only a key of which neither was seen before begins full.

use std::array;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::keys::Key;
use crate::limits::Level;
use crate::limits::tests::LetIn;

const IDS: [&str; 3] = ["a", "b", "c"];
const SECRETS: [&str; 3] = ["A", "B", "C"];
const TIERS: [&str; 3] = ["one", "four", "nine"];
const GUILDS: [&str; 2] = ["g", "h"];

/// One change of the keys, of the configuration or of time, or requests.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        secret: usize,
        operation: Operation,
        times: u32,
    },
    Wait(u64),
    /// The id of each secret; `None`: it is not listed.
    List([Option<usize>; SECRETS.len()]),
    Move {
        secret: usize,
        id: Option<usize>,
    },
    /// The secrets of one id become the other's, and the reverse.
    Swap(usize, usize),
    SetTier {
        id: usize,
        tier: usize,
    },
    SetGuild {
        id: usize,
        guild: usize,
    },
    SetLimits(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = || 0..IDS.len();
    let secret = || 0..SECRETS.len();
    let operation = select(vec![Operation::GetPoints, Operation::SetPoints]);
    let ask = (secret(), operation, select(vec![1u32, 2, 20]));
    prop_oneof![
        6 => ask.prop_map(|(secret, operation, times)| Step::Ask { secret, operation, times }),
        3 => select(vec![SECOND / 4, SECOND, 3 * SECOND, 9 * SECOND]).prop_map(Step::Wait),
        2 => array::from_fn(|_| proptest::option::of(0..IDS.len())).prop_map(Step::List),
        5 => (secret(), proptest::option::of(id())).prop_map(|(secret, id)| Step::Move { secret, id }),
        1 => (id(), id()).prop_map(|(one, other)| Step::Swap(one, other)),
        2 => (id(), 0..TIERS.len()).prop_map(|(id, tier)| Step::SetTier { id, tier }),
        1 => (id(), 0..GUILDS.len()).prop_map(|(id, guild)| Step::SetGuild { id, guild }),
        1 => (0usize..2).prop_map(Step::SetLimits),
    ]
}

/// The tiers of one of two configurations.
fn tiers(config: usize) -> Limits {
    let rate = |period_ns, burst| Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() };
    let (one, four) = ((rate(SECOND, 1), None), (rate(SECOND, 4), Some(rate(2 * SECOND, 3))));
    let nine = [(rate(SECOND / 4, 9), None), (rate(2 * SECOND, 6), Some(rate(SECOND, 2)))][config];
    let tiers = [("one", one), ("four", four), ("nine", nine)].map(|(name, (main, write))| {
        let (daily, in_flight, candidate) = (None, None, None);
        Arc::new(Tier { name: name.into(), main, write, daily, in_flight, candidate })
    });
    Limits { default_tier: tiers[0].clone(), tiers: tiers.into(), shadow: false, strangers: rate(SECOND, 1) }
}

/// What was seen of one secret or one id.
#[derive(Debug, Default)]
struct Seen {
    requests: LetIn,
    /// Those that a write limit let in.
    writes: LetIn,
    /// A request was let in since it was listed without a gap.
    is_used: bool,
    was_listed: bool,
}

impl Seen {
    /// It is listed with this key now. `before`: it was listed until now, and had so much available.
    fn check_listed(&mut self, key: &Key, before: Option<Available>, now: u64) -> Result<(), TestCaseError> {
        let tier = key.policy.tier();
        self.requests.rates.push(tier.main);
        self.writes.rates.extend(tier.write);
        self.was_listed = true;
        match before {
            Some(before) if self.is_used => {
                let after = Available::of(key, now);
                prop_assert!(after.is_at_most(before), "{after:?} after {before:?}");
            }
            Some(_) => {}
            None => self.is_used = false,
        }
        Ok(())
    }

    fn count(&mut self, key: &Key, operation: Operation, now: u64) {
        self.is_used = true;
        self.requests.times.push(now);
        if operation.is_write() && key.policy.tier().write.is_some() {
            self.writes.times.push(now);
        }
    }
}

/// How many requests a key has available at one moment, of all and of writes, with the part of one that is coming back.
#[derive(Clone, Copy, Debug)]
struct Available {
    requests: f64,
    writes: Option<f64>,
}

impl Available {
    fn of(key: &Key, now: u64) -> Self {
        let levels = key.policy.levels(&key.buckets, &key.usage, Tick(now), 0);
        let tier = key.policy.tier();
        Available {
            requests: available(levels.main, tier.main),
            writes: levels.write.zip(tier.write).map(|(level, rate)| available(level, rate)),
        }
    }

    /// What a key with so much has under the tier of `key`.
    fn up_to_burst_of(self, key: &Key) -> Self {
        let tier = key.policy.tier();
        let writes = self.writes.zip(tier.write).map(|(writes, rate)| writes.min(f64::from(rate.burst.get())));
        Available { requests: self.requests.min(f64::from(tier.main.burst.get())), writes }
    }

    fn is_at_most(self, other: Self) -> bool {
        let writes = self.writes.zip(other.writes);
        self.requests <= other.requests + 1e-6 && writes.is_none_or(|(own, others)| own <= others + 1e-6)
    }
}

fn available(level: Level, rate: Rate) -> f64 {
    let coming_back = if level.remaining == u64::from(rate.burst.get()) {
        0.0
    } else {
        1.0 - level.next.as_secs_f64() * 1e9 / rate.period_ns as f64
    };
    level.remaining as f64 + coming_back
}

/// The keys that are listed, the table made of them, and what was seen of each secret and id.
#[derive(Default)]
struct World {
    now: u64,
    config: usize,
    ids: [Option<usize>; SECRETS.len()],
    tiers: [usize; IDS.len()],
    guilds: [usize; IDS.len()],
    key_table: KeyTable,
    secrets: [Seen; SECRETS.len()],
    keys: [Seen; IDS.len()],
    /// The ids whose key each secret belonged to when it was listed last; several if that key was renamed since.
    last_ids: [[bool; IDS.len()]; SECRETS.len()],
}

impl World {
    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { secret, operation, times } => {
                self.ask(secret, operation, times);
                return Ok(());
            }
            Step::Wait(time) => {
                self.now += time;
                return Ok(());
            }
            Step::List(ids) => self.ids = ids,
            Step::Move { secret, id } => self.ids[secret] = id,
            Step::Swap(one, other) => {
                for id in self.ids.iter_mut().flatten() {
                    *id = if *id == one {
                        other
                    } else if *id == other {
                        one
                    } else {
                        *id
                    };
                }
            }
            Step::SetTier { id, tier } => self.tiers[id] = tier,
            Step::SetGuild { id, guild } => self.guilds[id] = guild,
            Step::SetLimits(config) => self.config = config,
        }
        self.reload()
    }

    fn ask(&mut self, secret: usize, operation: Operation, times: u32) {
        let (Some(id), Some(key)) = (self.ids[secret], find(&self.key_table, secret)) else { return };
        let ask = LimitQuery { operation, in_flight: 0, now: Tick(self.now) };
        for _ in 0..times {
            if key.policy.decide(&key.buckets, &key.usage, ask, || 0).over.is_none() {
                self.secrets[secret].count(&key, operation, self.now);
                self.keys[id].count(&key, operation, self.now);
            }
        }
    }

    fn reload(&mut self) -> Result<(), TestCaseError> {
        let key = |(secret, id): (usize, &Option<usize>)| {
            let id = (*id)?;
            let (tier, guild) = (Some(TIERS[self.tiers[id]].into()), GUILDS[self.guilds[id]].parse().unwrap());
            Some(ListedKey { tier, guild, ..listed(IDS[id], SECRETS[secret]) })
        };
        let keys = self.ids.iter().enumerate().filter_map(key).collect();
        // Before the new table replaces the buckets of this one.
        let before = &self.key_table;
        let available = |key: &Arc<Key>| Available::of(key, self.now);
        let of_secrets =
            array::from_fn::<_, { SECRETS.len() }, _>(|secret| find(before, secret).as_ref().map(available));
        let of_ids = IDS.map(|id| before.keys().find(|key| &*key.id == id).map(available));
        let after = KeyTable::new(keys, &tiers(self.config), before, || Tick(self.now), 0);
        let before = std::mem::replace(&mut self.key_table, after);
        self.end_renamed();
        for (secret, available) in of_secrets.into_iter().enumerate() {
            let Some(key) = find(&self.key_table, secret) else {
                // What its key has gets back meanwhile counts for the secret too.
                let all = tiers(self.config).tiers.into_iter();
                let smallest = |rate: Rate| Rate { burst: NonZeroU32::MIN, ..rate };
                self.secrets[secret].requests.rates.extend(all.clone().map(|tier| smallest(tier.main)));
                self.secrets[secret].writes.rates.extend(all.filter_map(|tier| tier.write.map(smallest)));
                continue;
            };
            self.secrets[secret].check_listed(&key, available, self.now)?;
        }
        for id in 0..IDS.len() {
            let secrets: Vec<usize> = (0..SECRETS.len()).filter(|secret| self.ids[*secret] == Some(id)).collect();
            let Some(key) = secrets.first().and_then(|secret| find(&self.key_table, *secret)) else { continue };
            let after = Available::of(&key, self.now);
            if !self.keys[id].was_listed && secrets.iter().all(|secret| self.last_ids[*secret] == [false; IDS.len()]) {
                prop_assert_eq!(after.requests, f64::from(key.policy.tier().main.burst.get()), "a new key is full");
            }
            if let Some(available) = of_ids[id].filter(|_| self.keys[id].is_used)
                && secrets.iter().all(|secret| find(&before, *secret).is_some_and(|key| &*key.id == IDS[id]))
            {
                let kept = available.up_to_burst_of(&key);
                prop_assert!(kept.is_at_most(after), "{after:?} of {kept:?}: a key keeps what it has");
            }
            self.keys[id].check_listed(&key, of_ids[id], self.now)?;
        }
        for (last, id) in self.last_ids.iter_mut().zip(self.ids) {
            if let Some(id) = id {
                *last = array::from_fn(|other| other == id);
            }
        }
        Ok(())
    }

    /// A key whose secrets are listed under other ids only is renamed: its former id may become a new key's.
    fn end_renamed(&mut self) {
        for id in (0..IDS.len()).filter(|id| !self.ids.contains(&Some(*id))) {
            let secrets = self.ids.iter().zip(&self.last_ids);
            let new_ids: Vec<usize> = secrets.filter(|(_, last)| last[id]).filter_map(|(now, _)| *now).collect();
            if !new_ids.is_empty() {
                self.keys[id] = Seen { was_listed: true, ..Seen::default() };
            }
            for last in self.last_ids.iter_mut().filter(|last| last[id]) {
                new_ids.iter().for_each(|new| last[*new] = true);
            }
        }
    }
}

fn find(key_table: &KeyTable, secret: usize) -> Option<Arc<Key>> {
    key_table.find(&Digest::of(SECRETS[secret].as_bytes()), never).cloned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]
    #[test]
    fn over_any_changes_of_keys_no_secret_and_no_id_gains_anything(
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let mut world = World::default();
        for step in steps {
            world.take(step)?;
        }
        for seen in world.secrets.iter().chain(&world.keys) {
            prop_assert!(seen.requests.is_within() && seen.writes.is_within(), "{:?}", seen);
        }
    }
}
