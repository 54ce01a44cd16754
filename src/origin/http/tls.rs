//! TLS to upstreams: the trusted roots and our own certificate (contract section 3, `[origin] tls`). It reads the files
//! that the configuration names, and keeps no key in reach.

use std::io;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, rustls};

use crate::config::{
    CertificateFiles, PemFile, SettingFault, Upstreams, client_tls, pair_fault, system_roots, tls_fault,
};
use crate::tls::is_plain;

/// The trusted roots and our own certificate, for all upstreams with TLS.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    /// Of all files that were read, so that a change is noticed without a key being kept.
    digest: [u8; 32],
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
            // The roots of the file that the operator named, and no others.
            Some(path) => PemFile::read("origin.tls.ca", path)?.roots()?,
            None => system_roots("origin.tls.ca").map_err(|why| SettingFault::new("origin.upstreams", why))?,
        };
        roots.certificates.iter().for_each(|certificate| digest.update(certificate));
        let config = client_tls(Some(roots), false).map_err(|why| SettingFault::new("origin.tls", why))?;
        let mut config = match &settings.tls.identity() {
            None => config.with_no_client_auth(),
            Some(identity) => with_identity(config, identity, &mut digest)?,
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Tls { connector: TlsConnector::from(Arc::new(config)), digest: digest.finalize().into() }))
    }

    /// Makes the handshake with a server whose certificate has to be for `name`.
    pub async fn connect(&self, name: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await.map_err(|error| {
            io::Error::other(match is_plain(&error) {
                true => "it does not speak TLS; is it http://?".to_owned(),
                // A certificate may have thousands of names, which a message repeats.
                false => format!("{:.300}", tls_fault(error)),
            })
        })
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

fn with_identity(
    config: rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>,
    identity: &CertificateFiles,
    digest: &mut Sha256,
) -> Result<ClientConfig, SettingFault> {
    let certificate_file = read("origin.tls.certificate", &identity.certificate, digest)?;
    let key_file = read("origin.tls.private_key", &identity.private_key, digest)?;
    config
        .with_client_auth_cert(certificate_file.certificates()?, key_file.private_key()?)
        .map_err(|error| pair_fault(&certificate_file, &key_file, &error))
}

/// Reads a PEM file into the digest too.
fn read<'a>(setting: &'a str, path: &'a Path, digest: &mut Sha256) -> Result<PemFile<'a>, SettingFault> {
    let file = PemFile::read(setting, path)?;
    digest.update((file.content().len() as u64).to_be_bytes());
    digest.update(file.content());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_upstream_that_answers_without_tls_is_said_not_to_speak_it() {
        let config = client_tls(None, true).unwrap().with_no_client_auth();
        let tls = Tls { connector: TlsConnector::from(Arc::new(config)), digest: [0; 32] };
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(plain.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = plain.accept().await.unwrap();
        server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let error = tls.connect("localhost", stream).await.unwrap_err();
        assert_eq!(error.to_string(), "it does not speak TLS; is it http://?");
    }
}
