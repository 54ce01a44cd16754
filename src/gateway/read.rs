//! getPoints, getWarns and getReviews: answered from memory, or by asking the origin once for all callers that miss at
//! the same time. The epoch is read before the origin is asked, and key and configuration are looked up again after
//! each wait. Only the leader of a single-flight may store an answer, and a stale answer stands in for a failed origin
//! only if no write has passed and the key may still see it.

use std::sync::Arc;
use std::time::Duration;

use super::admit::Admitted;
use super::caller::Caller;
use super::{CacheStatus, Gateway, RequestDetails, State};
use crate::cache::{
    Entry, EntryKey, EntryState, Epoch, FetchError, FetchResult, FlightEpoch, FlightKey, Joined, Leader, Realms, Role,
};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::origin::{Authorization, ForwardedFields, Permit};
use crate::wire::{Answer, Fault, Kind, Request, RequestId, TraceContext, first_expiry};

/// What the cache has for a read.
pub(super) enum CacheLookup {
    Hit(Arc<str>),
    /// The origin is to be asked. The stale entry, if there is one, may stand in if the origin fails.
    Miss(Option<Arc<Entry>>),
}

/// Why the origin is asked.
#[derive(Debug)]
pub(super) enum ReadPurpose {
    /// The cache has no fresh answer; the stale one, if there is one, may stand in if the origin fails.
    Miss(Option<Arc<Entry>>),
    /// A stale answer was given and is to be replaced.
    Revalidation,
    /// The answer is to prove the key, whatever the cache has.
    KeyProof,
}

impl ReadPurpose {
    fn is_stale(&self) -> bool {
        matches!(self, ReadPurpose::Miss(Some(_)) | ReadPurpose::Revalidation)
    }

    /// Whether a fresh answer in the cache will do.
    fn accepts_cached(&self) -> bool {
        !matches!(self, ReadPurpose::KeyProof)
    }

    fn stale_entry(self) -> Option<Arc<Entry>> {
        match self {
            ReadPurpose::Miss(entry) => entry,
            ReadPurpose::Revalidation | ReadPurpose::KeyProof => None,
        }
    }
}

impl Gateway {
    /// Looks up the answer in the cache, once.
    pub(super) fn look_up(
        self: &Arc<Self>,
        state: &Arc<State>,
        admitted: &Admitted<'_>,
        request: &Request,
        details: &mut RequestDetails,
    ) -> CacheLookup {
        let entry_key = EntryKey { realm: admitted.key().guild.realm, member: request.member, read: request.operation };
        let now = admitted.checked_at;
        self.invalidate_if_cut_off(state, now);
        let entry = self.core.cache.get(&entry_key);
        match entry.as_ref().map(|entry| (entry, entry.state_at(now, || self.core.clock.unix_ms()))) {
            Some((entry, EntryState::Fresh { ttl })) => {
                details.cache = Some(CacheStatus::Hit { ttl, age: entry.age(now) });
                CacheLookup::Hit(entry.text.clone())
            }
            Some((entry, EntryState::StaleWhileRevalidate)) => {
                details.cache = Some(CacheStatus::WhileRevalidating { age: entry.age(now) });
                self.revalidate(admitted, entry_key);
                CacheLookup::Hit(entry.text.clone())
            }
            Some((_, EntryState::StaleIfError | EntryState::Expired)) | None => CacheLookup::Miss(entry),
        }
    }

    /// Invalidates the cache if this node did not hear of others' writes for too long.
    pub(super) fn invalidate_if_cut_off(&self, state: &State, now: Tick) {
        self.follower.invalidate_if_feed_is_stale(state, now);
        self.core.invalidate_if_peers_are_unheard(state, now);
    }

