//! From text to [`ConfigFile`]: every fault of form at once, each with its place.
//!
//! The text is parsed into a tree whose nodes know their places. One walk over the tree, along the schema of
//! [`ConfigFile`], notes the place of each value, reports what has no place in the schema or is not of its type, and copies
//! the rest, which always deserialises. Whether values make sense together is judged afterwards, by each section's `check`.

use std::path::Path;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue, Error as SyntaxError};
use toml::{Spanned, Table, Value};

use super::file::{ConfigFile, full_schema};
use super::leaf::{self, shown};
use super::problem::{Faults, Places, below, instead, nearest, there_are};

/// The parser's message about a name or table header that is set a second time.
const DUPLICATE: &str = "duplicate key";

/// Parses a config file's text. `None`: so much of it is broken that it makes no sense to judge its values.
pub(super) fn parse<'t>(
    text: &str,
    folder: &'t Path,
    env: &'t dyn Fn(&str) -> Option<String>,
) -> (Option<ConfigFile>, Faults<'t>) {
    let schema = full_schema().to_value();
    let (tree, syntax) = DeTable::parse_recoverable(text);
    let faults = Faults { places: Places::new(text), folder, env, list: Vec::new(), warnings: Vec::new() };
    let mut walk = Walk { schema: &schema, faults };
    for fault in &syntax {
        let span = fault.span().unwrap_or(text.len()..text.len());
        let message = match fault.message() {
            DUPLICATE => format!("{} is already set", shown(text.get(span.clone()).unwrap_or_default())),
            message => message.to_owned(),
        };
        walk.faults.add_at("", Some(span.start), &message);
    }
    let is_in_header = |fault: &SyntaxError| {
        let before = fault.span().and_then(|span| text.get(..span.start)).unwrap_or(text);
        before.rsplit('\n').next().is_some_and(|line| line.trim_start().starts_with('['))
    };
    // What stands below a table's broken header was put into another table: its names would be called unknown.
    let is_broken = syntax.iter().any(|fault| fault.message() != DUPLICATE && is_in_header(fault));
    let valid = if is_broken { None } else { walk.table(&schema, "", tree.get_ref()) };
    let mut faults = walk.faults;
    let file = valid.map(Table::try_into::<ConfigFile>).transpose();
    let file = file.map_err(|fault| faults.add("", fault.message())).ok().flatten();
    (file, faults)
}

struct Walk<'s, 't> {
    schema: &'s Json,
    faults: Faults<'t>,
}

