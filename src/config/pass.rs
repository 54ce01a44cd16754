//! `[pass]`: which requests that are no operation go on to an HTTP origin.

use std::time::Duration;

use super::file::section;
use super::leaf::{HumanSize, Timeout};
use super::origin::{Keys, OriginKind};
use super::problem::Faults;
use super::server::url_path;
use crate::wire::lies_under;

/// The largest body that may be allowed: it is streamed, so that memory does not bound it.
const MAX_BODY: u64 = 1 << 40;

section! {
    /// `[pass]`
    pub struct Pass {
        /// Paths whose requests go on to an upstream where they are no operation, with all below them, such as "/docs";
        /// "/": everything. Off while it is empty.
        #[schemars(extend("uniqueItems" = true))]
        pub paths: Vec<String> = Vec::new(),
        /// A request needs a key and is held to its limits as an operation is; false: anybody may send one.
        pub key: bool = true,
        /// The largest body of a request.
        #[serde(with = "HumanSize")]
        pub max_body: u64 = 10 << 20,
        /// For which neither side may send a byte.
        #[serde(with = "Timeout")]
        pub idle_timeout: Duration = Duration::from_secs(60),
    }
}

impl Pass {
    pub(super) fn check(&self, faults: &mut Faults<'_>, origin: &OriginKind, keys: &Keys) {
        faults.size("pass.max_body", self.max_body, 0..=MAX_BODY);
        for (i, path) in self.paths.iter().enumerate() {
            let setting = format!("pass.paths[{i}]");
            if path.is_empty() {
                faults.add(&setting, "must begin with `/`, such as \"/docs\"");
            }
            url_path(path).unwrap_or_else(|why| faults.add(&setting, why));
            if path.len() > 1 && path.ends_with('/') {
                faults.add(&setting, "must not end in `/`; write it as \"/docs\"");
            }
        }
        if self.paths.is_empty() {
            return;
        }
        if *origin == OriginKind::Builtin && !faults.has("origin.kind") {
            faults.add("pass.paths", "needs `origin.kind` \"http\": the built-in backend answers operations only");
        }
        if self.key && matches!(keys, Keys::Origin { .. }) {
            let why =
                "only the origin can judge keys there (`keys.source` \"origin\"), and it judges what passes itself";
            faults.add("pass.key", format!("must be false: {why}"));
        }
    }

    /// Whether a request with this path goes on where it is no operation, in whatever spelling
    /// ([`may_be_operation`](crate::wire::may_be_operation)).
    pub fn covers(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|prefix| lies_under(path, prefix))
    }
}
