//! PEM files that settings name: their certificates and private keys. No message quotes the content of a file.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::SettingFault;
use crate::files::read_at_most;

/// Largest PEM file that is read. A long chain is 20 KiB, and a system's whole bundle of roots is a quarter of this.
const MAX_FILE: u64 = 1 << 20;

/// A PEM file, with the setting that names it.
#[expect(missing_debug_implementations, reason = "it may hold a private key")]
pub struct PemFile<'a> {
    setting: &'a str,
    path: &'a Path,
    content: Vec<u8>,
}

impl<'a> PemFile<'a> {
    /// Reads the file.
    ///
    /// # Errors
    /// Where it cannot be read or is too large.
    pub fn read(setting: &'a str, path: &'a Path) -> Result<Self, SettingFault> {
        let content = File::open(path).and_then(|file| read_at_most(file, MAX_FILE));
        let content = content
            .map_err(|e| SettingFault { is_unread: true, ..fault(setting, path, format!("cannot be read: {e}")) })?;
        let content = content.ok_or_else(|| fault(setting, path, "is larger than 1 MiB; is it a PEM file?"))?;
        Ok(PemFile { setting, path, content })
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Its certificates; at least one.
    ///
    /// # Errors
    /// Where it is not PEM or has no certificate.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, SettingFault> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.content).collect();
        let found = found.map_err(|e| self.fault(format!("is not a PEM file: {e}")))?;
        if found.is_empty() {
            return Err(self.fault("contains no certificate; it should begin with -----BEGIN CERTIFICATE-----"));
        }
        Ok(found)
    }

    /// Its private key.
    ///
    /// # Errors
    /// Where it has none that can be read.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, SettingFault> {
        // The parser's own message is left out: it might quote the file's content.
        PrivateKeyDer::from_pem_slice(&self.content)
            .map_err(|_| self.fault("contains no private key that can be read; it must be PEM and not encrypted"))
    }

    /// The fault that begins with the file's path.
    pub fn fault(&self, why: impl Display) -> SettingFault {
        fault(self.setting, self.path, why)
    }
}

fn fault(setting: &str, path: &Path, why: impl Display) -> SettingFault {
    SettingFault::new(setting, format!("{} {why}", path.display()))
}
