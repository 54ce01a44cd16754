//! From text to [`ConfigFile`]: every fault of form at once, each with its place.
//!
//! Serde stops at the first fault. So the text is parsed to a tree whose nodes know their places; what serde
//! rejects is noted and cut out of the tree, its default stands in, and the rest is read again.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::file::ConfigFile;
use super::leaf::shown;
use super::names::{Kind, Names};
use super::places::{Places, Step, dotted};
use super::problem::{Problem, instead};

/// Faults told at once. Whoever has more has given the wrong file; each costs one more reading of it.
const MAX_PROBLEMS: usize = 100;

/// Where a list may stand. Serde would also take one for a table, its elements in the order of the fields.
const LISTS: [&str; 4] = ["server.listen", "server.trusted_proxies", "answers.headers", "origin.upstreams"];

/// Values within values. The config's deepest is five; thousands, which TOML allows, would exhaust the stack.
const MAX_DEPTH: usize = 20;

/// What was read, and the faults that were cut out of it.
pub(super) struct Reading {
    pub file: ConfigFile,
    pub places: Places,
    pub problems: Vec<Problem>,
    /// Whether `file` is all of the text but the faults, so that it makes sense to judge its values.
    pub whole: bool,
}

/// The line on which a name, or the header of a table, was set before `offset`, where it is set once more.
fn set_before(text: &str, offset: usize, name: &str) -> Option<usize> {
    let before = &text[..text[..offset].rfind('\n').map_or(0, |at| at + 1)];
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let wants_header = is_header(&text[before.len()..]);
    let of_section = if wants_header {
        None
    } else {
        before.lines().enumerate().filter(|(_, line)| is_header(line)).last().map(|(at, _)| at)
    };
    let sets = |line: &str| {
        let line = line.trim_start();
        let (named, end) = if wants_header { (line.strip_prefix('['), ']') } else { (Some(line), '=') };
        let rest = named.and_then(|named| named.trim_start().strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with(end))
    };
    before.lines().enumerate().skip(of_section.unwrap_or(0)).find(|(_, line)| sets(line)).map(|(at, _)| at + 1)
}

/// Reads a config file's text.
pub(super) fn read(text: &str) -> Reading {
    let mut places = Places::new(text);
    let (tree, faults) = DeTable::parse_recoverable(text);
    let mut root = tree.into_inner();
    let mut problems = Vec::new();
    let mut header_broken = false;
    for fault in faults {
        let offset = fault.span().map_or(text.len(), |span| span.start);
        let message = match fault.message() {
            "duplicate key" => {
                let name = fault.span().and_then(|span| text.get(span)).unwrap_or_default();
                match set_before(text, offset, name) {
                    Some(line) => format!("`{name}` is already set on line {line}"),
                    None => format!("`{name}` is already set"),
                }
            }
            message => {
                header_broken |= places.line_around(offset).trim_start().starts_with('[');
                message.to_owned()
            }
        };
        problems.push(places.problem_at(String::new(), offset, message));
    }
    problems.sort_by_key(|p| (p.line, p.column));
    problems.dedup_by_key(|p| p.line); // the second on a line comes of the first
    problems.truncate(MAX_PROBLEMS);
    if let Some(offset) = too_deep(&root) {
        let message = format!("nothing of the config stands deeper than {MAX_DEPTH} tables and lists");
        problems.push(places.problem_at(String::new(), offset, message));
        take_apart(root);
        return Reading { file: ConfigFile::default(), places, problems, whole: false };
    }
    // What stands below a table's broken header was put elsewhere: its names would be called unknown.
    if header_broken {
        return Reading { file: ConfigFile::default(), places, problems, whole: false };
    }
    let (file, whole) = read_tree(&mut root, &places, &mut problems);
    places.note(&root, &mut Vec::new());
    Reading { file, places, problems, whole }
}

