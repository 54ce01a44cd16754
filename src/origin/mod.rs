//! Whom we ask: the built-in backend, by a call, or an HTTP upstream (contract section 1,
//! "Built-in backend" and "Upstream").

mod builtin;
mod http;

use std::sync::Arc;

use crate::model::GuildId;
use crate::wire::{Fault, Request, RequestId};

pub use builtin::Builtin;
pub use http::{HttpOrigin, Owner, Tls};

/// One question to an origin.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    pub request: Request,
    /// Whose members these are; the built-in backend asks for it, an HTTP origin knows by the key.
    pub guild: &'q GuildId,
    /// The key as it came, for an HTTP origin.
    pub authorization: Authorization<'q>,
    pub id: RequestId,
}

/// Leave to ask the origin once, until it is dropped: of an HTTP origin it is one of `max_in_flight` places. The
/// built-in backend needs no places: it does not wait for anybody who could be slow for one key and not for others.
#[derive(Debug)]
pub struct Place(#[expect(dead_code, reason = "it is held until it is dropped")] Option<http::Place>);

/// Whether a request may still be sent: its key may have been taken away meanwhile.
pub type MaySend<'m> = &'m (dyn Fn() -> Result<(), Fault> + Sync);

/// The raw value of `Authorization`; `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct Authorization<'q>(pub &'q [u8]);

impl std::fmt::Debug for Authorization<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authorization(…)")
    }
}

/// The one source of truth behind the cache.
#[derive(Debug)]
pub enum Origin {
    Builtin(Builtin),
    Http(Arc<HttpOrigin>),
}

impl Origin {
    pub fn is_builtin(&self) -> bool {
        matches!(self, Origin::Builtin(_))
    }

    /// A place for a request of `owner`, waited for in turn for `origin.queue_timeout` at most; then 21.
    pub async fn place(&self, owner: Owner, id: RequestId) -> Result<Place, Fault> {
        match self {
            Origin::Builtin(_) => Ok(Place(None)),
            Origin::Http(http) => http.place(owner, id).await.map(|place| Place(Some(place))),
        }
    }

    /// A place for what nobody waits for: one that `owner` may have at once, or none.
    pub fn place_at_once(&self, owner: Owner) -> Option<Place> {
        match self {
            Origin::Builtin(_) => Some(Place(None)),
            Origin::Http(http) => http.place_at_once(owner).map(|place| Place(Some(place))),
        }
    }

    /// The configuration that this is the origin of is in force from now on.
    pub fn takes_over(&self) {
        match self {
            Origin::Builtin(_) => {}
            Origin::Http(http) => http.takes_over(),
        }
    }

    /// Asks once (an HTTP origin, for reads that nothing came back from, up to `origin.retries` times more). The answer is
    /// whole and usable, or the fault says what it was instead. `may_send` is asked again where a connection, or a retry,
    /// was waited for; what it refuses is not sent.
    pub async fn ask(&self, _place: &Place, question: &Question<'_>, may_send: MaySend<'_>) -> Result<String, Fault> {
        match self {
            Origin::Builtin(builtin) => builtin.ask(question).await,
            Origin::Http(http) => http.ask(question, may_send).await,
        }
    }
}

/// Whether, after this fault, a setPoints may have happened all the same (contract section 1:
/// "After 22, or 20 to setPoints, it may have happened").
pub fn may_have_happened(fault: Fault) -> bool {
    matches!(fault, Fault::NoUsableAnswer | Fault::OriginTimeout)
}
