//! One line of an import or export (contract section 2, "JSON Lines"). Its fields decide the kind of record.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::*;
use crate::model::{NOTE_KINDS, one_line};

/// The record of a line. It is serialised with its fields in the contract's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Guild { guild: GuildId, name: String },
    Member { guild: GuildId, member: MemberId, name: String, points: i64 },
    Note { guild: GuildId, member: MemberId, kind: &'static NoteKind, note: Note },
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("guild", self.guild())?;
        match self {
            Record::Guild { name, .. } => map.serialize_entry("name", name)?,
            Record::Member { member, name, points, .. } => {
                map.serialize_entry("member", &member.to_string())?;
                map.serialize_entry("name", name)?;
                map.serialize_entry("points", points)?;
            }
            Record::Note { member, kind, note, .. } => {
                map.serialize_entry("member", &member.to_string())?;
                map.serialize_entry(kind.name, &note.id.to_string())?;
                map.serialize_entry("author", &note.author)?;
                // The contract's order.
                let mut last = [(kind.number.name(), Value::from(note.number)), (kind.text, (&*note.text).into())];
                last.rotate_left(kind.expires().into());
                for (field, value) in last {
                    map.serialize_entry(field, &value)?;
                }
            }
        }
        map.end()
    }
}

impl Record {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Record, String> {
        serde_json::from_slice(line).map_err(|e| reason(&e)).and_then(|fields| Fields(fields).record())
    }

    /// The guild that the record belongs to, or is.
    pub fn guild(&self) -> &GuildId {
        match self {
            Record::Guild { guild, .. } | Record::Member { guild, .. } | Record::Note { guild, .. } => guild,
        }
    }
}

/// serde_json counts lines within its input, which is one line: only the column is of use.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line ") {
        _ if error.is_data() => r#"no object such as {"guild":"81384788765712384","name":"Night Watch"}"#.to_owned(),
        Some((what, _)) => format!("not JSON: {what} at column {}", error.column()),
        None => text,
    }
}

/// The fields of a line that are not read yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn record(mut self) -> Result<Record, String> {
        let guild: GuildId = self.text("guild")?.parse().map_err(|e| format!("'guild': {e}"))?;
        if !self.has("member") {
            let name = self.line("name")?;
            return self.whole("a guild", Record::Guild { guild, name });
        }
        let member: MemberId = self.text("member")?.parse().map_err(|e| format!("'member': {e}"))?;
        if let Some(kind) = NOTE_KINDS.into_iter().find(|kind| self.has(kind.name)) {
            let id = self.text(kind.name)?.parse().map(MemberId::as_i64);
            let id = id.map_err(|_: &str| format!("'{}' is digits, at most {}", kind.name, i64::MAX))?;
            let (author, text) = (self.line("author")?, self.line(kind.text)?);
            let number = self.number(kind.number.name())?;
            kind.number.check(number)?;
            let note = Note { id, author, text, number };
            return self.whole(&format!("a {}", kind.name), Record::Note { guild, member, kind, note });
        }
        let name = self.line("name")?;
        refusals::member_name(&name)?;
        let points = self.number("points")?;
        self.whole("a member", Record::Member { guild, member, name, points })
    }

    fn has(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    fn take(&mut self, field: &str) -> Result<Value, String> {
        self.0.remove(field).ok_or_else(|| format!("'{field}' is missing"))
    }

    fn text(&mut self, field: &str) -> Result<String, String> {
        match self.take(field)? {
            Value::String(text) => Ok(text),
            _ => Err(format!(
                "'{field}' is a text in quotes (ids too: as JSON numbers they lose digits in many readers)"
            )),
        }
    }

    fn line(&mut self, field: &str) -> Result<String, String> {
        self.text(field).map(|text| one_line(&text).into_owned())
    }

    fn number(&mut self, field: &str) -> Result<i64, String> {
        let number = self.take(field)?;
        number.as_i64().ok_or_else(|| format!("'{field}' is a whole number, {} to {}", i64::MIN, i64::MAX))
    }

    /// A field of another kind of record, or of none, is a mistake and is not ignored.
    fn whole(self, kind: &str, record: Record) -> Result<Record, String> {
        match self.0.keys().next() {
            Some(field) => {
                Err(format!("{kind} has no field '{}'", field.chars().take(SHOWN_OF_NAME).collect::<String>()))
            }
            None => Ok(record),
        }
    }
}

/// Characters shown of a field's name, which may be a megabyte long.
const SHOWN_OF_NAME: usize = 40;

#[cfg(test)]
mod fuzz;
