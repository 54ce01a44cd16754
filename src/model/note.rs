//! What somebody wrote about a member: a warn or a review. The kinds differ in their names, in what their number means,
//! and in how an answer shows them; everything else treats them alike. Pure.

use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

use super::{MemberId, one_line};

/// The stars that a review may give (contract section 1, "Built-in backend").
pub const RATINGS: RangeInclusive<i64> = 1..=5;

/// A note about a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Unique in its guild among the notes of its kind.
    pub id: i64,
    pub author: String,
    pub text: String,
    /// What [`NoteKind::number`] says.
    pub number: i64,
}

/// What the number of a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// The Unix second from which on the note is in no answer.
    Expires,
    /// Stars: see [`RATINGS`].
    Rating,
}

/// A kind of note.
#[derive(Debug)]
pub struct NoteKind {
    /// Its number in the store, for good.
    pub code: i64,
    /// What commands, records and messages call one of them.
    pub name: &'static str,
    /// What commands and the API call several.
    pub plural: &'static str,
    /// What records and the API call [`Note::text`].
    pub text: &'static str,
    pub number: Number,
    /// Writes its entry in the answer about a member (contract section 1).
    entry: fn(&mut String, MemberId, &Note) -> fmt::Result,
}

pub static WARN: NoteKind = NoteKind {
    code: 1,
    name: "warn",
    plural: "warns",
    text: "reason",
    number: Number::Expires,
    entry: |out, member, Note { id, author, text, number }| {
        write!(out, "warns_{member}_id_{id}_{number}={author}: {text} (Expires {number})")
    },
};

pub static REVIEW: NoteKind = NoteKind {
    code: 2,
    name: "review",
    plural: "reviews",
    text: "text",
    number: Number::Rating,
    entry: |out, member, Note { id, author, text, number }| {
        write!(out, "reviews_{member}_id_{id}_{number}={author} ({number}★): {text}")
    },
};

/// Every kind.
pub static NOTE_KINDS: [&NoteKind; 2] = [&WARN, &REVIEW];

impl Number {
    /// What records and the API call it.
    pub const fn name(self) -> &'static str {
        match self {
            Number::Expires => "expires",
            Number::Rating => "rating",
        }
    }

    /// # Errors
    /// Why a note cannot have this number.
    pub fn check(self, number: i64) -> Result<(), String> {
        match self {
            Number::Rating if !RATINGS.contains(&number) => {
                Err(format!("a rating is {} to {}", RATINGS.start(), RATINGS.end()))
            }
            Number::Rating | Number::Expires => Ok(()),
        }
    }
}

impl PartialEq for NoteKind {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for NoteKind {}

impl NoteKind {
    pub fn expires(&self) -> bool {
        self.number == Number::Expires
    }

    /// The answer about a member: these notes, which the caller has sorted by id.
    pub fn answer(&self, member: MemberId, notes: &[Note]) -> String {
        let mut out = String::with_capacity(2 + notes.len() * 96);
        out.push('{');
        for (n, note) in notes.iter().enumerate() {
            out.push_str(if n > 0 { ", " } else { "" });
            let _ = (self.entry)(&mut out, member, note); // writing to a String cannot fail
        }
        out.push('}');
        out
    }

    /// Bytes of an entry and its separator without member, id, author, text and number. The number is there twice.
    pub fn entry_overhead(&self) -> i64 {
        let empty = Note { id: 0, author: String::new(), text: String::new(), number: 0 };
        let zero: MemberId = MemberId::ZERO;
        let digits = "0".len() * 4; // member, id, and the number twice
        (self.answer(zero, &[empty]).len() - "{}".len() - digits + ", ".len()) as i64
    }
}

impl Note {
    /// The note as it is stored: author and text are one line each.
    pub fn one_line(self) -> Self {
        let [author, text] = [&self.author, &self.text].map(|text| one_line(text).into_owned());
        Note { author, text, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_read_as_the_contract_shows_them() {
        let seven: MemberId = "7".parse().unwrap();
        let note = |id, author: &str, text: &str, number| Note { id, author: author.into(), text: text.into(), number };
        assert_eq!(WARN.answer(seven, &[]), "{}");
        assert_eq!(
            WARN.answer(seven, &[note(17, "Mod", "spam, twice", 1990), note(18, "Mod", "spam", 2000)]),
            "{warns_7_id_17_1990=Mod: spam, twice (Expires 1990), warns_7_id_18_2000=Mod: spam (Expires 2000)}"
        );
        let review = note(9, "Bo", "Quick and kind", 5);
        assert_eq!(REVIEW.answer(seven, &[review]), "{reviews_7_id_9_5=Bo (5★): Quick and kind}");
    }

    #[test]
    fn the_overhead_of_an_entry_is_what_is_no_value_in_it() {
        for (kind, overhead) in [(&WARN, 27), (&REVIEW, 24)] {
            assert_eq!(kind.entry_overhead(), overhead, "{}", kind.name);
        }
    }
}
