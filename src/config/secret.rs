//! Values that may be secret: written out, or `env:NAME`, or `file:PATH` (contract section 3).

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Most bytes that a secret's file may have. A URL or a token has some hundred.
const MAX_VALUE: u64 = 16 << 10;

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

/// Reads the value that a secret's file holds: one line, whose end is no part of it. No message repeats any of it.
///
/// # Errors
/// Why it is no value, with the file's name.
pub fn read_file(path: &Path) -> Result<String, String> {
    let named = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_VALUE + 1).read_to_end(&mut bytes));
    read.map_err(|e| format!("the file {named} cannot be read: {e}"))?;
    if bytes.len() as u64 > MAX_VALUE {
        return Err(format!(
            "the file {named} is larger than {MAX_VALUE} bytes; it is to hold the value alone, on one line"
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("the file {named} is no UTF-8 text"))?;
    let value = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if value.is_empty() {
        return Err(format!("the file {named} is empty; it is to hold the value"));
    }
    if value.contains(char::is_control) {
        return Err(format!("the file {named} has several lines or control characters; it is to hold the value alone"));
    }
    Ok(value.to_owned())
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
