//! TLS to upstreams: the trusted roots and our own certificate (contract section 3, `[origin] tls`). It reads the files
//! that the configuration names, and keeps no key in reach.

use std::io;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

use crate::config::{CertificateFiles, PemFile, SettingFault, Upstreams};

/// The trusted roots and our own certificate, for all upstreams with TLS.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    /// Of all files that were read, so that a change is noticed without a key being kept.
    digest: [u8; 32],
}

/// TLS to a server whose certificate has to be for a name.
#[derive(Clone, Debug)]
pub(super) struct ServerTls {
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
            Some(path) => roots_from_file(path, &mut digest)?,
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

    /// Makes the handshake with a server whose certificate has to be for `name`.
    pub async fn connect(&self, name: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.for_name(name).map_err(io::Error::other)?.connect(stream).await
    }

    pub(super) fn for_name(&self, name: &str) -> Result<ServerTls, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|e| format!("origin.tls.server_name: {name}: {e}"))?;
        Ok(ServerTls { tls: self.clone(), name })
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

impl ServerTls {
    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.tls.connector.connect(self.name.clone(), stream).await
    }
}

impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        self.tls == other.tls && self.name == other.name
    }
}

/// The roots of the file that the operator named, and no others.
fn roots_from_file(path: &Path, digest: &mut Sha256) -> Result<RootCertStore, SettingFault> {
    let mut roots = RootCertStore::empty();
    let file = read("origin.tls.ca", path, digest)?;
    for (certificate, number) in file.certificates()?.into_iter().zip(1..) {
        let unusable = |e| file.fault(format!("has an unusable certificate (number {number}): {e}"));
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
    let chain = read("origin.tls.certificate", &identity.certificate, digest)?.certificates()?;
    let key_file = read("origin.tls.private_key", &identity.private_key, digest)?;
    config.with_client_auth_cert(chain, key_file.private_key()?).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => {
            key_file.fault(format!("is not the key of the certificate in {}", identity.certificate.display()))
        }
        e => key_file.fault(format!("cannot be used: {e}")),
    })
}

/// Reads a PEM file into the digest too.
fn read<'a>(setting: &'a str, path: &'a Path, digest: &mut Sha256) -> Result<PemFile<'a>, SettingFault> {
    let file = PemFile::read(setting, path)?;
    digest.update((file.content().len() as u64).to_be_bytes());
    digest.update(file.content());
    Ok(file)
}
