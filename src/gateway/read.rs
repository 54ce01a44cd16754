//! getPoints, getWarns and getReviews: answers from memory, or asks the origin once for all callers that miss at the
//! same time. The epoch is read before the origin is asked, and the key and the configuration are looked up again after
//! each wait. Only the leader of a single-flight may keep an answer, and a stale answer stands in for a failed origin
//! only if no write has passed and the key may still see it.

use std::sync::Arc;
use std::time::Duration;

use super::admit::Admitted;
use super::ask::Caller;
use super::{CacheUse, Facts, Gateway, State};
use crate::cache::{Entry, EntryKey, Epoch, Landed, Lead, ReadySeat, Seat, Use};
use crate::config::Freshness;
use crate::model::MemberId;
use crate::origin::{Authorization, Place};
use crate::wire::{Fault, Operation, Read, Request, RequestId, first_expiry};

/// How often a caller boards a flight before it asks alone. Once is the rule; it boards again when
/// its leader was lost (a panic) or was refused for a key of its own.
const BOARDINGS: usize = 4;

/// What memory says to a read.
pub(super) enum Found {
    Answer(Arc<str>),
    /// The origin is to be asked; what is held may stand in for it if it fails.
    Nothing(Option<Arc<Entry>>),
}

/// Why the origin is asked.
#[derive(Debug)]
pub(super) enum Asking {
    /// Memory has no fresh answer; what is held may stand in if the origin fails.
    ForWant(Option<Arc<Entry>>),
    /// A stale answer was given, and is to be replaced.
    InPlaceOfStale,
    /// The answer is to prove the key, whatever memory has.
    AsProof,
}

impl Asking {
    fn stale(&self) -> bool {
        matches!(self, Asking::ForWant(Some(_)) | Asking::InPlaceOfStale)
    }

    fn held(self) -> Option<Arc<Entry>> {
        match self {
            Asking::ForWant(held) => held,
            Asking::InPlaceOfStale | Asking::AsProof => None,
        }
    }
}

impl Gateway {
    /// Looks for an answer in memory, once. Where the store was not heard of for too long, none is used any more.
    pub(super) fn look(
        self: &Arc<Self>,
        state: &Arc<State>,
        admitted: &Admitted<'_>,
        read: Read,
        member: MemberId,
        facts: &mut Facts,
    ) -> Found {
        let at = EntryKey { realm: admitted.key().guild.realm, member, read };
        let now = self.now();
        if self.doubt.is_deaf(now) && state.follows_store() {
            self.memory.fence().changed_all();
        }
        let held = self.memory.held(&at);
        match held.as_ref().map(|entry| (entry, entry.good_for(now, || self.clock.unix_ms()))) {
            Some((entry, Use::Fresh { ttl })) => {
                facts.cache = Some(CacheUse::Hit { ttl, age: entry.age(now) });
                Found::Answer(entry.text.clone())
            }
            Some((entry, Use::WhileRevalidating)) => {
                facts.cache = Some(CacheUse::WhileRevalidating { age: entry.age(now) });
                self.revalidate(admitted, at);
                Found::Answer(entry.text.clone())
            }
            Some((_, Use::IfError | Use::Nothing)) | None => Found::Nothing(held),
        }
    }

