//! PEM files that settings name: the only reader of certificates and private keys. What the library would pass over is
//! a fault here: a certificate that is missing from a chain, or from the trusted roots, shows only at others. No message
//! repeats what a file holds, or what a library says about it: it names the file, the line and the kind of fault.

use std::fmt::Display;
use std::path::Path;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore};

use super::SettingFault;
use super::roots::Roots;
use crate::files::{BYTE_ORDER_MARK, read_file};

/// Largest PEM file that is read. A long chain is 20 KiB, and a system's whole bundle of roots is a quarter of this.
const MAX_FILE: u64 = 1 << 20;

/// What the labels of all forms of a kind have in them, those that we cannot read among them.
const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";

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
        let mut file = PemFile { setting, path, content: Vec::new() };
        let content = read_file(path, MAX_FILE).map_err(|e| file.fault(format!("cannot be read: {e}")))?;
        file.content = content.ok_or_else(|| file.fault("is larger than 1 MiB; is it a PEM file?"))?;
        Ok(file)
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Its certificates; at least one.
    ///
    /// # Errors
    /// Where it has none, or one that cannot be read.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, SettingFault> {
        let found = self.sections(CERTIFICATE)?;
        if found.is_empty() {
            return Err(self.fault("contains no certificate; it should begin with -----BEGIN CERTIFICATE-----"));
        }
        Ok(found)
    }

    /// Its certificates as those whom to trust.
    ///
    /// # Errors
    /// Where it has none, or one that cannot be used.
    pub fn roots(&self) -> Result<Roots, SettingFault> {
        let (mut anchors, certificates) = (RootCertStore::empty(), self.certificates()?);
        for (certificate, number) in certificates.iter().zip(1..) {
            let unusable = |_| self.fault(format!("has a damaged or unusable certificate: number {number} in it"));
            anchors.add(certificate.clone()).map_err(unusable)?;
        }
        Ok(Roots { anchors, certificates, place: self.path.display().to_string() })
    }

    /// Its private key.
    ///
    /// # Errors
    /// Where it does not have one that can be read, or has several.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, SettingFault> {
        let mut found = self.sections(PRIVATE_KEY)?;
        match (found.pop(), found.len()) {
            (Some(key), 0) => Ok(key),
            (Some(_), _) => Err(self.fault("contains a second private key; keep the one that is meant")),
            (None, _) => Err(self.fault("contains no private key that can be read; it must be PEM and not encrypted")),
        }
    }

    /// The sections of a kind. What begins like a section must be whole, whatever it holds.
    fn sections<T: PemObject>(&self, kind: &str) -> Result<Vec<T>, SettingFault> {
        let text = String::from_utf8_lossy(&self.content);
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let (mut begins, mut at) = (Vec::new(), 0);
        for (line, number) in text.split_inclusive('\n').zip(1..) {
            if is_begin(line) || (begins.is_empty() && line.starts_with("-----")) {
                begins.push((number, at));
            }
            at += line.len();
        }
        let ends = begins.iter().skip(1).map(|(_, at)| *at).chain([text.len()]);
        let mut found = Vec::new();
        for (&(number, start), end) in begins.iter().zip(ends) {
            let section = &text[start..end];
            let first = section.lines().next().unwrap_or_default().trim_ascii_end();
            let label = first.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"));
            let has_end = |label: &&str| section.contains(&format!("\n-----END {label}-----"));
            let label = label.filter(|label| has_end(label) && section.matches("-----END ").count() == 1);
            if label.is_some_and(|label| !label.contains(kind) || label.contains("REQUEST")) {
                continue;
            }
            let item = label.and_then(|_| T::from_pem_slice(section.as_bytes()).ok());
            found.push(item.ok_or_else(|| {
                let writer = if kind == PRIVATE_KEY { "openssl pkey" } else { "openssl x509" };
                self.fault(format!(
                    "has a section from line {number}; it is damaged, encrypted, of another form, or not whole between a line \
                     -----BEGIN {kind}----- and a line -----END {kind}-----; copy it again, or write it by `{writer} -in OLD \
                     -out NEW`"
                ))
            })?);
        }
        Ok(found)
    }

    /// The fault that begins with the file's path.
    pub fn fault(&self, why: impl Display) -> SettingFault {
        SettingFault::new(self.setting, format!("{} {why}", self.path.display()))
    }
}

/// Whether somebody may have meant the line as the first one of a section: the library would pass over a wrong one. The
/// words are there, with dashes, those of a word processor, too; text about a certificate has none.
fn is_begin(line: &str) -> bool {
    let line = line.to_ascii_uppercase();
    let has_dash = line.contains(|c| matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}'));
    let is_meant = line.contains("BEGIN") && (line.contains("CERTIFICATE") || line.contains("PRIVATE KEY"));
    line.starts_with("-----BEGIN ") || (has_dash && is_meant)
}

/// Why rustls refuses these certificates with this key.
pub fn pair_fault(certificates: &PemFile<'_>, key: &PemFile<'_>, error: &rustls::Error) -> SettingFault {
    let why = match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => "is not the key of the first certificate in",
        _ => {
            "cannot be used (RSA of 2048 to 4096 bits, ECDSA P-256 and P-384, and Ed25519 can), or it is damaged, or so is \
             the first certificate in"
        }
    };
    key.fault(format!("{why} {}", certificates.path.display()))
}
