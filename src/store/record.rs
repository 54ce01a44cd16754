//! One line of an import or export (contract section 2, "JSON Lines"). Its fields decide the kind of record.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::*;
use crate::model::{NOTE_KINDS, Number, one_line};

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
                if kind.number == Number::Rating {
                    map.serialize_entry(kind.number.name(), &note.number)?;
                }
                map.serialize_entry(kind.text, &note.text)?;
                if kind.number == Number::Expires {
                    map.serialize_entry(kind.number.name(), &note.number)?;
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
        let fields: Result<Fields, String> = serde_json::from_slice(line).map_err(|e| reason(&e));
        fields.and_then(Fields::record).map_err(shortened)
    }

    /// The guild that the record belongs to, or is.
    pub fn guild(&self) -> &GuildId {
        match self {
            Record::Guild { guild, .. } | Record::Member { guild, .. } | Record::Note { guild, .. } => guild,
        }
    }
}

/// Characters shown of a reason's beginning and of its end. The reason may repeat a value of a megabyte.
const REASON_SHOWN: usize = 120;

fn shortened(reason: String) -> String {
    let length = reason.chars().count();
    if length <= 2 * REASON_SHOWN {
        return reason;
    }
    let begin: String = reason.chars().take(REASON_SHOWN).collect();
    let end: String = reason.chars().skip(length - REASON_SHOWN).collect();
    format!("{begin}…{end}")
}

/// serde_json counts lines within its input, which is one line: only the column is of use.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(what) if error.is_data() => what.to_owned(),
        Some(what) => format!("not JSON: {what} at column {}", error.column()),
        None => text,
    }
}

/// The fields of a line that are not read yet. No two have one name.
struct Fields(Vec<(String, Value)>);

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
        self.0.iter().any(|(name, _)| name == field)
    }

    fn take(&mut self, field: &str) -> Result<Value, String> {
        let at = self.0.iter().position(|(name, _)| name == field);
        at.map(|at| self.0.swap_remove(at).1).ok_or_else(|| format!("'{field}' is missing"))
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
        match self.0.first() {
            Some((field, _)) => Err(format!("{kind} has no field '{field}'")),
            None => Ok(record),
        }
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ReadFields)
    }
}

struct ReadFields;

/// More than any record has.
const MOST_FIELDS: usize = 8;

impl<'de> Visitor<'de> for ReadFields {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"guild\":\"81384788765712384\",\"name\":\"Night Watch\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields(Vec::with_capacity(MOST_FIELDS));
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if fields.has(&name) {
                return Err(A::Error::custom(format!("'{name}' is given twice")));
            }
            if fields.0.len() == MOST_FIELDS {
                return Err(A::Error::custom("it has more fields than any record"));
            }
            fields.0.push((name, value));
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod fuzz;
