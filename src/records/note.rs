//! Notes about members: warns and reviews. The kinds differ in what is typed; everything else treats them alike.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Records;
use crate::config::expires::Expires;
use crate::json::Whole;
use crate::model::{GuildId, MemberId, Note, NoteKind, Number, REVIEW, WARN};
use crate::store::{StoreError, refusals};

/// The id of a note, which is a text in JSON.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct NoteId(pub i64);

/// The stars of a review.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Whole")]
pub struct Rating(i64);

/// A kind of note as it is typed.
pub trait NoteInput: Args + DeserializeOwned + Send {
    const KIND: &'static NoteKind;

    /// The note, without an id.
    fn note(self, records: &Records) -> Result<Note, StoreError>;
}

/// A warn.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarnInput {
    /// Who issues the warn
    #[arg(long)]
    author: String,
    /// The reason for the warn
    #[arg(long)]
    reason: String,
    /// When it expires: 90d from now, 2026-12-24, 2026-12-24T18:00:00Z, or Unix seconds
    #[arg(long)]
    expires: Expires,
}

/// A review.
#[derive(Clone, Debug, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewInput {
    /// Who writes the review
    #[arg(long)]
    author: String,
    /// Stars, 1 to 5
    #[arg(long, value_parser = |text: &str| Rating::try_from(Whole(text.parse().unwrap_or(0))))]
    rating: Rating,
    /// The text of the review
    #[arg(long)]
    text: String,
}

/// A warn or a review of a member.
#[derive(Debug, Serialize, ToSchema)]
pub struct NoteRow {
    pub id: String,
    pub member: MemberId,
    pub author: String,
    /// Of a warn: `reason`, and `expires` in Unix seconds, from which on it is in no answer. Of a review: `rating`, 1 to 5,
    /// and `text`.
    #[serde(flatten)]
    fields: BTreeMap<&'static str, Value>,
}

impl NoteInput for WarnInput {
    const KIND: &'static NoteKind = &WARN;

    fn note(self, records: &Records) -> Result<Note, StoreError> {
        let expires = records.end(self.expires)?;
        let number =
            expires.ok_or_else(|| StoreError::Refused("expires is never, and a warn has an end".to_owned()))?;
        Ok(Note { id: 0, author: self.author, text: self.reason, number }.one_line())
    }
}

impl NoteInput for ReviewInput {
    const KIND: &'static NoteKind = &REVIEW;

    fn note(self, _: &Records) -> Result<Note, StoreError> {
        Ok(Note { id: 0, author: self.author, text: self.text, number: self.rating.0 }.one_line())
    }
}

impl FromStr for NoteId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = Some(text).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        id.and_then(|id| id.parse().ok()).map(NoteId).ok_or("an id is a whole number, 0 to 9223372036854775807")
    }
}

impl TryFrom<String> for NoteId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl TryFrom<Whole> for Rating {
    type Error = String;

    fn try_from(Whole(stars): Whole) -> Result<Self, String> {
        Number::Rating.check(stars).map(|()| Rating(stars))
    }
}

impl NoteRow {
    fn new(kind: &NoteKind, member: MemberId, note: Note) -> Self {
        let fields = BTreeMap::from([(kind.text, note.text.into()), (kind.number.name(), note.number.into())]);
        NoteRow { id: note.id.to_string(), member, author: note.author, fields }
    }
}

/// So many of a guild's notes of a kind, or of one member's, after the id `after`, by id; expired ones too.
pub async fn list(
    records: &Records,
    kind: &'static NoteKind,
    guild: &GuildId,
    of: Option<MemberId>,
    after: Option<NoteId>,
    limit: usize,
) -> Result<Vec<NoteRow>, StoreError> {
    let notes = records.store.notes(kind, guild, of, after.map(|NoteId(after)| after), limit).await?;
    Ok(notes.into_iter().map(|(member, note)| NoteRow::new(kind, member, note)).collect())
}

pub async fn show(
    records: &Records,
    kind: &'static NoteKind,
    guild: &GuildId,
    NoteId(id): NoteId,
) -> Result<NoteRow, StoreError> {
    let note = records.store.note(kind, guild, id).await?;
    let (member, note) = note.ok_or_else(|| refusals::unknown_note(guild, kind.name, id))?;
    Ok(NoteRow::new(kind, member, note))
}

/// Adds a note under the guild's next id, making the member if need be.
pub async fn add<I: NoteInput>(
    records: &Records,
    guild: &GuildId,
    member: MemberId,
    input: I,
) -> Result<NoteRow, StoreError> {
    let note = input.note(records)?;
    let id = records.store.add_note(I::KIND, guild, member, note.clone()).await?;
    Ok(NoteRow::new(I::KIND, member, Note { id, ..note }))
}

/// Puts a note under its id, making the member if need be, or replaces the member's one of that id. Answers whether there
/// was none.
pub async fn put<I: NoteInput>(
    records: &Records,
    guild: &GuildId,
    member: MemberId,
    NoteId(id): NoteId,
    input: I,
) -> Result<(NoteRow, bool), StoreError> {
    let note = Note { id, ..input.note(records)? };
    let is_new = records.store.put_note(I::KIND, guild, member, note.clone()).await?;
    Ok((NoteRow::new(I::KIND, member, note), is_new))
}
