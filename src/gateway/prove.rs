//! A request whose key only the origin can judge (`keys.source = "origin"`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::admit::{Pays, Unproven};
use super::ask::Caller;
use super::read::Asking;
use super::{Body, Facts, Gateway, State};
use crate::cache::{Lead, ReadySeat};
use crate::keys::{InFlightPlace, Learned, Standing, Taught, Told};
use crate::model::Digest;
use crate::origin::Place;
use crate::wire::{Fault, Read, Request};

/// How often a caller takes a seat where the one who asks is lost (a panic) before it gives up.
const BOARDINGS: usize = 4;

/// How long a key that was good waits for what another of its requests asks before it asks for
/// itself: an operation that hangs at the origin holds the others up no longer.
const PATIENCE: Duration = Duration::from_millis(250);

/// What is asked with an unproven key, and from where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'h> {
    pub(super) request: Request,
    pub(super) client: IpAddr,
    pub(super) in_flight: &'h InFlightPlace,
}

impl Unproven<'_> {
    fn caller(&self, client: IpAddr) -> Caller<'_> {
        let Unproven { taught, authorization, pays } = self;
        Caller {
            key: taught.key.clone(),
            taught: Some(taught.clone()),
            digest: taught.digest(),
            authorization: *authorization,
            stranger: matches!(pays, Pays::Address(_)).then_some(client),
        }
    }
}

impl Gateway {
    /// A request whose key only the origin can judge. The first one of a key is itself the
    /// question; whoever comes meanwhile waits for what it brings (contract section 3,
    /// `keys.source = "origin"`).
    pub(super) async fn prove<B: Body>(
        self: &Arc<Self>,
        learned: &Learned,
        mut unproven: Unproven<'_>,
        asked: Asked<'_>,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let digest = unproven.taught.digest();
        for _ in 0..BOARDINGS {
            let was_good = matches!(unproven.pays, Pays::Itself(_));
            let caller = unproven.caller(asked.client);
            let place = self.place(&caller, None, facts.id);
            let is_answered = || matches!(learned.find(&digest, self.now()), Standing::Proven(_) | Standing::Refused);
            let told = match learned.questions().board_ready(digest, || (), place, is_answered).await? {
                ReadySeat::Answered => match learned.find(&digest, self.now()) {
                    Standing::Proven(taught) => Some(Told::Proven(taught)),
                    Standing::Refused => Some(Told::Refused),
                    Standing::Lapsed(_) | Standing::Unknown(_) => None,
                },
                ReadySeat::Follow(follow) if was_good => match tokio::time::timeout(PATIENCE, follow.landed()).await {
                    Ok(Some(Told::Failed(_))) | Err(_) => {
                        return self.ask_as_proof(&unproven, asked, None, facts).await;
                    }
                    Ok(told) => told,
                },
                ReadySeat::Follow(follow) => follow.landed().await,
                ReadySeat::Lead(lead, place) => match learned.find(&digest, self.now()) {
                    // Somebody may have landed between this caller's look and its boarding.
                    Standing::Proven(taught) => {
                        lead.land(Told::Proven(taught.clone()));
                        Some(Told::Proven(taught))
                    }
                    Standing::Refused => {
                        lead.land(Told::Refused);
                        Some(Told::Refused)
                    }
                    Standing::Lapsed(taught) | Standing::Unknown(Some(taught)) => {
                        // Whatever it was when this request came: what it has used up since counts.
                        unproven.taught = taught;
                        return self.lead_proof(learned, (lead, place), &unproven, asked, facts).await;
                    }
                    Standing::Unknown(None) => {
                        return self.lead_proof(learned, (lead, place), &unproven, asked, facts).await;
                    }
                },
            };
            match told {
                Some(Told::Proven(taught)) => return self.go_on(unproven, taught, asked, body, facts).await,
                Some(Told::Refused) => return Err(Fault::IncorrectKey),
                Some(Told::Failed(fault)) => return Err(fault),
                None => {}
            }
        }
        Err(Fault::NoUsableAnswer)
    }