    /// A read that the cache does not answer. If the origin fails, a stale answer may stand in.
    pub(super) async fn miss(
        &self,
        mut caller: Caller<'_>,
        request: &Request,
        purpose: ReadPurpose,
        mut permit: Option<Permit>,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let shared = self.fetch_shared(&mut caller, request, &purpose, &mut permit, details).await;
        let (result, stale_entry) = match shared.transpose() {
            Some(result) => (result, purpose.stale_entry()),
            None => {
                details.cache = Some(CacheStatus::Forwarded { stale: false, stored: false });
                let result = self.fetch_alone(&mut caller, request, permit, details).await;
                if result.is_ok() {
                    // It is of no flight: no flight from before may answer later callers.
                    self.core.cache.epochs().invalidate_entry(&caller.entry_key(request), Realms::All);
                }
                (result, None)
            }
        };
        match result {
            Ok(entry) => Ok(entry.text.clone()),
            Err(fault) if fault.is_origin_failure() => {
                // The request to the origin may have taken as long as `origin.timeout`.
                self.recheck(&mut caller, request.operation)?;
                self.stale_if_error(&caller, stale_entry, details).ok_or(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Joins the flight that asks the origin, or leads it; `None` if the caller is to ask alone. Key and state are
    /// looked up again each time, and after the epoch was read: a flight never asks under a configuration older than its
    /// epoch. A follower whose leader ended without a result for it joins again, however often: each time, another
    /// leader's key was revoked, moved or refused meanwhile, or it panicked.
    async fn fetch_shared(
        &self,
        caller: &mut Caller<'_>,
        request: &Request,
        purpose: &ReadPurpose,
        permit: &mut Option<Permit>,
        details: &mut RequestDetails,
    ) -> Result<Option<Arc<Entry>>, Fault> {
        let mut own_key_only = false;
        loop {
            let entry_key = caller.entry_key(request);
            if self.handover.must_fetch_alone(&entry_key) {
                // The other process may have written since a flight began here, or since an entry was stored.
                return Ok(None);
            }
            let flight_key = self.flight_key(caller, entry_key, own_key_only);
            let accepts_cached = || purpose.accepts_cached() && self.may_use_cache(caller);
            let is_stored = || accepts_cached() && self.fresh(&entry_key).is_some();
            let queued = self.core.now();
            let joined = async {
                if !purpose.accepts_cached() {
                    // Another's flight will not do, so none ends the wait, and a permit is kept for asking alone.
                    *permit = Some(self.acquire_permit(caller, permit.take(), details).await?);
                }
                let ready = async { self.acquire_permit(caller, permit.take(), details).await };
                self.core.cache.join_when_ready(flight_key, || self.core.now(), ready, is_stored).await
            };
            let joined = joined.await.inspect_err(|_| {
                details.cache = Some(CacheStatus::Forwarded { stale: purpose.is_stale(), stored: false });
            })?;
            details.queued += self.core.now().since(queued);
            let state = self.recheck(caller, request.operation)?;
            match joined {
                // The key belongs to another guild now; dropping a leader lets others lead.
                _ if caller.key.guild.realm != entry_key.realm => {}
                Joined::Leader(leader, permit) => {
                    let (fetched, cache) =
                        self.lead(&state, (leader, permit), caller, flight_key, purpose, details).await;
                    details.cache = Some(cache);
                    return fetched.map(Some).map_err(FetchError::fault);
                }
                // That flight may have begun before the key was refused or its proof lapsed, and proves nothing now.
                Joined::Follower(_) if !purpose.accepts_cached() => return Ok(None),
                Joined::Follower(follower) => {
                    details.cache = Some(CacheStatus::Collapsed);
                    let result = follower.wait().await;
                    // Another key's answer is only for keys that are still valid and of this guild.
                    self.recheck(caller, request.operation)?;
                    match result {
                        // The next leader's key may be refused as well: from here on callers of one key share a flight.
                        Some(Err(FetchError::KeyRefused(key, _))) if key != caller.digest => own_key_only = true,
                        Some(result) if caller.key.guild.realm == entry_key.realm => {
                            return result.map(Some).map_err(FetchError::fault);
                        }
                        Some(_) | None => {}
                    }
                }
                Joined::Stored => {
                    if let Some((entry, ttl)) = self.fresh(&entry_key).filter(|_| self.may_use_cache(caller)) {
                        details.cache = Some(CacheStatus::Hit { ttl, age: entry.age(self.core.now()) });
                        return Ok(Some(entry));
                    }
                }
            }
        }
    }

    /// The fresh entry in the cache, and for how long it stays fresh.
    fn fresh(&self, entry_key: &EntryKey) -> Option<(Arc<Entry>, Duration)> {
        let entry = self.core.cache.get(entry_key)?;
        match entry.state_at(self.core.now(), || self.core.clock.unix_ms()) {
            EntryState::Fresh { ttl } => Some((entry, ttl)),
            EntryState::StaleWhileRevalidate | EntryState::StaleIfError | EntryState::Expired => None,
        }
    }

    /// Asks for the leader and all followers, and gives them the result. Dropping the leader lets them join again.
    async fn lead(
        &self,
        state: &State,
        (leader, permit): (Leader<'_, FlightKey, FlightEpoch, FetchResult>, Permit),
        caller: &Caller<'_>,
        flight_key: FlightKey,
        purpose: &ReadPurpose,
        details: &mut RequestDetails,
    ) -> (FetchResult, CacheStatus) {
        let (entry_key, stale) = (flight_key.entry, purpose.is_stale());
        let not_stored = CacheStatus::Forwarded { stale, stored: false };
        // Another flight may have ended between this caller's look-up and its joining.
        if purpose.accepts_cached()
            && self.may_use_cache(caller)
            && let Some((entry, ttl)) =
                self.fresh(&entry_key).filter(|(entry, _)| entry.epoch == leader.epoch().of_answer)
        {
            leader.complete(Ok(entry.clone()));
            let age = entry.age(self.core.now());
            return (Ok(entry), CacheStatus::Hit { ttl, age });
        }
        match self.fetch(state, caller, permit, (entry_key, leader.epoch().of_answer), details).await {
            not_sent @ Err(FetchError::NotSent(_)) => (not_sent, not_stored),
            // A failure of the origin concerns all of them, whatever became of the leader's key.
            Err(error @ FetchError::Fault(fault)) if fault.is_origin_failure() => {
                leader.complete(Err(error));
                (Err(error), not_stored)
            }
            fetched if !self.is_of_realm(caller, entry_key.realm) => {
                // The origin may have answered for another guild, where no flight from before may answer later callers.
                self.core.cache.epochs().invalidate_member(entry_key.member);
                (fetched, not_stored)
            }
            Ok(entry) => {
                let (refusals, now) = (&self.core.origin_refusals, self.core.now());
                let (cache, realms) = (&self.core.cache, caller.realms(entry_key.realm));
                if cache.epochs().has_settled_since(leader.epoch(), &entry_key, now) {
                    // Another flight may ask, or have asked, after that moment, for what is kept.
                    cache.epochs().invalidate_entry(&entry_key, realms);
                }
                if flight_key.restricted_to.is_some() || refusals.any() {
                    // Where several flights may ask for one entry, each answer is possibly overtaken.
                    cache.invalidate_if_unsettled(&entry_key, realms, now);
                }
                let stored = !self.handover.has_successor() && cache.insert(entry_key, &entry, realms, now);
                if flight_key.restricted_to.is_some() {
                    refusals.remove(&caller.digest);
                }
                leader.complete(Ok(entry.clone()));
                (Ok(entry), CacheStatus::Forwarded { stale, stored })
            }
            Err(error) => {
                if let FetchError::KeyRefused(key, _) = error {
                    self.core.origin_refusals.insert(key);
                }
                // Failures and refusals are never stored.
                leader.complete(Err(error));
                (Err(error), not_stored)
            }
        }
    }

    /// The flight that a caller joins: shared with all callers of the realm or, if `own_key_only` or if the origin last
    /// refused its key, with callers of the same key only.
    fn flight_key(&self, caller: &Caller<'_>, entry: EntryKey, own_key_only: bool) -> FlightKey {
        let own_key_only = own_key_only || self.core.origin_refusals.contains(&caller.digest);
        FlightKey { entry, restricted_to: own_key_only.then_some(caller.digest) }
    }

    /// Asks for this caller only; the answer is not stored.
    async fn fetch_alone(
        &self,
        caller: &mut Caller<'_>,
        request: &Request,
        permit: Option<Permit>,
        details: &mut RequestDetails,
    ) -> Result<Arc<Entry>, Fault> {
        let permit = self.acquire_permit(caller, permit, details).await?;
        let state = self.recheck(caller, request.operation)?;
        let entry_key = caller.entry_key(request);
        let epoch = self.core.cache.epoch(&entry_key);
        self.fetch(&state, caller, permit, (entry_key, epoch), details).await.map_err(FetchError::fault)
    }

    /// Asks the origin. The time from which the answer's age counts is read before. If a map contains a warn that has
    /// expired when it arrives, the origin's clock is behind ours and its next answer will differ, so this one is not
    /// stored (guarantee 4).
    async fn fetch(
        &self,
        state: &State,
        caller: &Caller<'_>,
        permit: Permit,
        (entry_key, epoch): (EntryKey, Epoch),
        details: &mut RequestDetails,
    ) -> FetchResult {
        let asked = self.core.now();
        let request = Request::read(entry_key.read, entry_key.member);
        let text = self.ask_origin(state, caller, permit, request, None, details).await?;
        let answered = self.core.now();
        let row = entry_key.read.row();
        let expires = match (row.answer, row.kind) {
            (Answer::Map { expires: true }, Kind::Read { section, .. }) => first_expiry(&text, section, request.member),
            _ => None,
        };
        let has_expired = expires.is_some_and(|expires| expires <= self.core.clock.unix());
        let may_store = self.core.peers(state).is_none_or(|peers| peers.may_store(answered));
        let freshness = if has_expired || !may_store { Freshness::NONE } else { state.config.cache.of(entry_key.read) };
        Ok(Arc::new(Entry::new((entry_key, epoch), text, (asked, answered), freshness, expires)))
    }

    /// The stale answer that may stand in for a failed origin (RFC 5861), unless a write has passed or the key may not
    /// have it any more.
    fn stale_if_error(
        &self,
        caller: &Caller<'_>,
        entry: Option<Arc<Entry>>,
        details: &mut RequestDetails,
    ) -> Option<Arc<str>> {
        let is_of_caller = |entry: &Entry| caller.key.guild.realm == entry.key.realm && self.may_use_cache(caller);
        let entry = entry.filter(|entry| is_of_caller(entry) && self.core.cache.is_current(&entry.key, entry))?;
        let now = self.core.now();
        if entry.state_at(now, || self.core.clock.unix_ms()) == EntryState::Expired {
            return None;
        }
        details.cache = Some(CacheStatus::IfError { age: entry.age(now) });
        Some(entry.text.clone())
    }

    /// Asks for a new answer in a task of its own, unless that is being done already or would have to wait for a
    /// permit.
    fn revalidate(self: &Arc<Self>, admitted: &Admitted<'_>, entry_key: EntryKey) {
        let caller = admitted.caller();
        let flight_key = self.flight_key(&caller, entry_key, false);
        if self.core.cache.is_in_flight(&flight_key) {
            return;
        }
        let Some(permit) = self.core.state().origin.try_permit(caller.owner()) else { return };
        let gateway = self.clone();
        let Caller { key, learned_key, digest, forwarded, stranger } = caller;
        let authorization = forwarded.authorization.0.to_vec();
        tokio::spawn(async move {
            let Role::Leader(leader) = gateway.core.cache.join(flight_key, || gateway.core.now()) else { return };
            // No caller waits for it, so that it belongs to no trace.
            let forwarded =
                ForwardedFields { authorization: Authorization(&authorization), trace: TraceContext::default() };
            let mut caller = Caller { key, learned_key, digest, forwarded, stranger };
            let Ok(state) = gateway.recheck(&mut caller, entry_key.read) else { return };
            // No caller waits for it: the origin has logged a failure, and the stale answer stays.
            if caller.key.guild.realm == entry_key.realm {
                let (purpose, mut details) = (ReadPurpose::Revalidation, RequestDetails::new(RequestId::random()));
                let _ = gateway.lead(&state, (leader, permit), &caller, flight_key, &purpose, &mut details).await;
            }
        });
    }
}
