//! JSON objects from outside. Serde takes an array for a struct as well, its items for the fields in their order, and then
//! says nothing of one that was meant otherwise.

use serde::de::{DeserializeOwned, Error, Unexpected};

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
    use serde::Deserialize;

    use super::*;

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
