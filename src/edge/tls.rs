//! TLS on the listeners, by rustls: which versions and cipher suites are offered, how the certificate and its key are
//! read and checked, and how a reload replaces them. A pair is replaced only after both files were read and belong
//! together; connections that exist keep the old one. No message quotes the content of a key file. The handshakes
//! themselves run in `handshakes`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use pingora::protocols::Stream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::{Ticketer, cipher_suite as suite, default_provider, kx_group as group};
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CertificateError, Error, InconsistentKeys, ServerConfig, SupportedCipherSuite};
use tokio_rustls::server::TlsStream;
use x509_cert::der::Decode;

use super::handshakes::Handshakes;
use crate::config::{self, SettingFault};

/// What is spoken, by Mozilla's "intermediate" profile: TLS 1.2 and 1.3, and only suites with
/// forward secrecy and authenticated encryption. (The profile's two DHE suites are left out: all
/// that speaks them speaks ECDHE too.) The client's order counts, since each of them is good and
/// the client knows which its hardware is quick at. It stands here in full, so that an update of
/// the library does not change it unsaid.
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

/// The same profile's groups for the key exchange.
const GROUPS: [&dyn SupportedKxGroup; 3] = [group::X25519, group::SECP256R1, group::SECP384R1];

/// HTTP/2, as ALPN calls it.
pub(super) const HTTP_2: &[u8] = b"h2";

/// The protocols that are offered within TLS (ALPN), the best one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// Largest file of a certificate or key that is read. A long chain is 20 KiB.
const MAX_FILE: u64 = 1 << 20;

const CERTIFICATE: &str = "server.tls.certificate";
const PRIVATE_KEY: &str = "server.tls.private_key";

/// A certificate with its key, as the files of a configuration hold them (contract section 3, `tls`).
#[derive(Debug)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    /// What the operator should know and need not mend.
    pub notice: Option<String>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("server.tls cannot be set up: {0}")]
    Setup(Error),
    #[error("server.tls: no thread could be started: {0}")]
    Threads(io::Error),
}

impl Certificate {
    /// Reads the two files, and sees that they belong together.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn load(files: &config::Tls) -> Result<Self, SettingFault> {
        let path = &files.certificate;
        let unusable = |why: &str| SettingFault::new(CERTIFICATE, format!("{} {why}", path.display()));
        let pem = read(CERTIFICATE, path)?;
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<_, _>>()
            .map_err(|e| unusable(&format!("is no PEM file: {e}")))?;
        let Some(first) = chain.first() else {
            return Err(unusable("holds no certificate; it should begin with -----BEGIN CERTIFICATE-----"));
        };
        let is_unreadable = |e: &dyn fmt::Display| unusable(&format!("holds a certificate that cannot be read: {e}"));
        let now = Timestamp::now();
        let mut early = None;
        if let Some((from, to)) = validity(first) {
            if to < now {
                let why = format!("expired at {to}: no caller would accept it; put a renewed one in its place");
                return Err(unusable(&why));
            }
            early = (from > now).then(|| format!("{CERTIFICATE}: {} is not valid before {from}", path.display()));
        }
        let key = private_key(files, chain).map_err(|fault| match fault {
            KeyFault::Certificate(e) => is_unreadable(&e),
            KeyFault::Key(fault) => fault,
        })?;
        let path = &files.private_key;
        let open = others_may_read(path).then(|| {
            format!("{PRIVATE_KEY}: every user of this machine may read {0}; run: chmod o= {0}", path.display())
        });
        Ok(Certificate { key: Arc::new(key), notice: early.or(open) })
    }
}

/// What is wrong with the private key, or with the certificate that it is to be the key of.
enum KeyFault {
    Certificate(CertificateError),
    Key(SettingFault),
}

fn private_key(files: &config::Tls, chain: Vec<CertificateDer<'static>>) -> Result<CertifiedKey, KeyFault> {
    let path = &files.private_key;
    let unusable = |why: &str| KeyFault::Key(SettingFault::new(PRIVATE_KEY, format!("{} {why}", path.display())));
    let pem = read(PRIVATE_KEY, path).map_err(KeyFault::Key)?;
    // Without the parser's own words: they might quote what stands in the file.
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| unusable("holds no private key that can be read; it should be PEM, and not encrypted"))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            unusable(&format!("is not the key of the certificate in {}", files.certificate.display()))
        }
        Error::InvalidCertificate(fault) => KeyFault::Certificate(fault),
        error => unusable(&format!("holds a private key that cannot be used: {error}")),
    })
}

/// From when until when a certificate is valid; `None` where it cannot be read, which is rustls's to judge.
fn validity(certificate: &CertificateDer<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = x509_cert::Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    let moment = |time: x509_cert::time::Time| {
        let seconds = i64::try_from(time.to_unix_duration().as_secs()).ok()?;
        Timestamp::from_second(seconds).ok()
    };
    Some((moment(validity.not_before)?, moment(validity.not_after)?))
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, SettingFault> {
    let unreadable = |e: io::Error| SettingFault::new(setting, format!("{} cannot be read: {e}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

fn others_may_read(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: SUITES.to_vec(), kx_groups: GROUPS.to_vec(), ..default_provider() }
}

/// How the TCP listeners speak TLS, under a certificate that may be replaced while they do.
pub struct Tls {
    acceptor: TlsAcceptor,
    handshakes: Handshakes,
    shown: Arc<Shown>,
}

/// The certificate that each new connection is shown; those there go on under theirs.
#[derive(Debug)]
struct Shown(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    /// Shakes hands on so many threads.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn new(certificate: Certificate, threads: usize) -> Result<Self, TlsError> {
        let shown = Arc::new(Shown(ArcSwap::new(certificate.key)));
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        // Sealed with keys that change every few hours, and kept by the caller: a caller that comes
        // again costs no signature, and this side remembers nothing. Early data stays off, which
        // could be replayed, and a setPoints with it.
        config.ticketer = Ticketer::new().map_err(TlsError::Setup)?;
        let handshakes = Handshakes::start(threads).map_err(TlsError::Threads)?;
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), handshakes, shown })
    }

    /// Shakes hands, as far as the peer does. It ends when it is dropped.
    pub(super) async fn accept(&self, stream: Stream) -> io::Result<TlsStream<Stream>> {
        self.handshakes.shake(&self.acceptor, stream).await
    }

    /// Shows new connections this certificate from here on.
    pub fn replace(&self, certificate: Certificate) {
        self.shown.0.store(certificate.key);
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
