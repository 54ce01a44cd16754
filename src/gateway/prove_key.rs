//! A request whose key only the origin can judge (`keys.source = "origin"`): it is sent to the origin itself, as the proof
//! of its key. Others with the same key wait for that, and are sent one after the other until one of them proves it.

use std::sync::Arc;

use tokio::time::timeout;

use super::admit::Admitted;
use super::caller::{Caller, queue_time};
use super::{Body, CacheStatus, Gateway, RequestDetails};
use crate::cache::EntryKey;
use crate::keys::LearnedKeys;
use crate::wire::{Fault, Request};

impl Gateway {
    /// Proves the key by the request itself, or goes on with what another request has proven meanwhile. It waits for that
    /// for at most `origin.queue_timeout`; then 21.
    pub(super) async fn prove<B: Body>(
        self: &Arc<Self>,
        learned_keys: &LearnedKeys,
        admitted: Admitted<'_>,
        request: Request,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let secret = admitted.secret;
        let proving = learned_keys.proving(&secret);
        let within = queue_time(&self.core.state());
        let turn = timeout(within, proving.lock()).await.map_err(|_| Fault::Unavailable { retry_after: 1 })?;
        // What the key has used up counts, if it has become known since this request came.
        let mut admitted = admitted.with(learned_keys.find(&secret, self.core.now())?, self.core.now());
        let charged = self.charge_stranger(&mut admitted, request.operation, details).await;
        charged.inspect_err(|_| admitted.refund())?;
        if admitted.is_proven {
            drop(turn);
            admitted.refund();
            admitted.checked_at = self.core.now();
            return self.perform(&self.core.state_full(), admitted, request, body, details).await;
        }
        let caller = admitted.caller(details.id);
        let answer = match request.operation.is_write() {
            true => self.write(caller, request, details).await,
            false => self.read_as_proof(caller, request, details).await,
        };
        match learned_keys.is_proven(&secret, self.core.now()) {
            true => admitted.refund(),
            false if admitted.stranger.is_some() => details.hide_key(),
            false => {}
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
        details.cache = Some(CacheStatus::Forwarded { stale: false, stored: false });
        let place = self.place(&caller).await?;
        let (state, _) = self.key_now(&caller.secret, request.operation, None)?;
        let asked = self.fetch(caller, (place, state), entry_key, gate, None).await;
        details.cache = Some(CacheStatus::Forwarded { stale: false, stored: asked.is_stored == Some(true) });
        details.upstream = asked.upstream;
        asked.answer.map(|entry| entry.text.clone())
    }
}
