use std::sync::Arc;

use super::admit::Admitted;
use super::{CacheUse, Facts, Gateway, State};
use crate::cache::{Entry, EntryKey, Lead, Seat, Use};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::origin::{Authorization, Question};
use crate::wire::{Fault, Read, Request, RequestId, first_expiry};

/// How often a caller boards a flight. Once is the rule; it boards again when its leader was lost
/// (a panic). Each time somebody else leads, so more than a few mean that every leader is lost.
const BOARDINGS: usize = 4;

impl Gateway {
    /// A read: a fresh answer from memory, or the flight that asks the origin for it.
    pub(super) async fn read(
        self: &Arc<Self>,
        state: &Arc<State>,
        admitted: &Admitted<'_>,
        read: Read,
        member: MemberId,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let at = EntryKey { realm: admitted.key().guild.realm, member, read };
        let now = self.now();
        let held = self.held(&at);
        match held.as_ref().map(|entry| (entry, entry.good_for(now, || self.clock.unix()))) {
            Some((entry, Use::Fresh { ttl })) => {
                facts.cache = Some(CacheUse::Hit { ttl, age: entry.age(now) });
                return Ok(entry.text.clone());
            }
            Some((entry, Use::WhileRevalidating)) => {
                facts.cache = Some(CacheUse::WhileRevalidating { age: entry.age(now) });
                self.revalidate(state, admitted, at);
                return Ok(entry.text.clone());
            }
            Some((_, Use::IfError | Use::Nothing)) | None => {}
        }
        // Boxed, so that a connection that only ever hits does not carry the room for a miss.
        Box::pin(self.miss(state, admitted, at, held, facts)).await
    }

    /// The entry held for `at`, if nothing was written since it was asked for.
    fn held(&self, at: &EntryKey) -> Option<Arc<Entry>> {
        let epoch = self.fence.epoch(at.member, at.read);
        self.answers.get(at).filter(|entry| entry.epoch == epoch)
    }

    async fn miss(
        &self,
        state: &State,
        admitted: &Admitted<'_>,
        at: EntryKey,
        held: Option<Arc<Entry>>,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let question = admitted.question(Request::Read { read: at.read, member: at.member }, facts.id);
        let mut landed = Err(Fault::NoUsableAnswer);
        for _ in 0..BOARDINGS {
            match self.flights.board(at, || self.fence.epoch(at.member, at.read)) {
                Seat::Lead(lead) => {
                    let (answer, stored) = self.lead(state, lead, &question, at).await;
                    facts.cache = Some(CacheUse::Asked { stale: held.is_some(), stored });
                    landed = answer;
                    break;
                }
                Seat::Follow(follow) => {
                    facts.cache = Some(CacheUse::Collapsed);
                    if let Some(answer) = follow.landed().await {
                        landed = answer;
                        break;
                    }
                }
            }
        }
        match landed {
            Ok(entry) => Ok(entry.text.clone()),
            Err(fault) if fault.is_origin_failure() => self.stale_if_error(&at, held, facts).ok_or(fault),
            Err(fault) => Err(fault),
        }
    }

    /// Asks the origin, keeps what may be kept, and tells the followers. The second value is
    /// whether it was kept.
    async fn lead(
        &self,
        state: &State,
        lead: Lead<'_>,
        question: &Question<'_>,
        at: EntryKey,
    ) -> (Result<Arc<Entry>, Fault>, bool) {
        let (epoch, asked) = (lead.epoch(), self.now());
        // Somebody may have landed between this caller's look into the cache and its boarding.
        let landed_just_now = self.held(&at).filter(|entry| entry.epoch == epoch);
        if let Some(entry) = landed_just_now
            && matches!(entry.good_for(asked, || self.clock.unix()), Use::Fresh { .. })
        {
            lead.land(Ok(entry.clone()));
            return (Ok(entry), false);
        }
        let answer = state.origin.ask(question).await;
        let answer = answer.map(|text| {
            let expires = match at.read {
                Read::Warns => first_expiry(&text, at.member, self.clock.unix()),
                Read::Points | Read::Reviews => None,
            };
            Arc::new(Entry::new(&text, epoch, asked, freshness(state, at.read), expires))
        });
        let stored = match &answer {
            Ok(entry) => self.keep(at, entry),
            Err(_) => false, // an origin's failure is never cached, nor a refusal (guarantee 4)
        };
        lead.land(answer.clone());
        (answer, stored)
    }

    fn keep(&self, at: EntryKey, entry: &Arc<Entry>) -> bool {
        let now = self.now();
        if !self.fence.stands(entry.epoch, at.member, at.read) {
            // A write overtook this question, and the origin may have looked after it took effect.
            // Before anyone is told, what may be older is put out of reach: the answers and flights
            // of the epoch that stands, if they began while that write was under way.
            if self.fence.is_unsettled(at.member, now) {
                self.fence.overtaken(at.member, at.read);
            }
            return false;
        }
        let keep = entry.keeps() && self.fence.may_keep(at.member, now);
        if keep {
            self.answers.put(at, entry.clone());
        }
        keep
    }

    /// The stale answer that may stand in for a failed origin (RFC 5861), never across a write.
    fn stale_if_error(&self, at: &EntryKey, held: Option<Arc<Entry>>, facts: &mut Facts) -> Option<Arc<str>> {
        let entry = held.filter(|e| self.fence.stands(e.epoch, at.member, at.read))?;
        let now: Tick = self.now();
        match entry.good_for(now, || self.clock.unix()) {
            Use::Fresh { .. } | Use::WhileRevalidating | Use::IfError => {
                facts.cache = Some(CacheUse::IfError { age: entry.age(now) });
                Some(entry.text.clone())
            }
            Use::Nothing => None,
        }
    }

    /// Asks for `at` anew, in a task of its own, unless that is being done already.
    fn revalidate(self: &Arc<Self>, state: &Arc<State>, admitted: &Admitted<'_>, at: EntryKey) {
        let (gateway, state) = (self.clone(), state.clone());
        let (key, authorization) = admitted.owned();
        tokio::spawn(async move {
            let seat = gateway.flights.board(at, || gateway.fence.epoch(at.member, at.read));
            let Seat::Lead(lead) = seat else { return };
            let question = Question {
                request: Request::Read { read: at.read, member: at.member },
                guild: &key.guild.id,
                authorization: Authorization(&authorization),
                id: RequestId::random(),
            };
            // Nobody waits for it: a failure was logged by the origin, and the stale answer stands.
            let _ = gateway.lead(&state, lead, &question, at).await;
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
