//! Checks `[origin]` and `[keys]`: the kind of origin, the store, and the source of keys.

use std::path::PathBuf;

use super::Checker;
use crate::config::file::{KeySourceFile, KeysFile, OriginFile, OriginKindFile};
use crate::config::secret::Secret;
use crate::config::store::{PostgresAt, StoreAt};
use crate::config::usable::{Keys, Origin, OriginKind};

/// The names of `[origin]` that apply to upstreams only.
const UPSTREAM_SETTINGS: [&str; 9] = [
    "host",
    "connect_timeout",
    "first_byte_timeout",
    "timeout",
    "max_in_flight",
    "queue_timeout",
    "retries",
    "health",
    "tls",
];

impl Checker<'_> {
    pub(super) fn origin(&mut self, file: &OriginFile) -> Origin {
        let upstreams = self.upstreams(file);
        let kind = match file.kind {
            OriginKindFile::Builtin => {
                self.unused_upstream_settings(file);
                OriginKind::Builtin
            }
            OriginKindFile::Http => {
                if file.upstreams.is_empty() {
                    self.fault("origin.upstreams", "kind \"http\" needs one, such as [\"http://10.0.0.7:3000\"]");
                }
                OriginKind::Http(Box::new(upstreams))
            }
        };
        Origin { kind, store: self.store(&file.store) }
    }

    fn unused_upstream_settings(&mut self, file: &OriginFile) {
        let is_misspelt = self.problems.iter().any(|problem| problem.path == "origin.kind");
        if !file.upstreams.is_empty() && !is_misspelt {
            self.fault("origin.upstreams", "needs `origin.kind` \"http\": the built-in backend has no upstreams");
        }
        for name in UPSTREAM_SETTINGS {
            let path = format!("origin.{name}");
            if self.places.is_given(&path) {
                self.warning(&path, "has no effect with `origin.kind` \"builtin\"");
            }
        }
    }

    fn store(&mut self, secret: &Secret) -> StoreAt {
        let setting = "origin.store";
        let found = self.secret(setting, secret);
        let store = found.and_then(|text| self.store_at(setting, &text)).unwrap_or_else(|why| {
            self.fault(setting, why);
            StoreAt::Sqlite(PathBuf::new()) // never used: there is a fault
        });
        self.resolved.push((setting.to_owned(), store.to_string()));
        store
    }

    /// The store that a text names. A store's URL is in no message, since it may hold a password.
    fn store_at(&mut self, setting: &str, text: &str) -> Result<StoreAt, String> {
        if PostgresAt::is_meant(text) {
            let at = PostgresAt::parse(text, self.folder)?;
            if at.is_unverified_remote() {
                self.warning(setting, "the server's certificate is not verified; add sslmode=verify-full to verify it");
            }
            return Ok(StoreAt::Postgres(Box::new(at)));
        }
        if text.contains("://") {
            return Err("must be the path of an SQLite file, or a postgres:// URL".to_owned());
        }
        if text == ":memory:" {
            // SQLite would take it and lose every setPoints that was answered with success.
            return Err("must be a file: data in memory is lost at exit".to_owned());
        }
        Ok(StoreAt::Sqlite(self.file(setting, text)))
    }

    pub(super) fn keys(&mut self, file: &KeysFile, origin: &OriginFile) -> Keys {
        let accepted_for = self.timeout("keys.accepted_for", file.accepted_for);
        let refused_for = file.refused_for.0;
        for path in ["keys.accepted_for", "keys.refused_for"] {
            if file.source != KeySourceFile::Origin && self.places.is_given(path) {
                self.warning(path, "has no effect unless `keys.source` is \"origin\"");
            }
        }
        if file.file.is_some() && file.source != KeySourceFile::File {
            self.warning("keys.file", "has no effect unless `keys.source` is \"file\"");
        }
        match (file.source, &file.file) {
            (KeySourceFile::Store, _) => Keys::Store,
            (KeySourceFile::File, Some(keys)) => Keys::File(self.file("keys.file", keys)),
            (KeySourceFile::File, None) => {
                self.fault("keys.file", "`keys.source` \"file\" needs it: the path of the key file");
                Keys::Store // never used: there is a fault
            }
            (KeySourceFile::Origin, _) => {
                if origin.kind == OriginKindFile::Builtin {
                    let why = "the built-in backend needs keys from the store or a file; use \"store\" or \"file\"";
                    self.fault("keys.source", format!("\"origin\" needs `origin.kind` \"http\": {why}"));
                }
                Keys::Origin { accepted_for, refused_for }
            }
        }
    }
}
