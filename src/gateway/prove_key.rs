//! A request whose key only the origin can judge (`keys.source = "origin"`). The first request with a key is sent to
//! the origin as its proof; requests with the same key that come meanwhile wait for the result.

use std::sync::Arc;
use std::time::Duration;

use super::admit::{Admitted, Payer, Unproven};
use super::caller::Caller;
use super::read::ReadPurpose;
use super::{Body, CacheStatus, Gateway, RequestDetails};
use crate::cache::{FetchError, Joined, Leader};
use crate::clock::Tick;
use crate::keys::{KeyStatus, LearnedKey, LearnedKeys, ProofResult};
use crate::model::Digest;
use crate::origin::Permit;
use crate::wire::{Fault, Operation, Request};

/// How long a key that was proven before waits for another request to prove it, before its own request is sent to the
/// origin: an operation that hangs there delays the others no longer.
const FOLLOW_WITHIN: Duration = Duration::from_millis(250);

impl Unproven<'_> {
    fn caller(&self) -> Caller<'_> {
        Caller {
            key: self.learned_key.key.clone(),
            learned_key: Some(self.learned_key.clone()),
            digest: self.learned_key.digest(),
            forwarded: self.forwarded,
            stranger: matches!(self.payer, Payer::Address(_)).then_some(self.client),
        }
    }
}

impl Gateway {
    /// Proves the key by the request itself, or waits for the result of another request with the same key (contract
    /// section 3, `keys.source = "origin"`). A caller whose leader ended without a result joins again, however often: each
    /// time, another leader was over its limits or panicked.
    pub(super) async fn prove<B: Body>(
        self: &Arc<Self>,
        learned_keys: &LearnedKeys,
        mut unproven: Unproven<'_>,
        request: Request,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let digest = unproven.learned_key.digest();
        let find = || learned_keys.find(&digest, self.core.now());
        loop {
            let caller = unproven.caller();
            let was_proven = caller.stranger.is_none();
            let queued = self.core.now();
            let permit = self.acquire_permit(&caller, None, details);
            // A request that was sent under an earlier configuration proves nothing any more, and may hang.
            let since = || learned_keys.since();
            let is_stored = || matches!(find(), KeyStatus::Proven(_) | KeyStatus::Refused);
            let joined = learned_keys.flights().join_when_ready(digest, since, permit, is_stored).await;
            let joined = joined.inspect_err(|_| {
                if !request.operation.is_write() {
                    details.cache = Some(CacheStatus::Forwarded { stale: false, stored: false });
                }
            })?;
            details.queued += self.core.now().since(queued);
            let result = match joined {
                Joined::Stored => ProofResult::of(find()),
                Joined::Follower(follower) if was_proven => {
                    match tokio::time::timeout(FOLLOW_WITHIN, follower.wait()).await {
                        Ok(Some(ProofResult::Failed(_))) | Err(_) => {
                            return self.ask(unproven.caller(), request, ReadPurpose::KeyProof, None, details).await;
                        }
                        Ok(result) => result,
                    }
                }
                Joined::Follower(follower) => follower.wait().await,
                Joined::Leader(leader, permit) => match find() {
                    // Another flight may have ended between this caller's look-up and its joining.
                    status @ (KeyStatus::Proven(_) | KeyStatus::Refused) => {
                        let result = ProofResult::of(status);
                        if let Some(result) = &result {
                            leader.complete(result.clone());
                        }
                        result
                    }
                    KeyStatus::Lapsed(known) | KeyStatus::Unknown(Some(known)) => {
                        // The key has become known since this request came, and what it has used up counts.
                        unproven.learned_key = known;
                        return self.lead_proof(learned_keys, (leader, permit), &unproven, request, details).await;
                    }
                    KeyStatus::Unknown(None) => {
                        return self.lead_proof(learned_keys, (leader, permit), &unproven, request, details).await;
                    }
                },
            };
            match result {
                Some(ProofResult::Proven(known)) => {
                    return self.perform_proven(unproven, known, request, body, details).await;
                }
                Some(ProofResult::Refused) => return Err(Fault::IncorrectKey),
                Some(ProofResult::Failed(fault)) => {
                    if !request.operation.is_write() {
                        details.cache = Some(CacheStatus::Collapsed);
                    }
                    return Err(fault);
                }
                None => {}
            }
        }
    }