/// Reads the tree, cutting out whatever is rejected. False: there was no end to it.
fn read_tree(root: &mut DeTable<'_>, places: &Places, problems: &mut Vec<Problem>) -> (ConfigFile, bool) {
    // An empty table stands in for each, so that a name which is misspelt is told from one that is not.
    let mut stray = stray_lists(root);
    for (path, span) in &stray {
        replace(root, path, Spanned::new(span.clone(), DeValue::Table(DeTable::new())));
    }
    let mut names = None;
    while problems.len() < MAX_PROBLEMS {
        let input = Deserializer::from(Spanned::new(0..0, root.clone()));
        let fault = match ConfigFile::deserialize(input) {
            Ok(file) => {
                for (path, span) in stray {
                    let message = names.get_or_insert_with(Names::new).no_list(&path);
                    problems.push(places.problem_at(dotted(&path), span.start, message));
                }
                problems.truncate(MAX_PROBLEMS);
                return (file, true);
            }
            Err(fault) => fault,
        };
        let span = fault.span().unwrap_or_default();
        let Some(path) = find(root, &span) else {
            problems.push(places.problem_at(String::new(), span.start, fault.message().to_owned()));
            return (ConfigFile::default(), false);
        };
        let removed = remove(root, &path);
        let is_stray = stray.iter().any(|(list, _)| *list == path);
        let names = names.get_or_insert_with(Names::new);
        let kind = if is_stray { Kind::List } else { removed.as_ref().map_or(Kind::Single, Kind::of) };
        let message = match explain_name(fault.message(), &path, kind, root, names) {
            Some(message) => message,
            None if is_stray => names.no_list(&path),
            None => explain(fault.message(), removed.as_ref(), |value| is_refused(root, &path, value)),
        };
        problems.push(places.problem_at(dotted(&path), span.start, message));
        stray.retain(|(list, _)| !list.starts_with(&path));
    }
    (ConfigFile::default(), false)
}

/// Where the tree is too deep to be walked by recursion.
fn too_deep(root: &DeTable<'_>) -> Option<usize> {
    let mut next: Vec<(usize, &Spanned<DeValue<'_>>)> = root.values().map(|value| (1, value)).collect();
    while let Some((depth, value)) = next.pop() {
        if depth > MAX_DEPTH {
            return Some(value.span().start);
        }
        match value.get_ref() {
            DeValue::Table(table) => next.extend(table.values().map(|below| (depth + 1, below))),
            DeValue::Array(array) => next.extend(array.iter().map(|below| (depth + 1, below))),
            _ => {}
        }
    }
    None
}

/// Drops a tree that is too deep to drop itself, which is a recursion too.
fn take_apart(root: DeTable<'_>) {
    let mut next: Vec<DeValue<'_>> = vec![DeValue::Table(root)];
    while let Some(value) = next.pop() {
        match value {
            DeValue::Table(table) => next.extend(table.into_iter().map(|(_, below)| below.into_inner())),
            DeValue::Array(array) => next.extend(array.into_iter().map(Spanned::into_inner)),
            _ => {}
        }
    }
}

/// Lists where none may stand, and their places.
fn stray_lists(root: &DeTable<'_>) -> Vec<(Vec<Step>, Range<usize>)> {
    let mut found = Vec::new();
    let mut table: Vec<(Vec<Step>, &DeTable<'_>)> = vec![(Vec::new(), root)];
    while let Some((above, next)) = table.pop() {
        for (name, value) in next.iter() {
            let mut path = above.clone();
            path.push(Step::Name(name.get_ref().to_string()));
            match value.get_ref() {
                DeValue::Table(below) => table.push((path, below)),
                DeValue::Array(_) if !LISTS.contains(&dotted(&path).as_str()) => found.push((path, value.span())),
                _ => {}
            }
        }
    }
    found
}

/// The way to the name or value that stands exactly here, or else to the smallest value around it.
fn find(table: &DeTable<'_>, span: &Range<usize>) -> Option<Vec<Step>> {
    let mut best: Option<(usize, Vec<Step>)> = None;
    let mut consider = |here: Range<usize>, path: &[Step]| {
        let holds = here.start <= span.start && span.end <= here.end;
        if holds && best.as_ref().is_none_or(|(size, _)| here.len() < *size) {
            best = Some((here.len(), path.to_vec()));
        }
    };
    walk(table, &mut Vec::new(), &mut consider);
    best.map(|(_, path)| path)
}

fn walk(table: &DeTable<'_>, path: &mut Vec<Step>, visit: &mut impl FnMut(Range<usize>, &[Step])) {
    for (name, value) in table.iter() {
        path.push(Step::Name(name.get_ref().to_string()));
        visit(name.span(), path);
        walk_value(value, path, visit);
        path.pop();
    }
}

fn walk_value(value: &Spanned<DeValue<'_>>, path: &mut Vec<Step>, visit: &mut impl FnMut(Range<usize>, &[Step])) {
    visit(value.span(), path);
    match value.get_ref() {
        DeValue::Table(table) => walk(table, path, visit),
        DeValue::Array(array) => {
            for (i, element) in array.iter().enumerate() {
                path.push(Step::Element(i));
                walk_value(element, path, visit);
                path.pop();
            }
        }
        _ => {}
    }
}

/// Puts another value behind a name.
fn replace<'i>(table: &mut DeTable<'i>, path: &[Step], value: Spanned<DeValue<'i>>) {
    let Some((Step::Name(name), rest)) = path.split_first() else { return };
    match table.get_mut(name.as_str()) {
        Some(here) if rest.is_empty() => *here = value,
        Some(here) => {
            if let DeValue::Table(below) = here.get_mut() {
                replace(below, rest, value);
            }
        }
        None => {}
    }
}

/// Takes a name out of its table. An element of a list becomes an empty string instead, so that the others keep
/// their numbers; all lists of the config are lists of strings.
fn remove<'i>(table: &mut DeTable<'i>, path: &[Step]) -> Option<DeValue<'i>> {
    let (Step::Name(name), rest) = path.split_first()? else { return None };
    if rest.is_empty() {
        return table.remove(name.as_str()).map(Spanned::into_inner);
    }
    remove_below(table.get_mut(name.as_str())?, rest)
}

