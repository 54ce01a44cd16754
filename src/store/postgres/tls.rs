//! TLS to the server, with rustls and ring, the only provider that is built. `sslmode` means what it means to
//! libpq (docs/storage.md).

use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::config::{PemFile, PostgresTls, system_roots};

/// Reads the trusted certificates.
///
/// # Errors
/// Which file cannot be used, and why.
pub(super) fn connector(tls: &PostgresTls) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match tls {
        // Off: it has no effect then.
        PostgresTls::Off | PostgresTls::Unverified => Arc::new(AnyName { roots: None, provider: provider.clone() }),
        PostgresTls::Verified { roots, name } => {
            let roots = Arc::new(match roots {
                Some(path) => PemFile::read("sslrootcert", path)
                    .and_then(|file| file.roots())
                    .map_err(|fault| fault.to_string())?,
                None => system_roots("sslrootcert=FILE of its URL", |_| {})?,
            });
            if *name {
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(|e| format!("TLS cannot be set up: {e}"))?
            } else {
                Arc::new(AnyName { roots: Some(roots), provider: provider.clone() })
            }
        }
    };
    client(provider, verifier).map(MakeRustlsConnect::new)
}

/// A client that accepts every certificate, such as for a server on this machine, whose certificate names callers' addresses.
///
/// # Errors
/// Why TLS cannot be set up.
pub fn any_certificate() -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    client(provider.clone(), Arc::new(AnyName { roots: None, provider }))
}

fn client(provider: Arc<CryptoProvider>, verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, String> {
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions() // TLS 1.2 and 1.3
        .map_err(|e| format!("TLS cannot be set up: {e}"))?
        .dangerous() // the operator chose (`sslmode`) what the verifiers below leave out
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Accepts a certificate for any name.
#[derive(Debug)]
struct AnyName {
    /// `verify-ca`: one of these has signed it. `None`: `prefer` and `require`, where any certificate will do.
    roots: Option<Arc<RootCertStore>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let parsed = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
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
