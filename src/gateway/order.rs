//! The order of refusals (contract section 1, "Order"): what is looked at first, and what a wait makes us look at again.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::poll;

use super::admit::Admitted;
use super::{Body, Gateway, RequestDetails, RequestHeader, State};
use crate::keys::Proof;
use crate::wire::{Fault, Form, Operation, Request, is_form_type};

impl Gateway {
    /// The contract's order of refusals, top to bottom (section 1, "Order").
    pub(super) async fn answer<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        header: &RequestHeader<'_>,
        body: &mut B,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let server = &state.config.server;
        let operation = Operation::at(header.path, &server.base_path).ok_or(Fault::UnknownOperation)?;
        details.operation = Some(operation);
        if header.method != b"POST" {
            return Err(Fault::MethodNotPost);
        }
        if header.content_length.is_some_and(|length| length > server.max_body as u64) {
            return Err(Fault::BodyTooLarge);
        }
        let mut admitted = self.admit(state, operation, header, details)?;
        let mut has_waited = details.awaits_limits;
        if has_waited {
            let charged = Box::pin(self.charge_after_wait(&admitted.request, operation, details)).await;
            charged.inspect_err(|_| admitted.refund(details))?;
        }
        if header.content_encoded || header.content_type.is_some_and(|t| !t.is_empty() && !is_form_type(t)) {
            return Err(Fault::NotAForm);
        }
        let (bytes, waited) = or_wait(pin!(body.whole())).await;
        has_waited |= waited;
        let request = Form::read(bytes?).request(operation);
        // The limits may take up to `cluster.timeout` and the body up to `body_timeout`, so the key and the configuration
        // are looked up again after them.
        let later = has_waited.then(|| self.state_full());
        let state = later.as_ref().unwrap_or(state);
        if has_waited {
            self.look_again(state, &mut admitted, details)?;
            admitted.key.may_use(operation)?;
        }
        let request = request?;
        if admitted.key.guild_departed {
            return Err(Fault::GuildDeparted);
        }
        if admitted.proof != Proof::Valid {
            return Box::pin(self.prove(state, admitted, request, details)).await;
        }
        self.perform(state, &admitted, request, details).await
    }

    /// The operation itself.
    pub(super) async fn perform(
        self: &Arc<Self>,
        state: &Arc<State>,
        admitted: &Admitted<'_>,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        if !request.operation.is_write() {
            return self.read(state, admitted, request, details).await;
        }
        Box::pin(self.write(admitted.caller(), request, details)).await
    }
}

/// What a future gives, and whether that had to be waited for. It is pinned by the caller, so that its memory is not needed
/// twice.
pub(super) async fn or_wait<F: Future>(mut future: Pin<&mut F>) -> (F::Output, bool) {
    match poll!(future.as_mut()) {
        Poll::Ready(output) => (output, false),
        Poll::Pending => (future.await, true),
    }
}
