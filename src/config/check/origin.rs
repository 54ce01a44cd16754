//! `[origin]` and `[keys]`, judged.

use std::path::PathBuf;

use super::Checker;
use crate::config::file::{KeySource, KeysFile, OriginFile, OriginKindFile};
use crate::config::secret::{Secret, Source, read_file};
use crate::config::store::{PostgresAt, StoreAt};
use crate::config::usable::{Keys, Origin, OriginKind};

/// The names of `[origin]` that speak of how upstreams are asked.
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
            self.fault("origin.upstreams", "needs `origin.kind` \"http\": the built-in backend asks nobody else");
        }
        for name in UPSTREAM_SETTINGS {
            let path = format!("origin.{name}");
            if self.places.given(&path) {
                self.notice(&path, "has no effect with `origin.kind` \"builtin\"");
            }
        }
    }

    /// Where the store is. A store's URL is in no message: it may hold a password.
    fn store(&mut self, secret: &Secret) -> StoreAt {
        let path = "origin.store";
        let nowhere = StoreAt::Sqlite(PathBuf::new()); // never seen: there is a fault
        let found = match secret.source() {
            Source::Written(text) => text.to_owned(),
            Source::File(name) => match read_file(&self.file(path, name)) {
                Ok(text) => text,
                Err(why) => {
                    self.fault(path, why);
                    return nowhere;
                }
            },
            Source::Env(name) => {
                self.env_name(path, name);
                match (self.env)(name) {
                    Some(text) => text,
                    None => {
                        let name = name.escape_debug();
                        self.fault(path, format!("the environment variable `{name}` is not set, or is no text"));
                        return nowhere;
                    }
                }
            }
        };
        if PostgresAt::is_meant(&found) {
            return match PostgresAt::parse(&found, self.folder) {
                Ok(at) => {
                    if at.is_open_to_impostors() {
                        self.notice(path, "the server's certificate is not verified; sslmode=verify-full does it");
                    }
                    StoreAt::Postgres(Box::new(at))
                }
                Err(why) => {
                    self.fault(path, why);
                    nowhere
                }
            };
        }
        if found.contains("://") {
            self.fault(path, "must be a path of an SQLite file, or a postgres:// URL");
        } else if found == ":memory:" {
            // SQLite would take it and lose every setPoints that was answered with success.
            self.fault(path, "must be a file: what is in memory is lost at the end");
        }
        StoreAt::Sqlite(self.file(path, &found))
    }

    pub(super) fn keys(&mut self, file: &KeysFile, origin: &OriginFile) -> Keys {
        let accepted_for = self.timeout("keys.accepted_for", file.accepted_for);
        let refused_for = self.duration("keys.refused_for", file.refused_for);
        for path in ["keys.accepted_for", "keys.refused_for"] {
            if file.source != KeySource::Origin && self.places.given(path) {
                self.notice(path, "has no effect unless `keys.source` is \"origin\"");
            }
        }
        if file.file.is_some() && file.source != KeySource::File {
            self.notice("keys.file", "has no effect unless `keys.source` is \"file\"");
        }
        match (file.source, &file.file) {
            (KeySource::Store, _) => Keys::Store,
            (KeySource::File, Some(keys)) => Keys::File(self.file("keys.file", keys)),
            (KeySource::File, None) => {
                self.fault("keys.file", "`keys.source` \"file\" needs it: the path of the key file");
                Keys::Store // never seen: there is a fault
            }
            (KeySource::Origin, _) => {
                if origin.kind == OriginKindFile::Builtin {
                    let why = "the built-in backend learns its keys from the store; use \"store\" or \"file\"";
                    self.fault("keys.source", format!("\"origin\" needs `origin.kind` \"http\": {why}"));
                }
                Keys::Origin { accepted_for, refused_for }
            }
        }
    }
}
