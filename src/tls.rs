//! TLS of the listeners, by rustls: which versions and cipher suites are offered, and how a certificate and its key are
//! read and checked. No message quotes the content of a key file.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ResolvesServerCert;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InvalidMessage, ServerConfig};
use x509_cert::der::Decode;

use crate::clock::Clock;
use crate::config::{CertificateFiles, PemFile, SettingFault, client_tls, pair_fault, system_roots};
use crate::files::others_may_read;
use crate::model::date_of;

/// What renews certificates does so earlier (certbot: 30 days before the end), so that it has failed by then.
const ENDS_SOON: i64 = 14 * 24 * 60 * 60;

/// A certificate with its key, read from the files of a configuration (contract section 3, `tls`).
#[derive(Debug)]
pub struct Certificate {
    pub key: Arc<CertifiedKey>,
    /// For the operator: the pair works, but something about it is unsafe or unusual.
    pub warnings: Vec<String>,
}

impl Certificate {
    /// Reads the two files of `setting`, such as `server.tls`, and checks that they belong together.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn load(setting: &str, files: &CertificateFiles) -> Result<Self, SettingFault> {
        let (certificate, private_key) = (&*format!("{setting}.certificate"), &*format!("{setting}.private_key"));
        let (path, key_path) = (files.certificate.display(), files.private_key.display());
        let certificate_file = PemFile::read(certificate, &files.certificate)?;
        let chain = certificate_file.certificates()?;
        let now = Clock::system().unix();
        let validity = chain.first().and_then(validity);
        let soon = validity.and_then(|(_, to)| ends_soon(setting, to, now));
        if let Some((_, to)) = validity.filter(|(_, to)| *to < now) {
            let why = format!("expired at {}: no caller would accept it; put a renewed one in its place", date_of(to));
            return Err(certificate_file.fault(why));
        }
        let key_file = PemFile::read(private_key, &files.private_key)?;
        let key = CertifiedKey::from_der(chain, key_file.private_key()?, &provider())
            .map_err(|error| pair_fault(&certificate_file, &key_file, &error))?;
        let early = validity
            .filter(|(from, _)| *from > now)
            .map(|(from, _)| format!("{certificate}: {path} is not valid before {}", date_of(from)));
        let exposed = others_may_read(&files.private_key).then(|| {
            format!("{private_key}: every user of this machine may read {key_path}; run: chmod o= {key_path}")
        });
        Ok(Certificate { key: Arc::new(key), warnings: [early, soon, exposed].into_iter().flatten().collect() })
    }

    /// When it ends, in Unix seconds.
    pub fn ends(&self) -> Option<i64> {
        validity(self.key.cert.first()?).map(|(_, to)| to)
    }
}

/// The warning about the certificate of `setting`, such as `server.tls`, where it ends within `ENDS_SOON` of `now` (both
/// in Unix seconds), or has ended.
pub fn ends_soon(setting: &str, to: i64, now: i64) -> Option<String> {
    let ends = if to < now { "has ended" } else { "ends" };
    let at = date_of(to);
    let warning = format!("{setting}.certificate {ends} at {at}; put a renewed one in its place");
    (to - now < ENDS_SOON).then_some(warning)
}

/// From when until when a certificate is valid, in Unix seconds; `None` where it cannot be parsed, which rustls reports later.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let validity = x509_cert::Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    let unix = |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).ok();
    Some((unix(validity.not_before)?, unix(validity.not_after)?))
}

/// Whether a handshake has failed because what was connected to does not speak TLS.
pub fn is_plain(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(error, Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// Connects to a server that one of the system's roots proves.
pub async fn connect(host: &str, port: u16) -> io::Result<TlsStream<TcpStream>> {
    let roots = system_roots("the environment variable SSL_CERT_FILE").map_err(io::Error::other)?;
    let config = client_tls(Some(roots), false).map_err(io::Error::other)?.with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The settings of a listener that offers these protocols by ALPN, the preferred one first.
///
/// # Errors
/// Where rustls refuses them.
pub fn server_config(certificate: Arc<dyn ResolvesServerCert>, protocols: &[&[u8]]) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.ignore_client_order = true;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// What rustls offers: TLS 1.2 and 1.3, only suites with forward secrecy and authenticated encryption. Of those our order
/// decides, as each is good, and AES-256 comes last: ring computes its SHA-384 in portable code, which would add a tenth to
/// a handshake.
fn provider() -> CryptoProvider {
    let mut provider = default_provider();
    provider.cipher_suites.sort_by_key(|suite| format!("{:?}", suite.suite()).ends_with("SHA384"));
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_from_14_days_before_its_end() {
        let warning = |now| ends_soon("server.tls", ENDS_SOON, now);
        assert_eq!(warning(0), None);
        let soon = "server.tls.certificate ends at 1970-01-15T00:00:00Z; put a renewed one in its place";
        assert_eq!(warning(1).as_deref(), Some(soon));
        assert!(warning(ENDS_SOON + 1).unwrap().contains("has ended at 1970-01-15"));
    }
}
