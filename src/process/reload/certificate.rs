//! The reload of the TLS pair of `server.tls`.

use super::files::Rejection;
use super::watches::certificate_files;
use super::{Reloader, TLS_PAIR, log_warning};
use crate::admin::ReloadOutcome;
use crate::config::SettingFault;
use crate::tls::Certificate;

impl Reloader {
    /// `None`: there is no TLS pair.
    pub(super) async fn reload_certificate(&self, requested: bool) -> Option<ReloadOutcome> {
        let _lock = self.certificate_lock.lock().await;
        let state = self.gateway.state().clone();
        let (tls, pair) = (self.tls.as_ref()?, state.config.server.tls.as_ref()?);
        let missing = self.missing_lines(&self.watches.certificate, certificate_files(&state.config), requested).await;
        if !missing.is_empty() {
            return Some(ReloadOutcome::rejected(&missing));
        }
        let (certificate, private_key) = (pair.certificate.display(), pair.private_key.display());
        let files = pair.clone();
        let rejection = |fault: SettingFault| Rejection { is_unread: fault.is_unread, reason: fault.to_string() };
        let load = move || Certificate::load("server.tls", &files).map_err(rejection);
        match self.read_whole(&self.watches.certificate, certificate_files(&state.config), load).await {
            Ok(loaded) => {
                log_warning(Some(&loaded));
                // The configuration may name another pair by now.
                if self.gateway.state().config.server.tls.as_ref() != Some(pair) {
                    return None;
                }
                let is_changed = tls.replace(loaded);
                tracing::info!(%certificate, %private_key, "TLS certificate reloaded");
                Some(ReloadOutcome::changed(is_changed.then_some("server.tls")))
            }
            Err(rejection) => {
                let outcome = rejection.outcome();
                if requested || !self.admin.reloads.is_known(TLS_PAIR, &outcome) {
                    let reason = &rejection.reason;
                    tracing::error!(
                        %certificate,
                        %private_key,
                        "TLS certificate rejected; new connections still get the previous one\n{reason}"
                    );
                }
                Some(outcome)
            }
        }
    }
}
