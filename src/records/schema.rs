//! How the admin API describes ids and texts: exactly as they are read, so that what a client checks by the description
//! is what the server takes.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::guild::GuildName;
use super::note::{ChosenId, MAX_CHOSEN_ID, NoteId, Rating};
use crate::config::expires::Expires;
use crate::config::leaf::HumanDuration;
use crate::model::{GuildId, MemberId, RATINGS, Scope};

macro_rules! described {
    ($($name:literal $kind:ty: $schema:expr;)*) => { $(
        impl PartialSchema for $kind {
            fn schema() -> RefOr<Schema> {
                serde_json::from_value($schema).unwrap_or_else(|_| Schema::default().into())
            }
        }

        impl ToSchema for $kind {
            fn name() -> Cow<'static, str> {
                $name.into()
            }
        }
    )* };
}

described! {
    "GuildId" GuildId: text("^[!-~]{1,64}$");
    // Something that is neither a blank nor a control character.
    "GuildName" GuildName: text(r"[^\s\x00-\x1f\x7f-\x9f]");
    "MemberId" MemberId: text(&format!("^{}$", digits_up_to(i64::MAX)));
    "NoteId" NoteId: text(&format!("^{}$", digits_up_to(i64::MAX)));
    "ChosenId" ChosenId: text(&format!("^{}$", digits_up_to(MAX_CHOSEN_ID)));
    "Scope" Scope: json!({ "type": "string", "enum": ["read", "write"] });
    "Rating" Rating: json!({ "type": "integer", "minimum": RATINGS.start(), "maximum": RATINGS.end() });
    "Duration" HumanDuration: text(&format!("^({})$", durations().join("|")));
    "Expires" Expires: json!({
        "description": "Unix seconds, a while from now such as 90d, a day, a time, or never.",
        "anyOf": [
            { "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX },
            { "type": "string", "pattern": "^([0-9]{1,11}(ms|s|m|h|d)|[0-9]{1,18}|never)$" },
            { "type": "string", "format": "date" },
            { "type": "string", "format": "date-time" },
        ],
    });
}

fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

/// The durations of at most a year.
fn durations() -> Vec<String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    units.map(|(unit, ms)| digits_up_to(365 * 86_400_000 / ms) + unit).into()
}

/// A pattern of the whole numbers up to `max`, with leading zeros or without.
fn digits_up_to(max: i64) -> String {
    let digits = max.to_string();
    let mut parts = vec![format!("[0-9]{{1,{}}}", digits.len() - 1), digits.clone()];
    for (at, digit) in digits.char_indices().filter(|(_, digit)| *digit > '0') {
        let (before, rest, below) = (&digits[..at], digits.len() - at - 1, (digit as u8 - 1) as char);
        parts.push(format!("{before}[0-{below}][0-9]{{{rest}}}"));
    }
    format!("0*({})", parts.join("|"))
}
