//! A request whose key only the origin can judge (`keys.source = "origin"`): it is sent to the origin itself, as the proof
//! of its key. Others with the same key wait for that, and are sent one after the other until one of them proves it.

use std::sync::Arc;

use tokio::time::timeout;

use super::admit::{Admitted, Payer, Unproven};
use super::caller::Caller;
use super::{Body, CacheStatus, Gateway, RequestDetails};
use crate::cache::EntryKey;
use crate::config::OriginKind;
use crate::keys::{KeyStatus, LearnedKey, LearnedKeys};
use crate::wire::{Fault, Operation, Request};

impl Gateway {
    /// Proves the key by the request itself, or goes on with what another request has proven meanwhile. It waits for that
    /// for at most `origin.queue_timeout`; then 21.
    pub(super) async fn prove<B: Body>(
        self: &Arc<Self>,
        learned_keys: &LearnedKeys,
        unproven: Unproven<'_>,
        request: Request,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let secret = unproven.learned_key.digest();
        let proving = learned_keys.proving(&secret);
        let within = match &self.core.state().config.origin.kind {
            OriginKind::Http(upstreams) => upstreams.queue_timeout,
            OriginKind::Builtin => return Err(Fault::IncorrectKey), // it knows no such keys
        };
        let turn = timeout(within, proving.lock()).await.map_err(|_| Fault::Unavailable { retry_after: 1 })?;
        let known = match learned_keys.find(&secret, self.core.now()) {
            KeyStatus::Refused => return Err(Fault::IncorrectKey),
            KeyStatus::Proven(known) => {
                drop(turn);
                return self.perform_proven(unproven, known, request, body, details).await;
            }
            // What the key has used up counts, if it has become known since this request came.
            KeyStatus::Lapsed(known) => known,
            KeyStatus::Unknown => unproven.learned_key.clone(),
        };
        let (is_stranger, client) = (matches!(unproven.payer, Payer::Address(_)), unproven.client);
        // A stranger learns of the key's limits only if the key is proven.
        let mut own = RequestDetails { operation: details.operation, ..RequestDetails::new(details.id) };
        let charged;
        let admitted = match &unproven.payer {
            Payer::Key(admitted) => admitted,
            Payer::Address(_) => {
                match self.charge_unproven(&unproven, known.clone(), request.operation, &mut own).await {
                    Ok(admitted) => {
                        charged = admitted;
                        &charged
                    }
                    Err(fault) => {
                        // The key is known by what it has used up, and refused for that.
                        unproven.payer.refund();
                        own.over_strangers = details.over_strangers;
                        *details = own;
                        return Err(fault);
                    }
                }
            }
        };
        let mut caller = admitted.caller(details.id);
        (caller.learned_key, caller.stranger) = (Some(known.clone()), is_stranger.then_some(client));
        let answer = match request.operation.is_write() {
            true => self.write(caller, request, details).await,
            false => self.read_as_proof(caller, request, details).await,
        };
        let is_proven = matches!(learned_keys.find(&secret, self.core.now()), KeyStatus::Proven(_));
        if is_stranger && is_proven {
            unproven.payer.refund();
            own.over_strangers = details.over_strangers;
            own.cache = details.cache;
            own.upstream = details.upstream.take();
            *details = own;
        }
        answer
    }

    /// A read that proves its key: nothing is answered from memory, and its answer is kept as that of any other.
    async fn read_as_proof(
        &self,
        caller: Caller,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let entry_key = EntryKey { realm: caller.key.guild.realm, member: request.member, read: request.operation };
        let gate = self.gate(&self.core.state(), &entry_key, self.core.now());
        let place = self.place(&caller).await;
        let asked = self.fetch(caller, place, entry_key, gate, None).await;
        details.cache = Some(CacheStatus::Forwarded { stale: false, stored: asked.is_stored == Some(true) });
        details.upstream = asked.upstream;
        asked.answer.map(|entry| entry.text.clone())
    }

    /// Charges a key's own limits before the origin is asked about it: a restart must not give it more requests than its
    /// day has.
    async fn charge_unproven<'u>(
        &self,
        unproven: &Unproven<'u>,
        known: Arc<LearnedKey>,
        operation: Operation,
        own: &mut RequestDetails,
    ) -> Result<Admitted<'u>, Fault> {
        let (state, now) = (self.core.state_full(), self.core.now());
        let Unproven { forwarded, in_flight, .. } = unproven;
        let admitted = self.admit_proven(&state, known, *forwarded, operation, (in_flight, now), own)?;
        self.charge_if_waiting(&admitted, operation, own).await.map(|()| admitted)
    }

    /// Goes on with a key that another request has proven: it is charged to the key, and its address gets a refund.
    async fn perform_proven<B: Body>(
        self: &Arc<Self>,
        unproven: Unproven<'_>,
        known: Arc<LearnedKey>,
        request: Request,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        unproven.payer.refund();
        let Unproven { forwarded, payer, in_flight, .. } = unproven;
        let mut admitted = match payer {
            Payer::Key(admitted) => admitted,
            Payer::Address(_) => {
                let (state, operation, now) = (self.core.state_full(), request.operation, self.core.now());
                let admitted = self.admit_proven(&state, known, forwarded, operation, (in_flight, now), details)?;
                self.charge_if_waiting(&admitted, operation, details).await?;
                admitted
            }
        };
        // It may have waited for its limits.
        admitted.checked_at = self.core.now();
        self.perform(&self.core.state_full(), admitted, request, body, details).await
    }

    /// Waits for the limits that other nodes have a part in, if they have to be asked for.
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
