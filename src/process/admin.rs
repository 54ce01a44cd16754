//! Starts the admin listener: its address, its tokens, and what it is told while the process runs.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::ProcessError;
use crate::admin::{Admin, AdminThread, AuditLog, ConfigText, ProcessState, ReloadRequest, Tokens};
use crate::clock::Clock;
use crate::config::{AdminListener, Loaded};
use crate::edge::{ListeningSocket, NOT_PERMITTED};
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
    listener: Option<(TcpListener, Vec<String>, Tokens, Option<Certificate>)>,
    pub(super) state: Arc<ProcessState>,
}

impl AdminStartup {
    /// Binds the address, or takes its socket from `inherited`, and reads the tokens.
    pub(super) fn prepare(
        loaded: &Loaded,
        certificate: Option<Certificate>,
        is_demo: bool,
        inherited: &mut Vec<ListeningSocket>,
    ) -> Result<Self, ProcessError> {
        let state = ProcessState::new(ConfigText::new(Arc::new(loaded.clone()), &[]), Clock::system().unix());
        let Some(listener) = &loaded.config.admin.listener else { return Ok(AdminStartup { listener: None, state }) };
        let is_given = loaded.is_given("admin.listen");
        let Some(socket) = bind(listener, is_given, is_demo, inherited)? else {
            return Ok(AdminStartup { listener: None, state });
        };
        let tokens =
            Tokens::load(listener).map_err(|faults| ProcessError::Unusable(loaded.faults(&faults).to_string()))?;
        Tokens::warnings(listener).for_each(|warning| tracing::warn!("{warning}"));
        if let Some(warning) = certificate.as_ref().and_then(|certificate| certificate.warning.as_ref()) {
            tracing::warn!("{warning}");
        }
        Ok(AdminStartup { listener: Some((socket, listener.hosts.clone(), tokens, certificate)), state })
    }

    /// The same socket, for another process.
    pub(super) fn share(&self, loaded: &Loaded) -> io::Result<Option<ListeningSocket>> {
        let (Some((socket, ..)), Some(listener)) = (&self.listener, &loaded.config.admin.listener) else {
            return Ok(None);
        };
        ListeningSocket::new(name_of(listener), socket.try_clone()?.into()).map(Some)
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
        let Some((socket, hosts, tokens, certificate)) = self.listener else { return Ok((None, receiver)) };
        let admin = Admin {
            gateway: gateway.clone(),
            process: self.state,
            tokens,
            audit,
            reload: (!is_demo).then_some(requests),
            store: store.cloned(),
            certificate,
            metrics,
            hosts,
        };
        let thread = admin.start(socket);
        let thread = thread.map_err(|e| ProcessError::Failed(format!("the admin listener cannot be started: {e}")))?;
        Ok((Some(thread), receiver))
    }
}

/// Binds the address. `None`: it is the default one and in use, as by another gateway on this machine. `is_given`: the
/// configuration names it.
fn bind(
    listener: &AdminListener,
    is_given: bool,
    is_demo: bool,
    inherited: &mut Vec<ListeningSocket>,
) -> Result<Option<TcpListener>, ProcessError> {
    if let Some(socket) = ListeningSocket::take_from(inherited, &name_of(listener)) {
        return Ok(Some(socket.into()));
    }
    let address = listener.address;
    let error = match TcpListener::bind(address) {
        Ok(socket) => return Ok(Some(socket)),
        Err(error) => error,
    };
    // A demo starts on any free port rather than not at all.
    if let (true, Ok(socket)) = (is_demo, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))) {
        return Ok(Some(socket));
    }
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => "it is in use; stop what listens there or change admin.listen".to_owned(),
        io::ErrorKind::PermissionDenied => NOT_PERMITTED.to_owned(),
        _ => error.to_string(),
    };
    if is_given {
        return Err(ProcessError::Failed(format!("cannot listen on {address}: {reason}")));
    }
    tracing::warn!("admin.listen: cannot listen on {address}: {reason}. This process has no admin listener");
    Ok(None)
}

/// The name of the socket in a hand-over. No address of callers has this form.
fn name_of(listener: &AdminListener) -> String {
    format!("admin {}", listener.address)
}
