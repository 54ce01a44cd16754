//! JSON from outside: objects and whole numbers. Serde takes an array for a struct as well, its items for the fields in their order, and then
//! says nothing of one that was meant otherwise.

use serde::de::{DeserializeOwned, Error, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// A whole number. `5.0` is one, too (JSON Schema, "integer").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole(pub i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(from)?;
        let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < i64::MAX as f64);
        let whole = number.as_i64().or_else(|| float().map(|float| float as i64));
        whole.map(Whole).ok_or_else(|| D::Error::custom(format!("{number} is no whole number of 64 bits")))
    }
}

/// Reads an object. Its fields must not be structs, of which nothing here would refuse an array.
///
/// # Errors
/// Where it is no JSON, no object, or not this one.
pub fn from_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    match json.trim_ascii_start().first() {
        Some(b'[') => Err(Error::invalid_type(Unexpected::Seq, &"an object such as {\"name\":\"value\"}")),
        _ => serde_json::from_slice(json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_have_a_point() {
        for (json, whole) in [
            ("5", Some(5)),
            ("-5.0", Some(-5)),
            ("5.5", None),
            ("1e30", None),
            ("-9223372036854775809", None),
            ("\"5\"", None),
        ] {
            assert_eq!(serde_json::from_str::<Whole>(json).ok(), whole.map(Whole), "{json}");
        }
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Change {
        left: Option<bool>,
    }

    #[test]
    fn an_array_is_no_object() {
        assert_eq!(from_object::<Change>(b" {\"left\":true}").unwrap(), Change { left: Some(true) });
        for array in ["[true]", "[]", " \t\r\n[true]"] {
            let error = from_object::<Change>(array.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{array}: {error}");
        }
    }
}
