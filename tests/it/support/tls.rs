//! TLS as a client of the gateway: self-signed certificates for a test's gateway, and a client that trusts only what
//! the test names and offers the protocols that the test chooses. Certificates for upstreams are made in `authority`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use chrono::Datelike;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use super::PATIENCE;

/// The host that every certificate of these tests is for.
const HOST: &str = "guildgate.test";

/// A certificate of one's own and its key, as PEM files hold them.
pub struct Identity {
    pub certificate: String,
    pub private_key: String,
}

impl Identity {
    pub fn new() -> Identity {
        let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
        Identity { certificate: made.cert.pem(), private_key: made.signing_key.serialize_pem() }
    }

    /// Of a certificate that is valid until this day begins.
    pub fn valid_until(day: chrono::NaiveDate) -> Identity {
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([HOST.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(day.year() - 1, 1, 1);
        params.not_after = rcgen::date_time_ymd(day.year(), day.month() as u8, day.day() as u8);
        let certificate = params.self_signed(&signing_key).unwrap();
        Identity { certificate: certificate.pem(), private_key: signing_key.serialize_pem() }
    }
}

/// A client that trusts nothing but what it is told, and the protocols it offers.
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TlsClient {
    pub fn new(trusts: &[&str], alpn: &[&str]) -> TlsClient {
        TlsClient::speaking(&[&version::TLS13, &version::TLS12], trusts, alpn)
    }

    pub fn speaking(versions: &[&'static SupportedProtocolVersion], trusts: &[&str], alpn: &[&str]) -> TlsClient {
        let mut roots = RootCertStore::empty();
        for pem in trusts {
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        TlsClient { config: Arc::new(config) }
    }

    /// Connects and shakes hands, or says what went wrong.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let connecting = TcpStream::connect(address);
        self.shake_hands(timeout(PATIENCE, connecting).await.expect("connect took too long")?).await
    }

    /// Shakes hands on a connection that is there, or says what went wrong.
    pub async fn shake_hands(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        let shaking = TlsConnector::from(self.config.clone()).connect(HOST.try_into().unwrap(), stream);
        timeout(PATIENCE, shaking).await.expect("neither TLS nor an end")
    }
}

/// The certificate that a connection was shown.
pub fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}