    /// Asks the question for all who wait. The key's own limits are charged first: a restart must not
    /// give it a request more than its day has. They are told only once the key is proven.
    async fn lead_proof(
        &self,
        learned: &Learned,
        (lead, place): (Lead<'_, Digest, (), Told>, Place),
        unproven: &Unproven<'_>,
        asked: Asked<'_>,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let Unproven { taught, authorization, pays } = unproven;
        let state = self.state.load_full();
        let operation = asked.request.operation();
        let mut own = Facts { operation: facts.operation, ..Facts::new(facts.id) };
        let _charged = match pays {
            Pays::Itself(_) => None,
            Pays::Address(_) => {
                let (key, in_flight) = (taught.clone(), asked.in_flight);
                match self.admit_taught(&state, key, *authorization, operation, in_flight, &mut own) {
                    Ok(admitted) => Some(admitted),
                    Err(fault) => {
                        // It is known by what it used up, and refused for that; its address owes nothing.
                        self.pay_back(&state, pays, asked);
                        own.over_strangers = facts.over_strangers;
                        *facts = own;
                        return Err(fault);
                    }
                }
            }
        };
        // Of a write by who knows whom, every key that holds the member's answers would pay for what
        // the fence must do: so a key that was never good is asked about with a read.
        let probe = match (asked.request, pays) {
            (Request::SetPoints { member, .. }, Pays::Address(_)) => Some(Request::Read { read: Read::Points, member }),
            (Request::SetPoints { .. } | Request::Read { .. }, _) => None,
        };
        let answer = match probe {
            Some(probe) => {
                let caller = unproven.caller(asked.client);
                self.ask_origin(&state, &caller, place, probe, facts.id).await.map(Into::into)
            }
            None => self.ask_as_proof(unproven, asked, Some(place), facts).await,
        };
        let told = match &answer {
            Err(Fault::IncorrectKey) => Told::Refused,
            Err(fault) if fault.is_origin_failure() => Told::Failed(*fault),
            Ok(_) | Err(_) => Told::Proven(learned.known(taught)),
        };
        let proven = matches!(told, Told::Proven(_));
        if proven && matches!(pays, Pays::Address(_)) {
            self.pay_back(&state, pays, asked);
            own.over_strangers = facts.over_strangers;
            own.cache = facts.cache;
            *facts = own;
        }
        if self.is_in_force(&state) {
            lead.land(told);
        } else {
            // Another origin is in force, which has not said anything of the key yet.
            drop(lead);
            if proven && probe.is_some() {
                return Err(Fault::Unavailable { retry_after: 1 });
            }
        }
        match asked.request {
            Request::SetPoints { member, amount } if proven && probe.is_some() => {
                // Its key is proven now, and it is as that key that it waits.
                let caller = Caller { stranger: None, ..unproven.caller(asked.client) };
                self.write(caller, member, amount, None, facts.id).await
            }
            Request::SetPoints { .. } | Request::Read { .. } => answer,
        }
    }

    /// Asks the origin, whatever is in memory: the answer is to prove the key.
    async fn ask_as_proof(
        &self,
        unproven: &Unproven<'_>,
        asked: Asked<'_>,
        place: Option<Place>,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let caller = unproven.caller(asked.client);
        match asked.request {
            Request::SetPoints { member, amount } => self.write(caller, member, amount, place, facts.id).await,
            Request::Read { read, member } => self.miss(caller, read, member, Asking::AsProof, place, facts).await,
        }
    }

    /// The key is proven by another's question: its own limits hold now, and its address is paid back.
    async fn go_on<B: Body>(
        self: &Arc<Self>,
        unproven: Unproven<'_>,
        taught: Arc<Taught>,
        asked: Asked<'_>,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let Unproven { authorization, pays, .. } = unproven;
        let state = &self.state.load_full();
        self.pay_back(state, &pays, asked);
        let admitted = match pays {
            Pays::Itself(admitted) => admitted,
            Pays::Address(_) => {
                let operation = asked.request.operation();
                self.admit_taught(state, taught, authorization, operation, asked.in_flight, facts)?
            }
        };
        self.perform(state, admitted, asked.request, body, facts).await
    }

    fn pay_back(&self, state: &State, pays: &Pays<'_>, asked: Asked<'_>) {
        if let Pays::Address(Some(paid)) = pays {
            state.strangers.refund(asked.client, *paid, self.now());
        }
    }
}
