//! From text to [`ConfigFile`]: every fault of form at once, each with its place.
//!
//! The text is parsed into a tree whose nodes know their places. One walk over the tree, along the schema of
//! [`ConfigFile`], notes the place of each value, reports what has no place in the schema or is not of its type, and copies
//! the rest, with the schema's defaults for what is missing. What is copied always deserialises. Whether values make sense
//! together is judged afterwards, by each section's `check`.

use std::path::Path;

use serde_json::Value as Json;
use toml::de::{DeArray, DeFloat, DeInteger, DeTable, DeValue, Error as SyntaxError};
use toml::{Spanned, Table, Value};

use super::file::{ConfigFile, full_schema};
use super::leaf::{self, shown};
use super::problem::{Faults, MAX_PROBLEMS, Places, below, instead, line_start, nearest, there_are};

/// Parses a config file's text. `None`: so much of it is broken that it makes no sense to judge its values.
pub(super) fn parse<'t>(
    text: &str,
    folder: &'t Path,
    env: &'t dyn Fn(&str) -> Option<String>,
) -> (Option<ConfigFile>, Faults<'t>) {
    let schema = full_schema().to_value();
    let (tree, syntax) = DeTable::parse_recoverable(text);
    let root = tree.into_inner();
    let faults = Faults { places: Places::new(text), folder, env, list: Vec::new(), warnings: Vec::new() };
    let mut walk = Walk { schema: &schema, faults, unknown: Vec::new() };
    let is_in_header = |fault: &SyntaxError| text[line_start(text, start(fault, text))..].trim_start().starts_with('[');
    // What stands below a table's broken header was put into another table: its names would be called unknown.
    let has_broken_header = syntax.iter().any(|fault| fault.message() != DUPLICATE && is_in_header(fault));
    let valid = if has_broken_header { None } else { walk.table(&schema, "", &root) };
    drop_iteratively(root);
    walk.report_unknown_names();
    walk.report_syntax(text, &syntax);
    let mut faults = walk.faults;
    let file = valid.map(Table::try_into::<ConfigFile>).transpose();
    let file = file.unwrap_or_else(|fault| {
        faults.list.push(faults.places.problem("", fault.message()));
        None
    });
    (file, faults)
}

/// The parser's message about a name or table header that is set a second time.
const DUPLICATE: &str = "duplicate key";

fn start(fault: &SyntaxError, text: &str) -> usize {
    fault.span().map_or(text.len(), |span| span.start)
}

/// Drops a tree. Its nodes' own `drop` is recursive and would exhaust the stack on one that is thousands deep.
fn drop_iteratively(root: DeTable<'_>) {
    let mut next = vec![DeValue::Table(root)];
    while let Some(value) = next.pop() {
        match value {
            DeValue::Table(table) => next.extend(table.into_iter().map(|(_, below)| below.into_inner())),
            DeValue::Array(array) => next.extend(array.into_iter().map(Spanned::into_inner)),
            _ => {}
        }
    }
}

/// A name that is not in the schema.
struct Unknown<'s> {
    name: String,
    offset: usize,
    /// `object`, `array`, or nothing for a single value.
    kind: &'static str,
    /// The table that it stands in.
    above: String,
    schema: &'s Json,
}

struct Walk<'s, 't> {
    schema: &'s Json,
    faults: Faults<'t>,
    unknown: Vec<Unknown<'s>>,
}