fn remove_below<'i>(value: &mut Spanned<DeValue<'i>>, path: &[Step]) -> Option<DeValue<'i>> {
    match value.get_mut() {
        DeValue::Table(table) => remove(table, path),
        DeValue::Array(array) => {
            let (Step::Element(cut), _) = path.split_first()? else { return None };
            let mut removed = None;
            let mut kept = DeArray::new();
            for (i, element) in array.iter().enumerate() {
                if i == *cut {
                    kept.push(Spanned::new(element.span(), DeValue::String("".into())));
                    removed = Some(element.get_ref().clone());
                } else {
                    kept.push(element.clone());
                }
            }
            *array = kept;
            removed
        }
        _ => None,
    }
}

/// What serde lists as valid behind what is not.
fn in_backquotes(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// What is said of a name that is not known, if that is the fault: the nearest one that can stand there.
fn explain_name(message: &str, path: &[Step], kind: Kind, root: &DeTable<'_>, names: &Names) -> Option<String> {
    let Some(Step::Name(name)) = path.last() else { return None };
    let known = in_backquotes(message.strip_prefix(&format!("unknown field `{name}`, "))?);
    let is_given = |path: &[Step]| {
        let Some((Step::Name(name), above)) = path.split_last() else { return false };
        let table = above.iter().try_fold(root, |table, step| match step {
            Step::Name(name) => table.get(name.as_str())?.get_ref().as_table(),
            Step::Element(_) => None,
        });
        table.is_some_and(|table| table.contains_key(name.as_str()))
    };
    let instead = names.instead(path, kind, &known, is_given)?;
    Some(format!("unknown name {}; {instead}", shown(name)))
}

/// Whether a value that could stand here is refused for what stands elsewhere.
fn is_refused(root: &DeTable<'_>, path: &[Step], value: &str) -> bool {
    let origin = root.get("origin").and_then(|origin| origin.get_ref().as_table()?.get("kind")?.get_ref().as_str());
    dotted(path) == "keys.source" && value == "origin" && origin != Some("http")
}

/// Serde's message in the words of a config file, with the nearest valid value that is not `refused`.
fn explain(message: &str, removed: Option<&DeValue<'_>>, refused: impl Fn(&str) -> bool) -> String {
    if let Some(DeValue::String(value)) = removed
        && let Some(rest) = message.strip_prefix(&format!("unknown variant `{value}`, "))
    {
        let valid: Vec<&str> = in_backquotes(rest).into_iter().filter(|value| !refused(value)).collect();
        return format!("unknown value {}; {}", shown(value), instead(value, valid));
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("needs {rest}");
    }
    if message.starts_with("wanted ") {
        return "invalid type: expected a string".to_owned();
    }
    // Rust's names of types mean nothing to who runs a gateway.
    let plain = [
        ("expected u64", "expected a whole number from 0"),
        (" as i128", ""),
        (" as u128", ""),
        ("invalid type: map", "invalid type: table"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: floating point", "invalid type: number"),
        ("expected a map", "expected a table"),
        ("expected a sequence", "expected a list"),
    ];
    plain.iter().fold(message.to_owned(), |message, (from, to)| message.replace(from, to))
}
