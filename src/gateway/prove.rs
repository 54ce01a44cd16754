use std::net::IpAddr;
use std::sync::Arc;

use super::admit::Unproven;
use super::ask::Caller;
use super::{Body, CacheUse, Facts, Gateway, State};
use crate::cache::{EntryKey, Lead, Seat};
use crate::keys::{Learned, Standing, Taught, Told};
use crate::model::Digest;
use crate::wire::{Fault, Request};

/// How often a caller takes a seat where the one who asks is lost (a panic) before it gives up.
const BOARDINGS: usize = 4;

/// What is asked with an unproven key, and from where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) client: IpAddr,
}

impl Gateway {
    /// A request whose key only the origin can judge. The first one of a key is itself the
    /// question; whoever comes meanwhile waits for what it brings (contract section 3,
    /// `keys.source = "origin"`).
    pub(super) async fn prove<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        learned: &Learned,
        unproven: Unproven<'_>,
        asked: Asked,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let digest = unproven.taught.digest();
        for _ in 0..BOARDINGS {
            let told = match learned.questions().board(digest, || ()) {
                Seat::Follow(follow) => follow.landed().await,
                Seat::Lead(lead) => match learned.find(&digest, self.now()) {
                    // Somebody may have landed between this caller's look and its boarding.
                    Standing::Proven(taught) => {
                        lead.land(Told::Proven(taught.clone()));
                        Some(Told::Proven(taught))
                    }
                    Standing::Refused => {
                        lead.land(Told::Refused);
                        Some(Told::Refused)
                    }
                    Standing::Lapsed(_) | Standing::Unknown(_) => {
                        return self.lead_proof(state, learned, lead, &unproven, asked, facts).await;
                    }
                },
            };
            match told {
                Some(Told::Proven(taught)) => return self.go_on(state, unproven, taught, asked, body, facts).await,
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
        state: &State,
        learned: &Learned,
        lead: Lead<'_, Digest, (), Told>,
        unproven: &Unproven<'_>,
        asked: Asked,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let Unproven { taught, authorization, lapsed } = unproven;
        let mut own = Facts::new(facts.id);
        let _charged = match lapsed {
            Some(_) => None,
            None => {
                let operation = asked.request.operation();
                Some(self.admit_taught(state, taught.clone(), *authorization, operation, &mut own)?)
            }
        };
        let answer = self.ask_as_proof(state, unproven, asked.request, facts).await;
        let told = match &answer {
            Err(Fault::IncorrectKey) => Told::Refused,
            Err(fault) if fault.is_origin_failure() => Told::Failed(*fault),
            Ok(_) | Err(_) => Told::Proven(learned.known(taught)),
        };
        if let (Told::Proven(_), None) = (&told, lapsed) {
            state.strangers.refund(asked.client);
            facts.key = own.key;
            facts.spent = own.spent;
            facts.over_limit = own.over_limit;
            facts.over_candidate = own.over_candidate;
        }
        lead.land(told);
        answer
    }

    /// Asks the origin, whatever is in memory: the answer is to prove the key.
    async fn ask_as_proof(
        &self,
        state: &State,
        unproven: &Unproven<'_>,
        request: Request,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let taught = &unproven.taught;
        let caller = Caller { key: &taught.key, taught: Some(taught), authorization: unproven.authorization };
        match request {
            Request::SetPoints { member, amount } => self.write(state, caller, member, amount, facts.id).await,
            Request::Read { read, member } => {
                let at = EntryKey { realm: taught.key.guild.realm, member, read };
                let epoch = self.memory.epoch(&at);
                facts.cache = Some(CacheUse::Asked { stale: false, stored: false });
                let entry = self.ask(state, caller, at, epoch, facts.id).await?;
                let stored = self.keep(caller, at, &entry);
                facts.cache = Some(CacheUse::Asked { stale: false, stored });
                Ok(entry.text.clone())
            }
        }
    }

    /// The key is proven by another's question: its own limits hold now, and its address is paid back.
    async fn go_on<B: Body>(
        self: &Arc<Self>,
        state: &Arc<State>,
        unproven: Unproven<'_>,
        taught: Arc<Taught>,
        asked: Asked,
        body: &mut B,
        facts: &mut Facts,
    ) -> Result<Arc<str>, Fault> {
        let admitted = match unproven.lapsed {
            Some(admitted) => admitted,
            None => {
                state.strangers.refund(asked.client);
                self.admit_taught(state, taught, unproven.authorization, asked.request.operation(), facts)?
            }
        };
        self.perform(state, &admitted, asked.request, body, facts).await
    }
}
