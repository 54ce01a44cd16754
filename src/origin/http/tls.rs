//! TLS to upstreams: the trusted roots and our own certificate (contract section 3, `[origin] tls`). It reads the files
//! that the configuration names, and keeps no key in reach.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

use crate::config::{CertificateFiles, SettingFault, Upstreams};
use crate::files::read_at_most;

/// Largest PEM file that is read: a system's whole bundle of roots is a quarter of it.
const MAX_PEM: u64 = 1 << 20;

/// The trusted roots and our own certificate, for all upstreams with TLS.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    /// Of all files that were read, so that a change is noticed without a key being kept.
    digest: [u8; 32],
}

/// TLS to the upstream whose certificate is for a name.
#[derive(Clone, Debug)]
pub(super) struct NamedTls {
    tls: Tls,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the files that the upstreams' settings name, or the system's roots. `None`: no upstream has
    /// TLS.
    ///
    /// # Errors
    /// Which setting and file cannot be used, and why.
    pub fn load(settings: &Upstreams) -> Result<Option<Self>, SettingFault> {
        if !settings.list.iter().any(|upstream| upstream.server_name.is_some()) {
            return Ok(None);
        }
        let mut digest = Sha256::new();
        let roots = match &settings.tls.ca {
            Some(path) => named_roots(path, &mut digest)?,
            None => system_roots(&mut digest)?,
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions() // TLS 1.2 and 1.3
            .map_err(|e| SettingFault::new("origin.tls", format!("TLS cannot be set up: {e}")))?
            .with_root_certificates(roots);
        let mut config = match &settings.tls.identity {
            None => config.with_no_client_auth(),
            Some(identity) => with_identity(config, identity, &mut digest)?,
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Tls { connector: TlsConnector::from(Arc::new(config)), digest: digest.finalize().into() }))
    }

    pub(super) fn for_name(&self, name: &str) -> Result<NamedTls, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|e| format!("origin.tls.server_name: {name}: {e}"))?;
        Ok(NamedTls { tls: self.clone(), name })
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl NamedTls {
    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.tls.connector.connect(self.name.clone(), stream).await
    }
}

impl PartialEq for NamedTls {
    fn eq(&self, other: &Self) -> bool {
        self.tls == other.tls && self.name == other.name
    }
}

/// The roots of the file that the operator named, and no others.
fn named_roots(path: &Path, digest: &mut Sha256) -> Result<RootCertStore, SettingFault> {
    let mut roots = RootCertStore::empty();
    for (i, certificate) in certificates("origin.tls.ca", path, digest)?.into_iter().enumerate() {
        let unusable = |e| {
            let text = format!("{}: certificate {} cannot be used: {e}", path.display(), i + 1);
            SettingFault::new("origin.tls.ca", text)
        };
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn system_roots(digest: &mut Sha256) -> Result<RootCertStore, SettingFault> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    for certificate in &found.certs {
        digest.update(certificate);
    }
    // A bundle may hold certificates that rustls cannot read; the others are usable without them.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|e| format!(" ({e})")).unwrap_or_default();
        let text = format!(
            "this machine has no root certificates{why}; install the package `ca-certificates`, or name a file of \
             root certificates in origin.tls.ca"
        );
        return Err(SettingFault::new("origin.upstreams", text));
    }
    Ok(roots)
}

fn with_identity(
    config: rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>,
    identity: &CertificateFiles,
    digest: &mut Sha256,
) -> Result<ClientConfig, SettingFault> {
    let chain = certificates("origin.tls.certificate", &identity.certificate, digest)?;
    let path = &identity.private_key;
    let unusable = |why: String| SettingFault::new("origin.tls.private_key", format!("{}: {why}", path.display()));
    let pem = read("origin.tls.private_key", path, digest)?;
    // The parser's message is left out: it might quote the file.
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| unusable("contains no private key that can be read; it must be PEM and not encrypted".into()))?;
    config.with_client_auth_cert(chain, key).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => {
            unusable(format!("is not the key of the certificate in {}", identity.certificate.display()))
        }
        e => unusable(format!("cannot be used: {e}")),
    })
}

/// All certificates of a PEM file; at least one.
fn certificates(setting: &str, path: &Path, digest: &mut Sha256) -> Result<Vec<CertificateDer<'static>>, SettingFault> {
    let unusable = |why: String| SettingFault::new(setting, format!("{}: {why}", path.display()));
    let pem = read(setting, path, digest)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|e| unusable(format!("is not a PEM file: {e}")))?;
    if found.is_empty() {
        return Err(unusable("contains no certificate".into()));
    }
    Ok(found)
}

fn read(setting: &str, path: &Path, digest: &mut Sha256) -> Result<Vec<u8>, SettingFault> {
    let unreadable = |e: io::Error| SettingFault::new(setting, format!("{} cannot be read: {e}", path.display()));
    let pem = File::open(path).and_then(|file| read_at_most(file, MAX_PEM)).map_err(unreadable)?;
    let pem = pem.ok_or_else(|| {
        SettingFault::new(setting, format!("{} is larger than 1 MiB; is it a PEM file?", path.display()))
    })?;
    digest.update((pem.len() as u64).to_be_bytes());
    digest.update(&pem);
    Ok(pem)
}