impl<'s> Walk<'s, '_> {
    /// The values of a table; `None` where a value that it must have is missing.
    fn table(&mut self, schema: &'s Json, path: &str, table: &DeTable<'_>) -> Option<Table> {
        let mut valid = Table::new();
        for (name, value) in table.iter() {
            let (named, offset) = (name.get_ref().to_string(), name.span().start);
            self.faults.places.note_name(&named, offset);
            let Some(known) = names(schema).find(|(known, _)| *known == named).map(|(_, known)| known).or(any(schema))
            else {
                let kind = match value.get_ref() {
                    DeValue::Table(_) => "object",
                    DeValue::Array(_) => "array",
                    _ => "",
                };
                self.unknown.push(Unknown { name: named, offset, kind, above: path.to_owned(), schema });
                continue;
            };
            if let Some(value) = self.value(known, &below(path, &named), value) {
                valid.insert(named, value);
            }
        }
        let mut required =
            schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
        if let Some(missing) = required.find(|name| !table.contains_key(*name)) {
            self.faults.add(path, format!("needs `{missing}`"));
            return None;
        }
        for (name, known) in names(schema) {
            if !valid.contains_key(name)
                && let Some(value) = self.default_of(known, &below(path, name))
            {
                valid.insert(name.to_owned(), value);
            }
        }
        Some(valid)
    }

    /// What is in force where a value is missing or faulty.
    fn default_of(&mut self, schema: &'s Json, path: &str) -> Option<Value> {
        match schema.get("default")? {
            Json::Object(_) => self.table(schema, path, &DeTable::new()).map(Value::Table),
            Json::String(text) => leaf::read(format(schema), text, self.faults.folder).ok().map(Value::String),
            other => Value::try_from(other).ok(),
        }
    }

    /// A value as the schema wants it, or nothing and a fault.
    fn value(&mut self, schema: &'s Json, path: &str, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        self.faults.places.note(path, value.span().start);
        let fault = match (type_of(schema), value.get_ref()) {
            ("object", DeValue::Table(table)) => return self.table(schema, path, table).map(Value::Table),
            ("array", DeValue::Array(array)) => return Some(Value::Array(self.elements(schema, path, array))),
            ("boolean", DeValue::Boolean(value)) => return Some(Value::Boolean(*value)),
            ("integer", DeValue::Integer(digits)) => {
                let bound = |name: &str, default| schema.get(name).and_then(Json::as_i64).unwrap_or(default);
                let range = bound("minimum", 0)..=bound("maximum", i64::MAX);
                match i64::from_str_radix(digits.as_str(), digits.radix()) {
                    Ok(value) if range.contains(&value) => return Some(Value::Integer(value)),
                    _ => format!("must be from {} to {}", range.start(), range.end()),
                }
            }
            ("number", DeValue::Float(_) | DeValue::Integer(_)) => {
                let bound = |name: &str| schema.get(name).and_then(Json::as_f64).unwrap_or_default();
                let range = bound("minimum")..=bound("maximum");
                let digits = value.get_ref().as_float().map(DeFloat::as_str);
                let number = digits.or(value.get_ref().as_integer().map(DeInteger::as_str));
                match number.and_then(|digits| digits.parse().ok()).filter(|number| range.contains(number)) {
                    Some(number) => return Some(Value::Float(number)),
                    None => format!("must be a number from {} to {}", range.start(), range.end()),
                }
            }
            ("string", DeValue::String(text)) => match self.text(schema, text) {
                Ok(text) => return Some(Value::String(text)),
                Err(fault) => fault,
            },
            (_, found) => wrong_type(schema, path, found),
        };
        self.faults.add(path, fault);
        None
    }

    fn text(&self, schema: &Json, text: &str) -> Result<String, String> {
        let Some(words) = schema.get("enum").and_then(Json::as_array) else {
            return leaf::read(format(schema), text, self.faults.folder);
        };
        let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
        if words.contains(&text) {
            return Ok(text.to_owned());
        }
        Err(format!("unknown value {}; {}", shown(text), instead(text, words)))
    }

    /// The valid elements.
    fn elements(&mut self, schema: &'s Json, path: &str, array: &DeArray<'_>) -> Vec<Value> {
        let Some(items) = schema.get("items") else { return Vec::new() };
        array.iter().enumerate().filter_map(|(i, e)| self.value(items, &format!("{path}[{i}]"), e)).collect()
    }

    fn report_unknown_names(&mut self) {
        for unknown in self.unknown.iter().take(MAX_PROBLEMS) {
            let message = format!("unknown name {}; {}", shown(&unknown.name), self.suggestion(unknown));
            let path = below(&unknown.above, &unknown.name);
            self.faults.list.push(self.faults.places.problem_at(path, unknown.offset, message));
        }
    }

    /// The name that was probably meant, or else all that can still be set. A table is never suggested for a value.
    fn suggestion(&self, unknown: &Unknown<'_>) -> String {
        let Unknown { name, kind, above, schema, .. } = unknown;
        let (set, free): (Vec<_>, Vec<_>) =
            names(schema).partition(|(name, _)| self.faults.places.is_given(&below(above, name)));
        let alike = free.iter().filter(|(_, schema)| (type_of(schema) == "object") == (*kind == "object"));
        let alike = alike.map(|(name, _)| *name);
        if let Some(meant) = nearest(name, alike) {
            return format!("did you mean `{meant}`?");
        }
        if let Some(meant) = nearest(name, set.into_iter().map(|(name, _)| name)) {
            return format!("`{meant}` is already set here");
        }
        let mut elsewhere = Vec::new();
        self.near_elsewhere(unknown, self.schema, "", &mut elsewhere);
        elsewhere.sort();
        match elsewhere.as_slice() {
            [(distance, meant, section), others @ ..] if others.iter().all(|(other, ..)| other > distance) => {
                format!("did you mean `{meant}` in [{section}]?")
            }
            _ => there_are(free.into_iter().map(|(name, _)| name)),
        }
    }

    /// The names of all sections below `path` that are nearly the unknown one, each with its distance and section.
    fn near_elsewhere(
        &self,
        unknown: &Unknown<'_>,
        schema: &'s Json,
        path: &str,
        near: &mut Vec<(usize, &'s str, String)>,
    ) {
        for (name, schema) in names(schema).chain(any(schema).map(|any| ("NAME", any))) {
            let here = below(path, name);
            let distance = strsim::damerau_levenshtein(&unknown.name, name);
            // Nearer than in its own table, since there are many more names.
            if distance <= name.len() / 4 && is_of(schema, unknown.kind) && !self.faults.places.is_given(&here) {
                near.push((distance, name, path.to_owned()));
            }
            self.near_elsewhere(unknown, schema, &here, near);
        }
    }

    /// The faults of a text that is not TOML: one for each line, since a second one follows from the first.
    fn report_syntax(&mut self, text: &str, faults: &[SyntaxError]) {
        let mut problems = Vec::new();
        for fault in faults.iter().take(MAX_PROBLEMS) {
            let offset = start(fault, text);
            let message = match fault.message() {
                DUPLICATE => {
                    let name = fault.span().and_then(|span| text.get(span)).unwrap_or_default();
                    match self.faults.places.line_set_before(name, offset) {
                        Some(line) => format!("`{name}` is already set on line {line}"),
                        None => format!("`{name}` is already set"),
                    }
                }
                message => message.to_owned(),
            };
            problems.push(self.faults.places.problem_at(String::new(), offset, message));
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems.dedup_by_key(|problem| problem.line);
        self.faults.list.extend(problems);
    }
}

/// The names that a table can hold.
fn names(schema: &Json) -> impl Iterator<Item = (&str, &Json)> {
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

fn is_of(schema: &Json, kind: &str) -> bool {
    let of = type_of(schema);
    of == kind || (kind.is_empty() && of != "object" && of != "array")
}

fn format(schema: &Json) -> &str {
    schema.get("format").and_then(Json::as_str).unwrap_or_default()
}

/// The message names types only: the value may be a secret.
fn wrong_type(schema: &Json, path: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let wanted = match type_of(schema) {
        "object" if any(schema).is_some() => return format!("must be a table, not {found}: write [{path}.NAME]"),
        "object" => return format!("must be a table, not {found}: write [{path}]"),
        "array" => "a list",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        _ => leaf::name_of(format(schema)),
    };
    format!("must be {wanted}, not {found}")
}
