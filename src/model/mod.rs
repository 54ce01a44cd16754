//! The nouns of the service: guilds, keys, members, warns, reviews, limits and dates. Plain data; no module of the crate
//! but this one is used here.

mod date;
mod guild;
mod key;
mod limit;
mod member;
mod note;
mod words;

pub use date::{LATEST_DATE, date_of, unix_of};
pub use guild::GuildId;
pub use key::{Digest, KeyId, Scope, hide_keys};
pub use limit::{Limit, PerRate};
pub use member::{MAX_MEMBER_NAME, MemberId, one_line};
pub use note::*;
pub use words::{counted, rough, was};