impl<'s> Walk<'s, '_> {
    /// The values of a table; `None` where a value that it must have is missing.
    fn table(&mut self, schema: &'s Json, path: &str, table: &DeTable<'_>) -> Option<Table> {
        let mut valid = Table::new();
        for (name, value) in table.iter() {
            let (path, offset, name) = (below(path, name.get_ref()), name.span().start, name.get_ref());
            let known = names(schema).find(|(known, _)| known == name).map(|(_, known)| known);
            if let Some(known) = known.or(any(schema)) {
                valid.extend(self.value(known, &path, value).map(|value| (name.to_string(), value)));
            } else {
                let message =
                    format!("unknown name {}; {}", shown(name), self.suggestion(schema, name, value.get_ref()));
                self.faults.add_at(&path, Some(offset), &message);
            }
        }
        let required = schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
        let missing: Vec<_> = required.filter(|name| !table.contains_key(*name)).collect();
        missing.iter().for_each(|name| self.faults.add(path, format!("needs `{name}`")));
        missing.is_empty().then_some(valid)
    }

    /// A value as the schema wants it, or nothing and a fault.
    fn value(&mut self, schema: &'s Json, path: &str, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        self.faults.places.note(path, value.span().start);
        let read = match (type_of(schema), value.get_ref()) {
            ("object", DeValue::Table(table)) => return self.table(schema, path, table).map(Value::Table),
            ("array", DeValue::Array(array)) => {
                let mut valid = Vec::new();
                for (item, path) in array.iter().zip((0..).map(|i| format!("{path}[{i}]"))) {
                    match self.value(&schema["items"], &path, item) {
                        Some(value) if valid.contains(&value) && schema["uniqueItems"] == true => {
                            self.faults.add(&path, "is listed twice");
                        }
                        value => valid.extend(value),
                    }
                }
                return Some(Value::Array(valid));
            }
            ("boolean", DeValue::Boolean(value)) => Ok(Value::Boolean(*value)),
            ("number", DeValue::Float(digits)) => digits.as_str().parse().map(Value::Float).map_err(|e| e.to_string()),
            ("integer" | "number", DeValue::Integer(digits)) => {
                let bound = |name: &str, default| schema.get(name).and_then(Json::as_i64).unwrap_or(default);
                let range = bound("minimum", 0)..=bound("maximum", i64::MAX);
                let value = i64::from_str_radix(digits.as_str(), digits.radix()).ok().filter(|n| range.contains(n));
                value.map(Value::Integer).ok_or_else(|| format!("must be from {} to {}", range.start(), range.end()))
            }
            ("string", DeValue::String(text)) if text.is_empty() && format(schema).ends_with(" or off") => return None,
            ("string", DeValue::String(text)) => self.text(schema, text).map(Value::String),
            (_, found) => Err(self.wrong_type(schema, path, found)),
        };
        read.map_err(|fault| self.faults.add(path, fault)).ok()
    }

    fn text(&self, schema: &Json, text: &str) -> Result<String, String> {
        let Some(words) = schema.get("enum").and_then(Json::as_array) else {
            return leaf::read(format(schema), text, self.faults.folder);
        };
        let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
        let unknown = || format!("unknown value {}; {}", shown(text), instead(text, words.clone()));
        words.contains(&text).then(|| text.to_owned()).ok_or_else(unknown)
    }

    /// The message names types only: the value may be a secret.
    fn wrong_type(&self, schema: &Json, path: &str, found: &DeValue<'_>) -> String {
        let wanted = match (type_of(schema), found) {
            ("object", _) => format!("table: write [{path}{}]", if any(schema).is_some() { ".NAME" } else { "" }),
            // A number without its unit.
            ("string", DeValue::Integer(digits)) => match self.text(schema, digits.as_str()) {
                Err(fault) if !format(schema).is_empty() => return fault,
                _ => "string".to_owned(),
            },
            (other, _) => other.to_owned(),
        };
        format!("is of type {}; it must be of type {wanted}", found.type_str())
    }

    /// The name that was probably meant, here or in other tables, or else all that there are here. A table is never
    /// suggested for a value, and nothing for a list of tables, which is no section's form.
    fn suggestion(&self, schema: &Json, name: &str, value: &DeValue<'_>) -> String {
        let holds_tables = matches!(value, DeValue::Array(list) if list.iter().any(|item| item.get_ref().is_table()));
        let is_alike = |schema: &Json| !holds_tables && (type_of(schema) == "object") == value.is_table();
        let here = names(schema).filter(|(_, schema)| is_alike(schema)).map(|(name, _)| name);
        if let Some(meant) = nearest(name, here) {
            return format!("did you mean `{meant}`?");
        }
        let mut all = Vec::new();
        all_names(self.schema, "", &mut all);
        all.retain(|(.., schema)| is_alike(schema));
        let Some(meant) = nearest(name, all.iter().map(|(name, ..)| *name)) else {
            return there_are(names(schema).map(|(name, _)| name));
        };
        let tables = all.iter().filter(|(name, ..)| *name == meant).map(|(_, table, _)| format!("[{table}]"));
        format!("did you mean `{meant}` in {}?", tables.collect::<Vec<_>>().join(" or "))
    }
}

/// The names of all tables below `path`, each with its table and its schema.
fn all_names<'s>(schema: &'s Json, path: &str, all: &mut Vec<(&'s str, String, &'s Json)>) {
    for (name, schema) in names(schema).chain(any(schema).map(|any| ("NAME", any))) {
        all.push((name, path.to_owned(), schema));
        all_names(schema, &below(path, name), all);
    }
}

/// The names that a table can hold.
fn names(schema: &Json) -> impl Iterator<Item = (&str, &Json)> + Clone {
    let names = schema.get("properties").and_then(Json::as_object).into_iter().flatten();
    names.map(|(name, schema)| (name.as_str(), schema))
}

/// What a table holds under names of the operator's choice, such as the tiers.
fn any(schema: &Json) -> Option<&Json> {
    schema.get("additionalProperties").filter(|any| any.is_object())
}

fn type_of(schema: &Json) -> &str {
    schema.get("type").and_then(Json::as_str).unwrap_or_default()
}

fn format(schema: &Json) -> &str {
    schema.get("format").and_then(Json::as_str).unwrap_or_default()
}
