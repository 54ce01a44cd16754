//! How the admin API describes ids and texts: whatever fits the description is taken.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::note::{NoteId, Rating};
use crate::config::expires::Expires;
use crate::config::leaf::HumanDuration;
use crate::model::{GuildId, MemberId, RATINGS, Scope};

/// A whole number of 64 bits without a sign. Of those above 9e18 and those with more zeros before them, which are read as
/// well, it says nothing.
const ID: &str = "^([0-9]{1,18}|[1-8][0-9]{18})$";

/// A duration of at most a year; as above.
const DURATION: &str =
    "^([0-9]{1,10}ms|[0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,3}h|([0-9]{1,2}|[12][0-9]{2}|3[0-5][0-9]|36[0-5])d)$";

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
    "MemberId" MemberId: text(ID);
    "NoteId" NoteId: text(ID);
    "Scope" Scope: json!({ "type": "string", "enum": ["read", "write"] });
    "Rating" Rating: json!({ "type": "integer", "minimum": RATINGS.start(), "maximum": RATINGS.end() });
    "Duration" HumanDuration: text(DURATION);
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
