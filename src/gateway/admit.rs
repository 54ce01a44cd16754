use std::sync::Arc;

use super::{CacheUse, Facts, Gateway, Head, State};
use crate::clock::seconds_up;
use crate::keys::{Key, UnderWay, is_mistyped};
use crate::limits::{Ask, Verdict};
use crate::model::{Digest, Scope};
use crate::origin::{Authorization, Question};
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation, Request, RequestId};

/// One who may ask: the only way to the cache and to the origin, and only [`Gateway::admit`]
/// makes one.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    request: UnderWay,
    authorization: Authorization<'h>,
}

impl Admitted<'_> {
    pub(super) fn key(&self) -> &Key {
        self.request.key()
    }

    pub(super) fn question(&self, request: Request, id: RequestId) -> Question<'_> {
        Question { request, guild: &self.key().guild.id, authorization: self.authorization, id }
    }

    /// The same, to be taken along by a task that outlives the request.
    pub(super) fn owned(&self) -> (Arc<Key>, Vec<u8>) {
        (self.request.key().clone(), self.authorization.0.to_vec())
    }
}

impl Gateway {
    /// Key, then its limit (12), then its scope (15). Whoever has no key or an unknown one pays
    /// the address's strangers budget and learns nothing else.
    pub(super) fn admit<'h>(
        &self,
        state: &State,
        operation: Operation,
        head: &Head<'h>,
        facts: &mut Facts,
    ) -> Result<Admitted<'h>, Fault> {
        let limits = &state.config.limits;
        let Some(raw) = head.authorization.filter(|value| !value.is_empty()) else {
            return Err(self.stranger(state, head, Fault::NoKey));
        };
        let found = if is_mistyped(raw) { None } else { state.book.find(&Digest::of(raw), || self.clock.unix()) };
        let Some(key) = found.cloned() else {
            return Err(self.stranger(state, head, Fault::IncorrectKey));
        };
        facts.key = Some(key.clone());
        let request = key.begin();
        let now = self.now();
        key.usage.touch(now);
        let ask = Ask { operation, others: request.others(), now };
        let decided = key.policy.decide(&key.meters, &key.usage, ask, || self.clock.unix());
        if let Some(decisions) = &self.decisions {
            decisions.record(Decision {
                at: now,
                key: key.id.clone(),
                tier: key.tier.clone(),
                operation,
                over: decided.over.map(|(limit, _)| limit),
                refused: decided.over.is_some() && !limits.shadow,
                over_candidate: decided.over_candidate,
                in_flight: request.others(),
                used_today: decided.used_today,
            });
        }
        facts.spent = Some(decided.spent);
        facts.over_candidate = decided.over_candidate;
        if let Some((limit, wait)) = decided.over {
            facts.over_limit = Some(limit);
            if !limits.shadow {
                return Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) });
            }
        }
        if operation.scope() == Scope::Write && key.scope == Scope::Read {
            return Err(Fault::NotAllowed(operation));
        }
        facts.cache = Some(match operation {
            Operation::Read(_) => CacheUse::Refused,
            Operation::SetPoints => CacheUse::Method,
        });
        Ok(Admitted { request, authorization: Authorization(raw) })
    }

    fn stranger(&self, state: &State, head: &Head<'_>, fault: Fault) -> Fault {
        let limits = &state.config.limits;
        match state.strangers.decide(head.client, self.now()) {
            Verdict::Refused { wait } if !limits.shadow => {
                Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) }
            }
            Verdict::Refused { .. } | Verdict::Admitted => fault,
        }
    }
}
