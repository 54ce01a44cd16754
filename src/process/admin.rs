//! Starts the admin listener: its address, its tokens, and what it is told while the process runs.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::ProcessError;
use crate::admin::{AdminThread, AuditLog, ConfigInForce, Own, ProcessState, ReloadRequest, Shared, Tokens};
use crate::clock::Clock;
use crate::config::{Listen, Loaded};
use crate::edge::{Audience, Listener, ListeningSocket};
use crate::gateway::Gateway;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;
use crate::tls::Certificate;

/// Reloads that are asked for at once; one more is told to try again.
const RELOADS: usize = 4;

/// The admin listener before it serves.
#[derive(Debug)]
pub(super) struct AdminStartup {
    /// `None`: it is off.
    listener: Option<(Listener, Vec<String>, Tokens, Option<Certificate>)>,
    pub(super) state: Arc<ProcessState>,
}

impl AdminStartup {
    /// Binds the address, or takes its socket from `inherited`, and reads the tokens.
    pub(super) fn prepare(
        loaded: &Loaded,
        certificate: Option<Certificate>,
        inherited: &mut Vec<ListeningSocket>,
    ) -> Result<Self, ProcessError> {
        let state = ProcessState::new(
            ConfigInForce { loaded: Arc::new(loaded.clone()), after_restart: Vec::new() },
            Clock::system().unix(),
        );
        let Some(listener) = loaded.config.admin.listener() else { return Ok(AdminStartup { listener: None, state }) };
        let (address, is_tls) = (Listen::Tcp(listener.address), certificate.is_some());
        let socket = match Listener::bind(Audience::Admins, &address, false, is_tls, inherited) {
            Ok(socket) => socket,
            Err(error) if loaded.is_given("admin.listen") => return Err(ProcessError::Failed(error.to_string())),
            // The default address is in use, as by another gateway on this machine.
            Err(error) => {
                tracing::warn!("admin.listen: {error}. This process has no admin listener");
                return Ok(AdminStartup { listener: None, state });
            }
        };
        let tokens =
            Tokens::load(listener).map_err(|faults| ProcessError::Unusable(loaded.faults(&faults).to_string()))?;
        Ok(AdminStartup { listener: Some((socket, listener.hosts.clone(), tokens, certificate)), state })
    }

    /// Its socket, if it is on.
    pub(super) fn socket(&self) -> Option<&Listener> {
        self.listener.as_ref().map(|(listener, ..)| listener)
    }

    /// Serves. The reloads that are asked for come out of the receiver; a demo has none.
    pub(super) fn start(
        self,
        gateway: &Arc<Gateway>,
        store: Option<&Arc<Store>>,
        audit: Option<Arc<AuditLog>>,
        metrics: Metrics,
        is_demo: bool,
    ) -> Result<(Option<AdminThread>, mpsc::Receiver<ReloadRequest>), ProcessError> {
        let (requests, receiver) = mpsc::channel(RELOADS);
        let Some((listener, hosts, tokens, certificate)) = self.listener else { return Ok((None, receiver)) };
        let (gateway, store, reload) = (gateway.clone(), store.cloned(), (!is_demo).then_some(requests));
        let (process, own) = (self.state, Own::default());
        let shared = Shared { gateway, process, tokens, metrics, audit, reload, store, own };
        let thread = AdminThread::start(shared, listener.socket.into(), hosts, certificate);
        let thread = thread.map_err(|e| ProcessError::Failed(format!("the admin listener cannot be started: {e}")))?;
        Ok((Some(thread), receiver))
    }
}
