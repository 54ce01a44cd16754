//! The nouns: who is spoken of and what is kept about them.

mod guild;
mod key;
mod limit;
mod member;

pub use guild::{BadGuildId, GuildId};
pub use key::{Digest, KeyId, Scope};
pub use limit::Limit;
pub use member::{MemberId, RATINGS, Review, Warn, one_line};
