//! Values that may be secret: written out, or `env:NAME`, or `file:PATH` (contract section 3).

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A value that no debug print and no fault may show.
///
/// `Serialize` does show it: only the schema's defaults are ever serialized, none of which is secret.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Secret(String);

/// Where a secret's value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source<'s> {
    /// It stands in the config file itself.
    Written(&'s str),
    /// In this environment variable.
    Env(&'s str),
    /// In the file of this name.
    File(&'s str),
}

impl Secret {
    pub fn new(text: &str) -> Self {
        Secret(text.to_owned())
    }

    pub fn source(&self) -> Source<'_> {
        if let Some(name) = self.0.strip_prefix("env:") {
            Source::Env(name)
        } else if let Some(path) = self.0.strip_prefix("file:") {
            Source::File(path)
        } else {
            Source::Written(&self.0)
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Written(_) => f.write_str("Written(…)"),
            Source::Env(name) => write!(f, "Env({name})"),
            Source::File(path) => write!(f, "File({path})"),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_str(SecretVisitor)
    }
}

struct SecretVisitor;

const NOT_A_STRING: &str = "expected a string";

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret(text.to_owned()))
    }

    // Serde's own message for a wrong type repeats the value: a token of digits without its quotes would be shown.
    fn visit_i64<E: Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom(NOT_A_STRING))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Secret, E> {
        Err(E::custom(NOT_A_STRING))
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Secret, E> {
        Err(E::custom(NOT_A_STRING))
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Secret, E> {
        Err(E::custom(NOT_A_STRING))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::custom(NOT_A_STRING))
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn a_secret_says_where_its_value_is() {
        assert!(Secret::new("env:TOKEN").source() == Source::Env("TOKEN"));
        assert!(Secret::new("file:admin.token").source() == Source::File("admin.token"));
        assert!(Secret::new("hunter2").source() == Source::Written("hunter2"));
    }
}