    /// A read that memory does not answer: joins the flight that asks the origin, or leads it. The key and
    /// the state are looked at again each time, and after the epoch was read: so no flight of an epoch asks
    /// under an older configuration than that epoch's.
    pub(super) async fn miss(
        &self,
        mut caller: Caller<'_>,
        read: Read,
        member: MemberId,
        asking: Asking,
        mut place: Option<Place>,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let (stale, operation) = (asking.stale(), Operation::Read(read));
        let looked_at = caller.entry_key(read, member);
        let (mut at, mut landed) = (looked_at, None);
        for _ in 0..BOARDINGS {
            if self.asks_apart(&at) {
                // A flight may have left before a write to the process beside this one, and so may what
                // is held.
                facts.cache = Some(CacheUse::Asked { stale: false, stored: false });
                return self
                    .ask_alone(&mut caller, read, member, place, facts.id)
                    .await
                    .map(|entry| entry.text.clone());
            }
            let is_answered = || !matches!(asking, Asking::AsProof) && self.fresh(&at).is_some();
            let place = self.place(&caller, place.take(), facts.id);
            let seat = match self.memory.board_ready(at, place, is_answered).await {
                Ok(seat) => seat,
                Err(fault) => {
                    facts.cache = Some(CacheUse::Asked { stale, stored: false });
                    landed = Some(Err(fault));
                    break;
                }
            };
            let state = self.recheck(&mut caller, operation)?;
            let of_another_guild = caller.key.guild.realm != at.realm;
            landed = match seat {
                _ if of_another_guild => None,
                ReadySeat::Lead(lead, place) => {
                    let (answer, cache) = self.lead(&state, (lead, place), &caller, at, &asking, facts.id).await;
                    facts.cache = Some(cache);
                    Some(answer)
                }
                ReadySeat::Follow(follow) => {
                    facts.cache = Some(CacheUse::Collapsed);
                    let landed = follow.landed().await;
                    // What another key asked is for those who still may ask for the same.
                    self.recheck(&mut caller, operation)?;
                    landed.filter(|_| caller.key.guild.realm == at.realm)
                }
                ReadySeat::Answered => self.fresh(&at).map(|(entry, ttl)| {
                    facts.cache = Some(CacheUse::Hit { ttl, age: entry.age(self.now()) });
                    Ok(entry)
                }),
            };
            if landed.is_some() {
                break;
            }
            at = caller.entry_key(read, member);
        }
        let landed = match landed {
            Some(landed) => landed,
            None => {
                facts.cache = Some(CacheUse::Asked { stale, stored: false });
                let answer = self.ask_alone(&mut caller, read, member, place, facts.id).await;
                self.memory.overtake(&at, caller.realms(), self.now());
                answer
            }
        };
        match landed {
            Ok(entry) => Ok(entry.text.clone()),
            Err(fault) if fault.is_origin_failure() => {
                // The question may have taken as long as `origin.timeout`, and this is an answer from memory.
                self.recheck(&mut caller, operation)?;
                let may_have_held = caller.key.guild.realm == looked_at.realm && self.may_have_held(&caller);
                let held = asking.held().filter(|_| may_have_held);
                self.stale_if_error(&looked_at, held, facts).ok_or(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    /// What memory holds that is fresh, and for how long it is.
    fn fresh(&self, at: &EntryKey) -> Option<(Arc<Entry>, Duration)> {
        let entry = self.memory.held(at)?;
        match entry.good_for(self.now(), || self.clock.unix_ms()) {
            Use::Fresh { ttl } => Some((entry, ttl)),
            Use::WhileRevalidating | Use::IfError | Use::Nothing => None,
        }
    }

    /// Asks for everyone aboard, and tells them.
    async fn lead(
        &self,
        state: &State,
        (lead, place): (Lead<'_, EntryKey, Epoch, Landed>, Place),
        caller: &Caller<'_>,
        at: EntryKey,
        asking: &Asking,
        id: RequestId,
    ) -> (Result<Arc<Entry>, Fault>, CacheUse) {
        let (stale, now) = (asking.stale(), self.now());
        // Somebody may have landed between this caller's look into the cache and its boarding.
        if !matches!(asking, Asking::AsProof)
            && let Some(entry) = self.memory.held(&at).filter(|entry| entry.epoch == lead.epoch())
            && let Use::Fresh { ttl } = entry.good_for(now, || self.clock.unix_ms())
        {
            lead.land(Ok(entry.clone()));
            let age = entry.age(now);
            return (Ok(entry), CacheUse::Hit { ttl, age });
        }
        match self.ask(state, caller, place, (at, lead.epoch()), id).await {
            Ok(entry) if !self.is_of_realm(caller, &at) => {
                // The origin may have answered for another guild. The followers board again.
                self.memory.overtake(&at, caller.realms(), self.now());
                (Ok(entry), CacheUse::Asked { stale, stored: false })
            }
            Ok(entry) => {
                let stored = self.keep(caller, at, &entry);
                lead.land(Ok(entry.clone()));
                (Ok(entry), CacheUse::Asked { stale, stored })
            }
            Err(fault) => {
                // 02 is said of the leader's key alone: its followers may have another of the same
                // guild, and board again; a learned key's have the same. An origin's failure is
                // never cached, nor a refusal.
                if fault != Fault::IncorrectKey || caller.taught.is_some() {
                    lead.land(Err(fault));
                }
                (Err(fault), CacheUse::Asked { stale, stored: false })
            }
        }
    }

    /// Asks for this caller alone; what comes is not kept.
    async fn ask_alone(
        &self,
        caller: &mut Caller<'_>,
        read: Read,
        member: MemberId,
        place: Option<Place>,
        id: RequestId,
    ) -> Result<Arc<Entry>, Fault> {
        let place = self.place(caller, place, id).await?;
        let state = self.recheck(caller, Operation::Read(read))?;
        let at = caller.entry_key(read, member);
        self.ask(&state, caller, place, (at, self.memory.epoch(&at)), id).await
    }

    /// Asks the origin. What an answer's age counts from is read before. A map that holds a warn which has
    /// expired when it comes is for those who wait for it, and is never kept (guarantee 4): the origin's
    /// clock is behind ours, be it by milliseconds, and its next answer will be another one.
    async fn ask(
        &self,
        state: &State,
        caller: &Caller<'_>,
        place: Place,
        (at, epoch): (EntryKey, Epoch),
        id: RequestId,
    ) -> Result<Arc<Entry>, Fault> {
        let asked = self.now();
        let text =
            self.ask_origin(state, caller, place, Request::Read { read: at.read, member: at.member }, id).await?;
        let expires = match at.read {
            Read::Warns => first_expiry(&text, at.member),
            Read::Points | Read::Reviews => None,
        };
        let has_expired = expires.is_some_and(|expires| expires <= self.clock.unix());
        let freshness = if has_expired { Freshness::NONE } else { freshness(state, at.read) };
        Ok(Arc::new(Entry::new(&text, epoch, asked, freshness, expires)))
    }

    /// Keeps what a caller was answered, if it may be kept.
    fn keep(&self, caller: &Caller<'_>, at: EntryKey, entry: &Arc<Entry>) -> bool {
        if self.is_aside() {
            return false;
        }
        self.memory.keep(at, entry, caller.realms(), self.now())
    }

    /// The stale answer that may stand in for a failed origin (RFC 5861), never across a write.
    fn stale_if_error(&self, at: &EntryKey, held: Option<Arc<Entry>>, facts: &mut Facts) -> Option<Arc<str>> {
        let entry = held.filter(|entry| self.memory.stands(at, entry))?;
        let now = self.now();
        match entry.good_for(now, || self.clock.unix_ms()) {
            Use::Fresh { .. } | Use::WhileRevalidating | Use::IfError => {
                facts.cache = Some(CacheUse::IfError { age: entry.age(now) });
                Some(entry.text.clone())
            }
            Use::Nothing => None,
        }
    }

    /// Asks for `at` anew, in a task of its own, unless that is being done already or would have to wait for a place.
    fn revalidate(self: &Arc<Self>, admitted: &Admitted<'_>, at: EntryKey) {
        if self.memory.is_in_the_air(&at) {
            return;
        }
        let caller = admitted.caller();
        let Some(place) = self.state.load().origin.place_at_once(caller.owner()) else { return };
        let gateway = self.clone();
        let Caller { key, taught, digest, authorization, stranger } = caller;
        let authorization = authorization.0.to_vec();
        tokio::spawn(async move {
            let Seat::Lead(lead) = gateway.memory.board(at) else { return };
            let authorization = Authorization(&authorization);
            let mut caller = Caller { key, taught, digest, authorization, stranger };
            let Ok(state) = gateway.recheck(&mut caller, Operation::Read(at.read)) else { return };
            // Nobody waits for it: a failure was logged by the origin, and the stale answer stands.
            if caller.key.guild.realm == at.realm {
                let _ = gateway
                    .lead(&state, (lead, place), &caller, at, &Asking::InPlaceOfStale, RequestId::random())
                    .await;
            }
        });
    }
}

fn freshness(state: &State, read: Read) -> Freshness {
    let cache = &state.config.cache;
    match read {
        Read::Points => cache.points,
        Read::Warns => cache.warns,
        Read::Reviews => cache.reviews,
    }
}
