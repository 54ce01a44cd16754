//! TLS on the listeners for callers: which protocols are offered, how a reload replaces the certificate (connections that
//! exist keep the old one), and the threads on which handshakes run. A handshake costs as much processor time as many
//! answers, so a crowd of new connections would otherwise delay every request on the same thread: those threads have a
//! lower priority than the ones that serve.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::Ticketer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_util::task::AbortOnDropHandle;

use super::transport::{Socket, Transport};
use crate::tls::{Certificate, server_config};

/// ALPN's name of HTTP/2.
pub(super) const HTTP_2: &[u8] = b"h2";

/// The protocols that are offered by ALPN, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// The `nice` value of the threads for handshakes. A serving thread gets a core at once although handshakes occupy all of
/// them; under full load about a tenth of the cores is left for handshakes, so that new callers still get in.
const NICE: i32 = 10;

/// TLS on the TCP listeners, with a certificate that can be replaced while they serve.
pub struct Tls {
    acceptor: TlsAcceptor,
    /// Lives as long as the process, because a runtime must not be dropped in a task of another one.
    handshakes: ManuallyDrop<Runtime>,
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
    /// Where rustls refuses the settings, or a thread cannot be started.
    pub fn new(certificate: Certificate, threads: usize) -> io::Result<Self> {
        let certificate = Arc::new(CurrentCertificate(ArcSwap::new(certificate.key)));
        let mut config = server_config(certificate.clone(), &PROTOCOLS).map_err(io::Error::other)?;
        // Session tickets, sealed with keys that change every few hours: a caller that returns costs no signature, and
        // the server stores nothing. Early data stays off, because it could be replayed, and a setPoints with it.
        config.ticketer = Ticketer::new().map_err(io::Error::other)?;
        // A caller that returns gets its next one then, so that one is enough; each costs a key derivation and a seal.
        config.send_tls13_tickets = 1;
        let lower_priority = || {
            // Of this thread alone. Without the permission to lower it, the thread keeps its priority.
            let _ = rustix::process::setpriority_process(None, NICE);
        };
        let mut handshakes = Builder::new_multi_thread();
        handshakes.worker_threads(threads).thread_name("handshake").on_thread_start(lower_priority);
        let handshakes = ManuallyDrop::new(handshakes.build()?);
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), handshakes, certificate })
    }

    /// Performs the handshake; dropping the future cancels it. A connection whose first byte begins an HTTP method stays
    /// plain: no TLS record begins with a letter (RFC 8446, 5.1).
    pub(super) async fn accept(&self, socket: TcpStream) -> io::Result<Transport> {
        let mut first = [0];
        if socket.peek(&mut first).await? > 0 && first[0].is_ascii_alphabetic() {
            return Ok(Transport::Left(Socket::Left(socket)));
        }
        let handshake = self.handshakes.spawn(self.acceptor.accept(socket));
        Ok(Transport::Right(Box::new(AbortOnDropHandle::new(handshake).await??.into())))
    }

    /// When the certificate for new connections expires, in Unix seconds; `None` where that cannot be parsed.
    pub fn certificate_expires(&self) -> Option<i64> {
        crate::tls::validity(self.certificate.0.load().cert.first()?).map(|(_, to)| to)
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
