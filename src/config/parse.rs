//! From text to [`ConfigFile`]: every fault of form at once, each with its place.
//!
//! The text is parsed into a tree whose nodes know their places. One walk over the tree, along the schema of
//! [`ConfigFile`], notes the place of each value, reports what has no place in the schema, and copies the rest. What is
//! copied always deserialises. Whether a value makes sense is judged afterwards, by `check`.

use serde_json::Value as Json;
use toml::de::{DeArray, DeTable, DeValue, Error as SyntaxError};
use toml::{Spanned, Table, Value};

use super::file::{ConfigFile, schema};
use super::leaf::{shown, text_type};
use super::places::{Places, below, line_start};
use super::problem::{MAX_PROBLEMS, Problem, instead, nearest, there_are};

/// What was read, and the faults that were found on the way.
pub(super) struct Parsed {
    /// The valid values, with defaults for those that are missing or faulty.
    pub file: ConfigFile,
    pub places: Places,
    pub problems: Vec<Problem>,
    /// Whether `file` has everything but the faulty values, so that it makes sense to judge its values.
    pub is_whole: bool,
}

/// Parses a config file's text.
pub(super) fn parse(text: &str) -> Parsed {
    let schema = schema();
    let (tree, faults) = DeTable::parse_recoverable(text);
    let root = tree.into_inner();
    let mut walk = Walk { schema: &schema, places: Places::new(text), problems: Vec::new(), unknown: Vec::new() };
    let is_in_header = |fault: &SyntaxError| text[line_start(text, start(fault, text))..].trim_start().starts_with('[');
    // What stands below a table's broken header was put into another table: its names would be called unknown.
    let has_broken_header = faults.iter().any(|fault| fault.message() != DUPLICATE && is_in_header(fault));
    let valid = if has_broken_header { None } else { walk.table(&schema, "", &root) };
    drop_iteratively(root);
    walk.report_unknown_names();
    walk.report_syntax(text, &faults);
    let Walk { places, mut problems, .. } = walk;
    let file = valid.map(Table::try_into::<ConfigFile>).transpose();
    let file = file.unwrap_or_else(|fault| {
        problems.push(places.problem("", fault.message()));
        None
    });
    Parsed { is_whole: file.is_some(), file: file.unwrap_or_default(), places, problems }
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
    kind: Kind,
    /// The table that it stands in.
    above: String,
    schema: &'s Json,
}

struct Walk<'s> {
    schema: &'s Json,
    places: Places,
    problems: Vec<Problem>,
    unknown: Vec<Unknown<'s>>,
}

impl<'s> Walk<'s> {
    /// The valid values of a table; `None` where a value that it must have is missing.
    fn table(&mut self, schema: &'s Json, path: &str, table: &DeTable<'_>) -> Option<Table> {
        let mut valid = Table::new();
        for (name, value) in table.iter() {
            let (named, offset) = (name.get_ref().to_string(), name.span().start);
            self.places.note_name(&named, offset);
            let Some(known) = names(schema).find(|(known, _)| *known == named).map(|(_, known)| known).or(any(schema))
            else {
                let kind = match value.get_ref() {
                    DeValue::Table(_) => Kind::Table,
                    DeValue::Array(_) => Kind::List,
                    _ => Kind::Single,
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
            self.fault(path, format!("needs `{missing}`"));
            return None;
        }
        Some(valid)
    }

    fn fault(&mut self, path: &str, message: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(self.places.problem(path, message));
        }
    }

    /// A value as the schema wants it, or nothing and a fault.
    fn value(&mut self, schema: &'s Json, path: &str, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        self.places.note(path, value.span().start);
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
                let number = match value.get_ref() {
                    DeValue::Float(text) => text.as_str().parse().ok(),
                    DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str().parse().ok(),
                    _ => None,
                };
                match number.filter(|number| range.contains(number)) {
                    Some(number) => return Some(Value::Float(number)),
                    None => format!("must be a number from {} to {}", range.start(), range.end()),
                }
            }
            ("string", DeValue::String(text)) => match fault_of_text(schema, text) {
                None => return Some(Value::String(text.to_string())),
                Some(fault) => fault,
            },
            (_, found) => wrong_type(schema, path, found),
        };
        self.fault(path, fault);
        None
    }

    /// The valid elements. An empty string stands in for an invalid one, so that the others keep their numbers; where
    /// only some words are valid, it is left out.
    fn elements(&mut self, schema: &'s Json, path: &str, array: &DeArray<'_>) -> Vec<Value> {
        let Some(items) = schema.get("items") else { return Vec::new() };
        let substitute = items.get("enum").is_none().then(|| Value::String(String::new()));
        let elements = array.iter().enumerate();
        elements.filter_map(|(i, e)| self.value(items, &format!("{path}[{i}]"), e).or(substitute.clone())).collect()
    }

    fn report_unknown_names(&mut self) {
        for unknown in self.unknown.iter().take(MAX_PROBLEMS) {
            let message = format!("unknown name {}; {}", shown(&unknown.name), self.suggestion(unknown));
            let path = below(&unknown.above, &unknown.name);
            self.problems.push(self.places.problem_at(path, unknown.offset, message));
        }
    }

    /// The name that was probably meant, or else all that can still be set. A table is never suggested for a value.
    fn suggestion(&self, unknown: &Unknown<'_>) -> String {
        let Unknown { name, kind, above, schema, .. } = unknown;
        let (set, free): (Vec<_>, Vec<_>) =
            names(schema).partition(|(name, _)| self.places.is_given(&below(above, name)));
        let is_table = |kind| kind == Kind::Table;
        let alike = free.iter().filter(|(_, schema)| is_table(kind_of(schema)) == is_table(*kind));
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
            if distance <= name.len() / 4 && kind_of(schema) == unknown.kind && !self.places.is_given(&here) {
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
                    match self.places.line_set_before(name, offset) {
                        Some(line) => format!("`{name}` is already set on line {line}"),
                        None => format!("`{name}` is already set"),
                    }
                }
                message => message.to_owned(),
            };
            problems.push(self.places.problem_at(String::new(), offset, message));
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems.dedup_by_key(|problem| problem.line);
        self.problems.extend(problems);
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

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Table,
    List,
    Single,
}

fn kind_of(schema: &Json) -> Kind {
    match type_of(schema) {
        "object" => Kind::Table,
        "array" => Kind::List,
        _ => Kind::Single,
    }
}

fn fault_of_text(schema: &Json, text: &str) -> Option<String> {
    if let Some(text_type) = schema.get("pattern").and_then(Json::as_str).and_then(text_type) {
        return (text_type.fault)(text);
    }
    let words: Vec<&str> = schema.get("enum")?.as_array()?.iter().filter_map(Json::as_str).collect();
    (!words.contains(&text)).then(|| format!("unknown value {}; {}", shown(text), instead(text, words)))
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
        _ => schema
            .get("pattern")
            .and_then(Json::as_str)
            .and_then(text_type)
            .map_or("a string", |text_type| text_type.name),
    };
    format!("must be {wanted}, not {found}")
}
