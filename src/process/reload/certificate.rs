//! The reload of the TLS pair of `server.tls`.

use super::watches::certificate_files;
use super::{PartOutcome, Reloader, log_notice, missing, read_files};
use crate::tls::Certificate;

impl Reloader {
    pub(super) async fn reload_certificate(&self, requested: bool) -> PartOutcome {
        let _lock = self.certificate_lock.lock().await;
        let state = self.gateway.state().clone();
        let (Some(tls), Some(pair)) = (&self.tls, &state.config.server.tls) else { return Ok(Default::default()) };
        let files = certificate_files(&state.config);
        if self.is_missing(&files, requested) {
            return Err(files.iter().filter(|path| !path.exists()).map(|path| missing(path)).collect());
        }
        let (certificate, private_key) = (pair.certificate.display(), pair.private_key.display());
        let files = pair.clone();
        let read = read_files(move || Certificate::load("server.tls", &files).map_err(|fault| fault.to_string()))
            .await
            .flatten();
        match read {
            Ok(loaded) => {
                log_notice(Some(&loaded));
                // The configuration may name another pair by now.
                if self.gateway.state().config.server.tls.as_ref() == Some(pair) {
                    tls.replace(loaded);
                    tracing::info!(%certificate, %private_key, "TLS certificate reloaded");
                }
            }
            Err(reason) => {
                tracing::error!(
                    %certificate,
                    %private_key,
                    "TLS certificate rejected; new connections still get the previous one\n{reason}"
                );
                return Err(reason);
            }
        }
        Ok(Default::default())
    }
}
