//! The tokens of the admin listener: where they come from, whose they are, and how a request's token is compared. Only
//! their digests are kept.

use std::io::{self, Write};
use std::path::Path;

use subtle::ConstantTimeEq;

use crate::config::secret::Source;
use crate::config::{AdminListener, SettingFault};
use crate::files::{folder_of, others_may_read};
use crate::keys::random_token;
use crate::model::Digest;

/// Fewer characters could be guessed.
const MIN_TOKEN: usize = 16;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Everything.
    Admin,
    /// See everything, and change nothing.
    Read,
    /// Read and write members, warns and reviews, and nothing else.
    Bot,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Read => "read",
            Role::Bot => "bot",
        }
    }
}

/// The tokens that are accepted, by their digests.
#[derive(Debug)]
pub struct Tokens(Vec<(Role, Digest)>);

impl Tokens {
    /// Reads the tokens. The file of the admin token is made if it is missing.
    ///
    /// # Errors
    /// Every token that cannot be used.
    pub fn load(listener: &AdminListener) -> Result<Self, Vec<SettingFault>> {
        if let Source::File(path) = listener.token.source()
            && is_missing(Path::new(path))
        {
            make(Path::new(path))
                .map_err(|e| vec![SettingFault::new("admin.token", format!("cannot make {path}: {e}"))])?;
            tracing::info!(path, "made the admin token");
        }
        let (tokens, faults) = read(listener);
        if faults.is_empty() { Ok(Tokens(tokens)) } else { Err(faults) }
    }

    /// Every token that cannot be used. A missing file of the admin token is made later.
    pub fn faults(listener: &AdminListener) -> Vec<SettingFault> {
        read(listener).1
    }

    /// A line for each token file that every user of this machine may read.
    pub fn warnings(listener: &AdminListener) -> impl Iterator<Item = String> {
        listener.tokens().filter_map(|(setting, token)| match token.source() {
            Source::File(path) if others_may_read(Path::new(path)) => {
                Some(format!("{setting}: every user of this machine may read {path}; run: chmod o= {path}"))
            }
            _ => None,
        })
    }

    /// Whose token it is. Takes the same time for every wrong one.
    pub(super) fn role_of(&self, token: &[u8]) -> Option<Role> {
        let digest = Digest::of(token);
        let is_same = |of: &Digest| bool::from(of.0.ct_eq(&digest.0));
        // All are compared, whichever it is.
        self.0.iter().fold(None, |found, (role, of)| if is_same(of) { Some(*role) } else { found })
    }
}

/// Whether there is no such file. A link to a file that is not there is a fault, and nothing is made in its place.
fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err()
}

fn read(listener: &AdminListener) -> (Vec<(Role, Digest)>, Vec<SettingFault>) {
    let (mut tokens, mut faults) = (Vec::new(), Vec::new());
    for (setting, token) in listener.tokens() {
        let role = match setting {
            "admin.read_token" => Role::Read,
            "admin.bot_token" => Role::Bot,
            _ => Role::Admin,
        };
        if matches!(token.source(), Source::File(path) if role == Role::Admin && is_missing(Path::new(path))) {
            continue;
        }
        let token = token.value(&|name| std::env::var(name).ok()).and_then(|token| match token.chars().count() {
            MIN_TOKEN.. => Ok(Digest::of(token.as_bytes())),
            _ => Err(format!("the token is shorter than {MIN_TOKEN} characters; make a longer one")),
        });
        match token {
            Ok(digest) if tokens.iter().any(|(_, other)| *other == digest) => {
                faults.push(SettingFault::new(setting, "is the token of another role; make one for each"));
            }
            Ok(digest) => tokens.push((role, digest)),
            Err(why) => faults.push(SettingFault::new(setting, why)),
        }
    }
    (tokens, faults)
}

/// Makes the file of a new token, readable by its owner only. It is there whole or not at all.
fn make(path: &Path) -> io::Result<()> {
    let token = random_token().map_err(io::Error::other)?;
    let mut file = tempfile::NamedTempFile::new_in(folder_of(path))?; // mode 0600
    writeln!(file, "{token}")?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        // Another process has made it meanwhile, and this one reads that.
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        Ok(_) | Err(_) => Ok(()),
    }
}
