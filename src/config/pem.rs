//! PEM files that settings name: the only reader of certificates and private keys. What the library would pass over is
//! a fault here: a certificate that is missing from a chain, or from the trusted roots, shows only at others. No message
//! repeats what a file holds, or what a library says about it: it names the file, the line and the kind of fault.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use rustls_native_certs::ErrorKind;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore};

use super::SettingFault;
use crate::files::{BYTE_ORDER_MARK, read_at_most};

/// Largest PEM file that is read. A long chain is 20 KiB, and a system's whole bundle of roots is a quarter of this.
const MAX_FILE: u64 = 1 << 20;

/// What a section may hold.
struct Kind {
    name: &'static str,
    /// What the labels of all its forms have in them, those that we cannot read among them.
    word: &'static str,
    begin: &'static str,
    /// The command that writes the form that we read.
    writer: &'static str,
}

const CERTIFICATE: Kind = Kind {
    name: "certificate",
    word: "CERTIFICATE",
    begin: "-----BEGIN CERTIFICATE-----",
    writer: "openssl x509 -in OLD -out NEW",
};

const PRIVATE_KEY: Kind = Kind {
    name: "private key",
    word: "PRIVATE KEY",
    begin: "-----BEGIN PRIVATE KEY-----",
    writer: "openssl pkey -in OLD -out NEW",
};

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
        let content = content.map_err(|e| fault(setting, path, format!("cannot be read: {e}")))?;
        let content = content.ok_or_else(|| fault(setting, path, "is larger than 1 MiB; is it a PEM file?"))?;
        Ok(PemFile { setting, path, content })
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Its certificates; at least one.
    ///
    /// # Errors
    /// Where it has none, or one that cannot be read.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, SettingFault> {
        Ok(self.numbered_certificates()?.into_iter().map(|(_, certificate)| certificate).collect())
    }

    /// Its certificates as those whom to trust.
    ///
    /// # Errors
    /// Where it has none, or one that cannot be used.
    pub fn roots(&self) -> Result<RootCertStore, SettingFault> {
        let mut roots = RootCertStore::empty();
        for (line, certificate) in self.numbered_certificates()? {
            let unusable = |_| self.fault(format!("has a damaged or unusable certificate that begins in line {line}"));
            roots.add(certificate).map_err(unusable)?;
        }
        Ok(roots)
    }

    /// Its private key.
    ///
    /// # Errors
    /// Where it does not have one that can be read, or has several.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, SettingFault> {
        let mut found = self.sections(&PRIVATE_KEY)?.into_iter();
        match (found.next(), found.next()) {
            (Some((_, key)), None) => Ok(key),
            (None, _) => Err(self.fault("contains no private key that can be read; it must be PEM and not encrypted")),
            (_, Some((line, _))) => {
                Err(self.fault(format!("contains a second private key, in line {line}; keep the one that is meant")))
            }
        }
    }

    fn numbered_certificates(&self) -> Result<Vec<(usize, CertificateDer<'static>)>, SettingFault> {
        let found = self.sections(&CERTIFICATE)?;
        if found.is_empty() {
            return Err(self.fault("contains no certificate; it should begin with -----BEGIN CERTIFICATE-----"));
        }
        Ok(found)
    }

    /// The sections of a kind, each with the number of its first line.
    fn sections<T: PemObject>(&self, kind: &Kind) -> Result<Vec<(usize, T)>, SettingFault> {
        let text = String::from_utf8_lossy(&self.content);
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let line_end = if text.contains('\n') { '\n' } else { '\r' };
        let not_ended =
            |line| self.fault(format!("has no END line for what begins in line {line}; copy it again, whole"));
        let (mut found, mut at) = (Vec::new(), 0);
        let mut open: Option<(usize, usize, &str)> = None; // number of its first line, where that begins, label
        for (line, number) in text.split_inclusive(line_end).zip(1..) {
            let start = at;
            at += line.len();
            let label = label_of(line);
            match (&open, label) {
                (Some((begun, ..)), Some(_)) => return Err(not_ended(*begun)),
                (None, Some(label)) => open = Some((number, start, label)),
                (_, None) if line.starts_with("-----BEGIN ") || is_like_begin(line, kind) => {
                    return Err(self.fault(format!(
                        "has a wrong BEGIN in line {number}; a {} begins with a line that is {}, and nothing before or \
                         after that",
                        kind.name, kind.begin
                    )));
                }
                (Some((begun, start, label)), None) if is_end(line, label) => {
                    if is_label_of(label, kind) {
                        found.push((*begun, self.section(kind, *begun, &text[*start..at])?));
                    }
                    open = None;
                }
                (None, None) if line.starts_with("-----END ") => {
                    return Err(
                        self.fault(format!("has no BEGIN line for what ends in line {number}; copy it again, whole"))
                    );
                }
                (_, None) => {}
            }
        }
        open.map_or(Ok(found), |(begun, ..)| Err(not_ended(begun)))
    }

    /// What one section holds, from its BEGIN to its END.
    fn section<T: PemObject>(&self, kind: &Kind, line: usize, text: &str) -> Result<T, SettingFault> {
        let Kind { name, begin, writer, .. } = kind;
        let read = T::pem_slice_iter(text.as_bytes()).next();
        let why = match read {
            Some(Ok(item)) => return Ok(item),
            Some(Err(_)) => {
                format!("has a {name} that begins in line {line} and is damaged or encrypted; copy it again, whole")
            }
            None => format!(
                "has a {name} in line {line} of a form that is not read; it must begin with {begin}, as `{writer}` \
                 writes it"
            ),
        };
        Err(self.fault(why))
    }

    /// The fault that begins with the file's path.
    pub fn fault(&self, why: impl Display) -> SettingFault {
        fault(self.setting, self.path, why)
    }
}

