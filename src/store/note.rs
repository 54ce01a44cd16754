//! Warns and reviews as both stores keep them: each kind in a table of its own, with columns of the same types.

use super::answers::{review_bytes, warn_bytes};
use super::{StoreError, refusals};
use crate::model::{Review, Warn, one_line};

/// A warn or a review of a member, whose id is unique in its guild.
pub trait Note: Sized + Send + Sync + 'static {
    /// Its table, and what messages call it.
    const TABLE: &'static str;
    /// The table's column that holds [`NoteRow::text`].
    const TEXT: &'static str;
    /// The table's column that holds [`NoteRow::number`].
    const NUMBER: &'static str;
    /// SQL for its bytes in the answer about its member.
    const BYTES: &'static str;
    /// Whether it is in no answer from the second `NUMBER` on.
    const EXPIRES: bool;

    /// The row that keeps it, or why it is refused.
    fn to_row(&self) -> Result<NoteRow, StoreError>;

    fn from_row(row: NoteRow) -> Result<Self, StoreError>;
}

/// The columns of a warn or review, without guild and member.
#[derive(Debug)]
pub struct NoteRow {
    pub id: i64,
    pub author: String,
    pub text: String,
    pub number: i64,
}

impl Note for Warn {
    const TABLE: &'static str = "warn";
    const TEXT: &'static str = "reason";
    const NUMBER: &'static str = "expires";
    const BYTES: &'static str = warn_bytes!("");
    const EXPIRES: bool = true;

    fn to_row(&self) -> Result<NoteRow, StoreError> {
        let (author, text) = (one_line(&self.author).into_owned(), one_line(&self.reason).into_owned());
        Ok(NoteRow { id: self.id, author, text, number: self.expires })
    }

    fn from_row(row: NoteRow) -> Result<Self, StoreError> {
        Ok(Warn { id: row.id, author: row.author, reason: row.text, expires: row.number })
    }
}

impl Note for Review {
    const TABLE: &'static str = "review";
    const TEXT: &'static str = "text";
    const NUMBER: &'static str = "rating";
    const BYTES: &'static str = review_bytes!("");
    const EXPIRES: bool = false;

    fn to_row(&self) -> Result<NoteRow, StoreError> {
        refusals::check_rating(self.rating)?;
        let (author, text) = (one_line(&self.author).into_owned(), one_line(&self.text).into_owned());
        Ok(NoteRow { id: self.id, author, text, number: self.rating.into() })
    }

    fn from_row(NoteRow { id, author, text, number }: NoteRow) -> Result<Self, StoreError> {
        let rating = u8::try_from(number);
        let rating = rating.map_err(|_| StoreError::Failed(format!("the store holds the invalid rating {number}")))?;
        Ok(Review { id, author, rating, text })
    }
}
