//! Whom clients of TLS trust, and the one verifier of servers' certificates: those of upstreams, of PostgreSQL and of Redis.

use std::fmt::Display;
use std::sync::Arc;

use rustls_native_certs::ErrorKind;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WantsClientCert, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Certificates that are trusted.
#[derive(Debug)]
pub struct Roots {
    pub(super) anchors: RootCertStore,
    pub certificates: Vec<CertificateDer<'static>>,
    /// Where they are, for messages.
    pub(super) place: String,
}

/// TLS 1.2 and 1.3 to a server whom these roots prove; `None`: to any. `any_name`: whatever its certificate is for.
///
/// # Errors
/// Why TLS cannot be set up.
pub fn client_tls(
    roots: Option<Roots>,
    any_name: bool,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(ring::default_provider()); // the only provider that is built
    let verifier = Verifier { roots, any_name, provider: provider.clone() };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS cannot be set up: {e}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

/// Why TLS failed. The reasons of `Verifier` stand alone: rustls calls each error that is not its own an unexpected one.
pub fn tls_fault(error: impl Display) -> String {
    error.to_string().replace("unexpected error: ", "")
}

#[derive(Debug)]
struct Verifier {
    roots: Option<Roots>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Roots { anchors, certificates, place }) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, anchors, intermediates, now, algorithms) {
            // Its dates are checked before this. What is trusted itself needs no signature.
            Err(error) if error.to_string().contains("CaUsedAsEndEntity") => {
                if !certificates.contains(certificate) {
                    return Err(Error::General(format!(
                        "the server's certificate is that of an authority (CA:TRUE) and itself not in {place}; add it \
                         there, or give the server one that the authority signed"
                    )));
                }
            }
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                return Err(Error::General(format!(
                    "the server's certificate is not signed by one in {place} (is an intermediate missing?)"
                )));
            }
            verified => verified?,
        }
        if !self.any_name {
            verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whom the system trusts. `instead` names the setting for a file of others.
///
/// # Errors
/// Where there are none.
pub fn system_roots(instead: &str) -> Result<Roots, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut anchors = RootCertStore::empty();
    // A bundle may hold certificates that rustls cannot read; the others are usable without them.
    anchors.add_parsable_certificates(found.certs.clone());
    if anchors.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(" ({})", roots_fault(error)));
        return Err(format!(
            "this machine has no root certificates{why}; install the package `ca-certificates`, or name a file of root \
             certificates in {instead}"
        ));
    }
    Ok(Roots { anchors, certificates: found.certs, place: "this machine's root certificates".to_owned() })
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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    type Own = CertifiedIssuer<'static, KeyPair>;

    /// A certificate for `db.example` that has signed itself.
    fn own(change: impl FnOnce(&mut CertificateParams)) -> Own {
        let mut params = CertificateParams::new(["db.example".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("{:016x}", fastrand::u64(..)));
        change(&mut params);
        Own::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// What a client who trusts `root` says of a server with this certificate and key.
    async fn met(root: Option<&Own>, any_name: bool, name: &'static str, (shown, key): (Vec<u8>, &KeyPair)) -> String {
        let roots = root.map(|root| {
            let (mut anchors, certificates) = (RootCertStore::empty(), vec![root.der().clone()]);
            anchors.add_parsable_certificates(certificates.clone());
            Roots { anchors, certificates, place: "ca.pem".to_owned() }
        });
        let client = TlsConnector::from(Arc::new(client_tls(roots, any_name).unwrap().with_no_client_auth()));
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let server = server.with_single_cert(vec![shown.into()], key.serialize_der().try_into().unwrap()).unwrap();
        let (one, other) = tokio::io::duplex(1 << 16);
        let accept = TlsAcceptor::from(Arc::new(server)).accept(other);
        let connect = client.connect(ServerName::try_from(name).unwrap(), one);
        let (met, _) = tokio::join!(connect, accept);
        met.map_or_else(tls_fault, |_| "ok".to_owned())
    }

    #[tokio::test]
    async fn a_certificate_that_is_a_root_itself_is_accepted_for_its_name_in_its_time() {
        let authority = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let (root, plain, other) = (own(authority), own(|_| {}), own(authority));
        let old = own(|params| {
            authority(params);
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        });
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["db.example".to_owned()]).unwrap();
        let signed = params.signed_by(&key, &root).unwrap().der().to_vec();
        let of = |own: &'_ Own| own.der().to_vec();
        for (trusted, any_name, name, shown, key, said) in [
            (Some(&root), false, "db.example", signed.clone(), &key, "ok"),
            (Some(&root), false, "db.example", of(&root), root.key(), "ok"),
            (Some(&plain), false, "db.example", of(&plain), plain.key(), "ok"),
            (Some(&root), true, "other.example", of(&root), root.key(), "ok"),
            (None, true, "other.example", of(&old), old.key(), "ok"),
            (Some(&root), false, "other.example", of(&root), root.key(), "not valid for name"),
            (Some(&old), false, "db.example", of(&old), old.key(), "expired"),
            (
                Some(&root),
                false,
                "db.example",
                of(&other),
                other.key(),
                "the server's certificate is that of an authority (CA:TRUE) and itself not in ca.pem",
            ),
            (
                Some(&other),
                true,
                "db.example",
                signed,
                &key,
                "the server's certificate is not signed by one in ca.pem (is an intermediate missing?)",
            ),
        ] {
            let met = met(trusted, any_name, name, (shown, key)).await;
            let is_whole = said == "ok" || said.starts_with("the server's certificate");
            assert!(if is_whole { met.starts_with(said) } else { met.contains(said) }, "{said}: {met}");
        }
    }
}
