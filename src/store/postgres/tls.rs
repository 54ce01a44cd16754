//! TLS to the server: rustls with ring, the one provider that is built. What `sslmode` means is libpq's
//! meaning (docs/storage.md).

use std::path::Path;
use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::config::PostgresTls;

/// Reads whom to trust.
///
/// # Errors
/// Which file cannot be used, and why.
pub(super) fn connector(tls: &PostgresTls) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match tls {
        // Of no effect without TLS.
        PostgresTls::Off | PostgresTls::Unverified => Arc::new(Whoever(provider.clone())),
        PostgresTls::Verified { roots, name } => {
            let roots = Arc::new(match roots {
                Some(path) => named(path)?,
                None => of_the_system()?,
            });
            if *name {
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(|e| format!("TLS cannot be set up: {e}"))?
            } else {
                Arc::new(SignedBy { roots, provider: provider.clone() })
            }
        }
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions() // TLS 1.2 and 1.3
        .map_err(|e| format!("TLS cannot be set up: {e}"))?
        .dangerous() // what the verifiers below do not look at, the operator chose not to have looked at
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn named(path: &Path) -> Result<RootCertStore, String> {
    let place = format!("sslrootcert: {}", path.display());
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|e| format!("{place} cannot be read: {e}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in found {
        roots.add(certificate).map_err(|e| format!("{place}: a certificate in it cannot be used: {e}"))?;
    }
    if roots.is_empty() { Err(format!("{place} holds no certificate")) } else { Ok(roots) }
}

fn of_the_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // A bundle may hold what we cannot read; the others are as good without it.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("this machine has no root certificates; install its package `ca-certificates`, or name those to \
             trust by sslrootcert=FILE in the URL"
            .to_owned());
    }
    Ok(roots)
}

/// `prefer` and `require`: encrypted, to whoever holds the key of whatever certificate is shown.
#[derive(Debug)]
struct Whoever(Arc<CryptoProvider>);

/// `verify-ca`: a certificate that one of the roots has signed, whatever name is in it.
#[derive(Debug)]
struct SignedBy {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

macro_rules! signatures_are_checked {
    ($self:ident => $provider:expr) => {
        fn verify_tls12_signature(
            &$self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, signed, &$provider.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &$self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, signed, &$provider.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&$self) -> Vec<SignatureScheme> {
            $provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Whoever {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures_are_checked!(self => self.0);
}

impl ServerCertVerifier for SignedBy {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures_are_checked!(self => self.provider);
}
