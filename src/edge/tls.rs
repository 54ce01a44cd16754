//! TLS on the listeners for callers: which protocols are offered, and how a reload replaces the certificate. Connections
//! that exist keep the old one. The handshakes themselves run in `handshakes`.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::crypto::ring::Ticketer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;

use super::handshakes::Handshakes;
use super::socket::Socket;
use crate::tls::{Certificate, server_config};

/// ALPN's name of HTTP/2.
pub(super) const HTTP_2: &[u8] = b"h2";

/// The protocols that are offered by ALPN, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("server.tls cannot be set up: {0}")]
    Setup(#[from] Error),
    #[error("server.tls: cannot start a thread: {0}")]
    Threads(io::Error),
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
        let mut config = server_config(certificate.clone(), &PROTOCOLS)?;
        // Session tickets, sealed with keys that change every few hours: a caller that returns costs no signature, and
        // the server stores nothing. Early data stays off, because it could be replayed, and a setPoints with it.
        config.ticketer = Ticketer::new()?;
        // A caller that returns gets its next one then, so that one is enough; each costs a key derivation and a seal.
        config.send_tls13_tickets = 1;
        let handshakes = Handshakes::start(threads).map_err(TlsError::Threads)?;
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), handshakes, certificate })
    }

    /// Performs the handshake; dropping the future cancels it.
    pub(super) async fn accept(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        self.handshakes.accept(&self.acceptor, socket).await
    }

    /// When the certificate for new connections expires, in Unix seconds; `None` where that cannot be parsed.
    pub fn certificate_expires(&self) -> Option<i64> {
        crate::tls::validity(self.certificate.0.load().cert.first()?).map(|(_, to)| to.as_second())
    }

    /// Uses this certificate for new connections. Whether it is another one.
    pub fn replace(&self, certificate: Certificate) -> bool {
        let chain = certificate.key.cert.clone();
        self.certificate.0.swap(certificate.key).cert != chain
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
