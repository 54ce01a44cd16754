//! TLS on the listeners, by rustls: which versions and cipher suites are offered, how the certificate and its key are
//! read and checked, and how a reload replaces them. A pair is replaced only after both files were read and belong
//! together; connections that exist keep the old one. No message quotes the content of a key file. The handshakes
//! themselves run in `handshakes`.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use pingora::protocols::Stream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::{Ticketer, cipher_suite as suite, default_provider, kx_group as group};
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, InconsistentKeys, ServerConfig, SupportedCipherSuite};
use tokio_rustls::server::TlsStream;
use x509_cert::der::Decode;

use super::handshakes::Handshakes;
use crate::config::{self, PemFile, SettingFault};

/// TLS 1.2 and 1.3 by Mozilla's "intermediate" profile: only suites with forward secrecy and authenticated encryption.
/// (The profile's two DHE suites are left out, because every client that has them has ECDHE too.) The client's order
/// decides: each suite is good, and the client knows which one its hardware does fast. The list is written out so that
/// an update of the library cannot change it unnoticed.
const SUITES: [SupportedCipherSuite; 9] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// The key exchange groups of the same profile.
const GROUPS: [&dyn SupportedKxGroup; 3] = [group::X25519, group::SECP256R1, group::SECP384R1];

/// ALPN's name of HTTP/2.
pub(super) const HTTP_2: &[u8] = b"h2";

/// The protocols that are offered by ALPN, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

const CERTIFICATE: &str = "server.tls.certificate";
const PRIVATE_KEY: &str = "server.tls.private_key";

/// A certificate with its key, read from the files of a configuration (contract section 3, `tls`).
#[derive(Debug)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    /// A warning for the operator: the pair works, but something about it is unsafe or unusual.
    pub notice: Option<String>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("server.tls cannot be set up: {0}")]
    Setup(#[from] Error),
    #[error("server.tls: cannot start a thread: {0}")]
    Threads(io::Error),
}

impl Certificate {
    /// Reads the two files and checks that they belong together.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn load(files: &config::CertificateFiles) -> Result<Self, SettingFault> {
        let (path, key_path) = (files.certificate.display(), files.private_key.display());
        let certificate_file = PemFile::read(CERTIFICATE, &files.certificate)?;
        let chain = certificate_file.certificates()?;
        let now = Timestamp::now();
        let validity = chain.first().and_then(validity);
        if let Some((_, to)) = validity.filter(|(_, to)| *to < now) {
            let why = format!("expired at {to}: no caller would accept it; put a renewed one in its place");
            return Err(certificate_file.fault(why));
        }
        let key_file = PemFile::read(PRIVATE_KEY, &files.private_key)?;
        let key = CertifiedKey::from_der(chain, key_file.private_key()?, &provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                key_file.fault(format!("is not the key of the certificate in {path}"))
            }
            Error::InvalidCertificate(e) => {
                certificate_file.fault(format!("contains a certificate that cannot be read: {e}"))
            }
            error => key_file.fault(format!("contains a private key that cannot be used: {error}")),
        })?;
        let early = validity
            .filter(|(from, _)| *from > now)
            .map(|(from, _)| format!("{CERTIFICATE}: {path} is not valid before {from}"));
        let exposed = || {
            others_may_read(&files.private_key).then(|| {
                format!("{PRIVATE_KEY}: every user of this machine may read {key_path}; run: chmod o= {key_path}")
            })
        };
        Ok(Certificate { key: Arc::new(key), notice: early.or_else(exposed) })
    }
}

/// From when until when a certificate is valid; `None` where it cannot be parsed, which rustls reports later.
fn validity(certificate: &CertificateDer<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = x509_cert::Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    let timestamp = |time: x509_cert::time::Time| {
        Timestamp::from_second(i64::try_from(time.to_unix_duration().as_secs()).ok()?).ok()
    };
    Some((timestamp(validity.not_before)?, timestamp(validity.not_after)?))
}

fn others_may_read(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: SUITES.to_vec(), kx_groups: GROUPS.to_vec(), ..default_provider() }
}

/// TLS on the TCP listeners, with a certificate that can be replaced while they serve.
pub struct Tls {
    acceptor: TlsAcceptor,
    handshakes: Handshakes,
    certificate: Arc<CurrentCertificate>,
}

/// The certificate for new connections; open connections keep theirs.
#[derive(Debug)]
struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    /// Starts this many threads for handshakes.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn new(certificate: Certificate, threads: usize) -> Result<Self, TlsError> {
        let certificate = Arc::new(CurrentCertificate(ArcSwap::new(certificate.key)));
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificate.clone());
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        // Session tickets, sealed with keys that change every few hours: a caller that returns costs no signature, and
        // the server stores nothing. Early data stays off, because it could be replayed, and a setPoints with it.
        config.ticketer = Ticketer::new()?;
        let handshakes = Handshakes::start(threads).map_err(TlsError::Threads)?;
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), handshakes, certificate })
    }

    /// Performs the handshake; dropping the future cancels it.
    pub(super) async fn accept(&self, stream: Stream) -> io::Result<TlsStream<Stream>> {
        self.handshakes.accept(&self.acceptor, stream).await
    }

    /// When the certificate for new connections expires, in Unix seconds; `None` where that cannot be parsed.
    pub(super) fn certificate_expires(&self) -> Option<i64> {
        validity(self.certificate.0.load().cert.first()?).map(|(_, to)| to.as_second())
    }

    /// Uses another certificate for new connections.
    pub fn replace(&self, certificate: Certificate) {
        self.certificate.0.store(certificate.key);
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