    /// Asks the origin for all that wait. The key's own limits are charged first: a restart must not give it more
    /// requests than its day has. The caller learns of them only if the key is proven.
    async fn lead_proof(
        &self,
        learned_keys: &LearnedKeys,
        (leader, permit): (Leader<'_, Digest, Tick, ProofResult>, Permit),
        unproven: &Unproven<'_>,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let Unproven { learned_key, forwarded, payer, in_flight, .. } = unproven;
        let is_strangers = matches!(payer, Payer::Address(_));
        let (operation, queued) = (details.operation, details.queued);
        let mut own = RequestDetails { operation, queued, ..RequestDetails::new(details.id) };
        let (key, operation) = (learned_key.clone(), request.operation);
        let _charged = match payer {
            Payer::Key(_) => None,
            Payer::Address(_) => {
                let (state, now) = (self.core.state_full(), self.core.now());
                let charged = match self.admit_proven(&state, key, *forwarded, operation, (in_flight, now), &mut own) {
                    Ok(admitted) => self.charge_if_waiting(&admitted, operation, &mut own).await.map(|()| admitted),
                    Err(fault) => Err(fault),
                };
                match charged {
                    Ok(admitted) => Some(admitted),
                    Err(fault) => {
                        // The key is known by what it has used up, and refused for that; its address gets a refund.
                        payer.refund();
                        own.over_strangers = details.over_strangers;
                        *details = own;
                        return Err(fault);
                    }
                }
            }
        };
        // It may have waited for its limits.
        let state = self.core.state_full();
        // A write invalidates the member's answers of every key, so a key that was never proven is not proven by one:
        // the origin is asked for the member's points first.
        let probe =
            (is_strangers && operation.is_write()).then_some(Request::read(Operation::GetPoints, request.member));
        let answer = match probe {
            Some(probe) => {
                let answer = self.ask_origin(&state, &unproven.caller(), permit, probe, None, details).await;
                answer.map_err(FetchError::fault)
            }
            None => self.ask(unproven.caller(), request, ReadPurpose::KeyProof, Some(permit), details).await,
        };
        let result = match &answer {
            Err(Fault::IncorrectKey) => ProofResult::Refused,
            Err(fault) if fault.is_origin_failure() => ProofResult::Failed(*fault),
            Ok(_) | Err(_) => ProofResult::Proven(learned_keys.remember(learned_key)),
        };
        let is_proven = matches!(result, ProofResult::Proven(_));
        let is_in_force = self.is_in_force(&state);
        if is_proven && is_strangers {
            // Unless a question under another configuration came first: the key is charged for that one, not for this.
            let usage = &learned_key.key.usage;
            if is_in_force && matches!(&result, ProofResult::Proven(known) if known.key.usage.id == usage.id) {
                payer.refund();
            }
            own.over_strangers = details.over_strangers;
            own.cache = details.cache;
            own.upstream = details.upstream.take();
            *details = own;
        }
        if is_in_force {
            leader.complete(result);
        } else {
            // Another origin is in force, which has not answered about the key yet.
            drop(leader);
            if is_proven && probe.is_some() {
                return Err(Fault::Unavailable { retry_after: 1 });
            }
        }
        if is_proven && probe.is_some() {
            // The key is proven now, and waits for its permits as itself.
            let caller = Caller { stranger: None, ..unproven.caller() };
            return self.write(caller, request, None, details).await;
        }
        answer
    }

    /// Goes on with a key that another request has proven: it is charged to the key, and its address gets a refund.
    async fn perform_proven<B: Body>(
        self: &Arc<Self>,
        unproven: Unproven<'_>,
        learned_key: Arc<LearnedKey>,
        request: Request,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let state = self.core.state_full();
        unproven.payer.refund();
        let Unproven { forwarded, payer, in_flight, .. } = unproven;
        let mut admitted = match payer {
            Payer::Key(admitted) => admitted,
            Payer::Address(_) => {
                let (operation, now) = (request.operation, self.core.now());
                let admitted =
                    self.admit_proven(&state, learned_key, forwarded, operation, (in_flight, now), details)?;
                self.charge_if_waiting(&admitted, operation, details).await?;
                admitted
            }
        };
        // It may have waited for its limits.
        admitted.checked_at = self.core.now();
        let caller = admitted.caller();
        if self.may_use_cache(&caller) {
            return self.perform(&self.core.state_full(), admitted, request, body, details).await;
        }
        // The proof took longer than it is valid, so this request, too, asks the origin.
        body.flush_answers().await?;
        self.ask(caller, request, ReadPurpose::KeyProof, None, details).await
    }

    /// Waits for the limits that other nodes have a part in, if this node holds no token of them.
    async fn charge_if_waiting(
        &self,
        admitted: &Admitted<'_>,
        operation: Operation,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        match details.awaits_limits {
            true => self.charge_after_wait(Some(admitted.in_flight()), operation, details).await,
            false => Ok(()),
        }
    }
}
