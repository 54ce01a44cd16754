//! A certificate authority for a test: makes certificates for upstreams and clients, valid or expired, and the TLS
//! configuration of a test's own upstream. Only who is given its certificate trusts it, and each authority has a name
//! of its own.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

/// An authority of the test's own, whom nobody trusts who was not told to.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// A certificate and its key.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of a name of its own: two of one name would be the same one with a false signature.
        params.distinguished_name.push(DnType::CommonName, format!("Authority {:016x}", fastrand::u64(..)));
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate: what `origin.tls.ca` is to name.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// An upstream whose certificate is for this name or address.
    pub fn server(&self, name: &str) -> Arc<ServerConfig> {
        self.configure(self.sign(name, |_| {}), &BOTH, None, &[])
    }

    /// As [`Authority::server`], and its time is over.
    pub fn expired_server(&self, name: &str) -> Arc<ServerConfig> {
        let expired = self.sign(name, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        });
        self.configure(expired, &BOTH, None, &[])
    }

    /// As [`Authority::server`], with the certificate of an authority.
    pub fn server_of_authority(&self, name: &str) -> Arc<ServerConfig> {
        let signed = self.sign(name, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
        self.configure(signed, &BOTH, None, &[])
    }

    /// An upstream whose certificate for this name has signed itself, as `openssl req -x509` makes it; the certificate and its
    /// key as PEM.
    pub fn self_signed(name: &str) -> (Arc<ServerConfig>, String, String) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let signed = Signed { certificate: params.self_signed(&key).unwrap(), key };
        let (certificate, key) = (signed.certificate.pem(), signed.key.serialize_pem());
        (Authority::new().configure(signed, &BOTH, None, &[]), certificate, key)
    }

    /// As [`Authority::server`], for callers who have a certificate of `clients`.
    pub fn server_for(&self, name: &str, clients: &Authority) -> Arc<ServerConfig> {
        self.configure(self.sign(name, |_| {}), &BOTH, Some(clients), &[])
    }

    /// As [`Authority::server`], of one version of TLS.
    pub fn server_of(&self, name: &str, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
        self.configure(self.sign(name, |_| {}), &[version], None, &[])
    }

    /// As [`Authority::server`], speaking these protocols.
    pub fn server_speaking(&self, name: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        self.configure(self.sign(name, |_| {}), &BOTH, None, protocols)
    }

    /// A certificate for who connects, and its key, as PEM.
    pub fn client(&self) -> (String, String) {
        let signed = self.sign("gateway", |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        (signed.certificate.pem(), signed.key.serialize_pem())
    }

    /// A certificate for a server of this name or address, and its key, as PEM.
    pub fn pem_for(&self, name: &str) -> (String, String) {
        let signed = self.sign(name, |_| {});
        (signed.certificate.pem(), signed.key.serialize_pem())
    }

    fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Signed { certificate: params.signed_by(&key, &self.0).unwrap(), key }
    }

    fn configure(
        &self,
        signed: Signed,
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<&Authority>,
        protocols: &[&str],
    ) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::try_from(signed.key.serialize_der()).unwrap();
        let mut config = builder.with_single_cert(vec![signed.certificate.der().clone()], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
