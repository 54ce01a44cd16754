//! TLS to the server. `sslmode` means what it means to libpq (docs/storage.md).

use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{PemFile, PostgresTls, client_tls, system_roots};

/// Reads the trusted certificates.
///
/// # Errors
/// Which file cannot be used, and why.
pub(super) fn connector(tls: &PostgresTls) -> Result<MakeRustlsConnect, String> {
    let (roots, any_name) = match tls {
        // Off: it has no effect then.
        PostgresTls::Off | PostgresTls::Unverified => (None, true),
        PostgresTls::Verified { roots: Some(path), name } => {
            let roots = PemFile::read("sslrootcert", path).and_then(|file| file.roots());
            (Some(roots.map_err(|fault| fault.to_string())?), !name)
        }
        PostgresTls::Verified { roots: None, name } => (Some(system_roots("sslrootcert=FILE of its URL")?), !name),
    };
    Ok(MakeRustlsConnect::new(client_tls(roots, any_name)?.with_no_client_auth()))
}