/// The label of a whole BEGIN line.
fn label_of(line: &str) -> Option<&str> {
    let label = line.trim_ascii_end().strip_prefix("-----BEGIN ")?.strip_suffix("-----")?;
    (!label.contains('-')).then_some(label)
}

fn is_end(line: &str, label: &str) -> bool {
    let rest = line.strip_prefix("-----END ").and_then(|rest| rest.strip_prefix(label));
    rest.is_some_and(|rest| rest.starts_with("-----"))
}

/// A request for a certificate is none.
fn is_label_of(label: &str, kind: &Kind) -> bool {
    label.contains(kind.word) && !label.contains("REQUEST")
}

/// Whether somebody may have meant the line as the BEGIN of a section of this kind: the words are there, and dashes of any
/// number and kind before or after them. Text about a certificate has none there.
fn is_like_begin(line: &str, kind: &Kind) -> bool {
    let is_dash = |c: char| matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}');
    let line = line.to_ascii_uppercase();
    line.match_indices("BEGIN").any(|(at, word)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let (label, has_dash_after) = after.split_once(is_dash).map_or((after, false), |(label, _)| (label, true));
        (has_dash_after || before.trim_end().ends_with(is_dash)) && is_label_of(label, kind)
    })
}

/// Why rustls refuses these certificates with this key.
pub fn pair_fault(certificates: &PemFile<'_>, key: &PemFile<'_>, error: &rustls::Error) -> SettingFault {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            key.fault(format!("is not the key of the certificate in {}", certificates.path.display()))
        }
        rustls::Error::InvalidCertificate(_) => {
            certificates.fault("contains a certificate that cannot be read: its first one is damaged")
        }
        _ => key.fault(
            "contains a private key that cannot be used: it is damaged, or neither RSA of 2048 to 4096 bits nor ECDSA \
             (P-256, P-384) nor Ed25519",
        ),
    }
}

/// Whom the system trusts; `each` sees every certificate. `instead` names the setting for a file of others.
///
/// # Errors
/// Where there are none.
pub fn system_roots(instead: &str, each: impl FnMut(&CertificateDer<'static>)) -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    found.certs.iter().for_each(each);
    let mut roots = RootCertStore::empty();
    // A bundle may hold certificates that rustls cannot read; the others are usable without them.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(" ({})", roots_fault(error)));
        return Err(format!(
            "this machine has no root certificates{why}; install the package `ca-certificates`, or name a file of root \
             certificates in {instead}"
        ));
    }
    Ok(roots)
}

/// Why some of the system's root certificates cannot be read, if so.
pub fn unreadable_roots() -> Option<String> {
    rustls_native_certs::load_native_certs().errors.first().map(roots_fault)
}

/// Without a line of the file, which may be any file.
fn roots_fault(error: &rustls_native_certs::Error) -> String {
    match &error.kind {
        ErrorKind::Io { inner, path } => format!("{}: {inner}", path.display()),
        _ => "a file of them is not PEM".to_owned(),
    }
}

fn fault(setting: &str, path: &Path, why: impl Display) -> SettingFault {
    SettingFault::new(setting, format!("{} {why}", path.display()))
}
