//! One line of an import or export. Its fields decide the kind of record.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::{GuildId, MemberId, RATINGS};
use crate::store::refusals;

/// The record of a line. It is serialised with its fields in the contract's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Record {
    Guild {
        guild: GuildId,
        name: String,
    },
    Member {
        guild: GuildId,
        #[serde(serialize_with = "as_text")]
        member: MemberId,
        name: String,
        points: i64,
    },
    Warn {
        guild: GuildId,
        #[serde(serialize_with = "as_text")]
        member: MemberId,
        #[serde(serialize_with = "as_text")]
        warn: i64,
        author: String,
        reason: String,
        expires: i64,
    },
    Review {
        guild: GuildId,
        #[serde(serialize_with = "as_text")]
        member: MemberId,
        #[serde(serialize_with = "as_text")]
        review: i64,
        author: String,
        rating: u8,
        text: String,
    },
}

fn as_text<T: fmt::Display, S: serde::Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

impl Record {
    /// Reads a line; the error says what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Record, String> {
        let fields: Result<Fields<'_>, String> = serde_json::from_slice(line).map_err(|e| reason(&e));
        fields.and_then(Fields::record).map_err(shortened)
    }

    /// The guild that the record belongs to, or is.
    pub fn guild(&self) -> &GuildId {
        match self {
            Record::Guild { guild, .. }
            | Record::Member { guild, .. }
            | Record::Warn { guild, .. }
            | Record::Review { guild, .. } => guild,
        }
    }
}

/// Characters shown of a reason's beginning and of its end. The reason may repeat a value of a megabyte.
const SHOWN: usize = 120;

fn shortened(reason: String) -> String {
    let length = reason.chars().count();
    if length <= 2 * SHOWN {
        return reason;
    }
    let begin: String = reason.chars().take(SHOWN).collect();
    let end: String = reason.chars().skip(length - SHOWN).collect();
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

/// The fields of every kind of record.
#[derive(Debug, Default)]
struct Fields<'a> {
    guild: Option<Cow<'a, str>>,
    member: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    points: Option<i64>,
    warn: Option<Cow<'a, str>>,
    author: Option<Cow<'a, str>>,
    reason: Option<Cow<'a, str>>,
    expires: Option<i64>,
    review: Option<Cow<'a, str>>,
    rating: Option<i64>,
    text: Option<Cow<'a, str>>,
}

impl Fields<'_> {
    fn record(mut self) -> Result<Record, String> {
        let guild = self.guild.take().ok_or("'guild' is missing")?.parse::<GuildId>().map_err(|e| e.to_string())?;
        let Some(member) = self.member.take() else {
            let name = text("name", self.name.take())?;
            self.nothing_left("a guild")?;
            return Ok(Record::Guild { guild, name });
        };
        let member = member.parse::<MemberId>().map_err(|e| format!("'member': {e}"))?;
        if let Some(warn) = self.warn.take() {
            let warn = number_of("warn", &warn)?;
            let (author, reason) = (text("author", self.author.take())?, text("reason", self.reason.take())?);
            let expires = self.expires.take().ok_or("'expires' is missing")?;
            self.nothing_left("a warn")?;
            return Ok(Record::Warn { guild, member, warn, author, reason, expires });
        }
        if let Some(review) = self.review.take() {
            let review = number_of("review", &review)?;
            let author = text("author", self.author.take())?;
            let rating = self.rating.take().ok_or("'rating' is missing")?;
            let rating = u8::try_from(rating).ok().filter(|stars| RATINGS.contains(stars));
            let rating = rating.ok_or_else(|| format!("'rating' is {} to {}", RATINGS.start(), RATINGS.end()))?;
            let text = text("text", self.text.take())?;
            self.nothing_left("a review")?;
            return Ok(Record::Review { guild, member, review, author, rating, text });
        }
        let name = text("name", self.name.take())?;
        refusals::member_name(&name)?;
        let points = self.points.take().ok_or("'points' is missing")?;
        self.nothing_left("a member")?;
        Ok(Record::Member { guild, member, name, points })
    }

    /// A field of another kind of record is a mistake and is not ignored.
    fn nothing_left(&self, kind: &str) -> Result<(), String> {
        let left = [
            ("name", self.name.is_some()),
            ("points", self.points.is_some()),
            ("warn", self.warn.is_some()),
            ("author", self.author.is_some()),
            ("reason", self.reason.is_some()),
            ("expires", self.expires.is_some()),
            ("review", self.review.is_some()),
            ("rating", self.rating.is_some()),
            ("text", self.text.is_some()),
        ];
        match left.iter().find(|(_, present)| *present) {
            Some((field, _)) => Err(format!("{kind} has no field '{field}'")),
            None => Ok(()),
        }
    }
}

fn text(field: &str, value: Option<Cow<'_, str>>) -> Result<String, String> {
    let value = value.ok_or_else(|| format!("'{field}' is missing"))?;
    Ok(crate::model::one_line(&value).into_owned())
}

/// The number of a warn or review, written as text for readers whose numbers are doubles.
fn number_of(field: &str, digits: &str) -> Result<i64, String> {
    let id = digits.parse::<MemberId>().map(MemberId::as_i64);
    id.map_err(|_| format!("'{field}' is digits, at most {}", i64::MAX))
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ReadFields)
    }
}

struct ReadFields;

impl<'de> Visitor<'de> for ReadFields {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"guild\":\"81384788765712384\",\"name\":\"Night Watch\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
            match &*key {
                "guild" => take(&mut map, &key, &mut fields.guild, |Text(t)| t)?,
                "member" => take(&mut map, &key, &mut fields.member, |Text(t)| t)?,
                "name" => take(&mut map, &key, &mut fields.name, |Text(t)| t)?,
                "points" => take(&mut map, &key, &mut fields.points, |n: i64| n)?,
                "warn" => take(&mut map, &key, &mut fields.warn, |Text(t)| t)?,
                "author" => take(&mut map, &key, &mut fields.author, |Text(t)| t)?,
                "reason" => take(&mut map, &key, &mut fields.reason, |Text(t)| t)?,
                "expires" => take(&mut map, &key, &mut fields.expires, |n: i64| n)?,
                "review" => take(&mut map, &key, &mut fields.review, |Text(t)| t)?,
                "rating" => take(&mut map, &key, &mut fields.rating, |n: i64| n)?,
                "text" => take(&mut map, &key, &mut fields.text, |Text(t)| t)?,
                other => return Err(de::Error::custom(format!("unknown field '{other}'"))),
            }
        }
        Ok(fields)
    }
}

/// Reads a field's value, once. The error names the field.
fn take<'de, A: MapAccess<'de>, V: Deserialize<'de>, T>(
    map: &mut A,
    key: &str,
    slot: &mut Option<T>,
    unwrap: impl Fn(V) -> T,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(de::Error::custom(format!("'{key}' is given twice")));
    }
    *slot = Some(unwrap(map.next_value::<V>().map_err(|e| named(key, e))?));
    Ok(())
}

fn named<E: de::Error>(key: &str, error: E) -> E {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    E::custom(format!("'{key}': {what}"))
}

/// A text. The error about a number in its place says why ids are texts.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(ReadText).map(Text)
    }
}

struct ReadText;

impl<'de> Visitor<'de> for ReadText {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes (ids too: as JSON numbers they lose digits in many readers)")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod fuzz;
