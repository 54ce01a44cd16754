//! The nouns: who is spoken of and what is kept about them.

mod date;
mod guild;
mod key;
mod limit;
mod member;

pub use date::{LATEST_DATE, date_of, unix_of};
pub use guild::{BadGuildId, GuildId};
pub use key::{Digest, KeyId, Scope};
pub use limit::Limit;
pub use member::{MemberId, RATINGS, Review, Warn, one_line};
