//! The names of the config and what each may hold, read off its schema: for what is said of one that is misspelt.

use schemars::SchemaGenerator;
use serde_json::Value;
use toml::de::DeValue;

use super::file::ConfigFile;
use super::places::{Step, dotted};
use super::problem::{nearest, there_are};

/// What stands, or may stand, behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Table,
    List,
    Single,
}

impl Kind {
    pub fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Table(_) => Kind::Table,
            DeValue::Array(_) => Kind::List,
            _ => Kind::Single,
        }
    }
}

pub(super) struct Names(Value);

impl Names {
    pub fn new() -> Self {
        Names(SchemaGenerator::default().into_root_schema_for::<ConfigFile>().to_value())
    }

    fn resolved<'s>(&'s self, node: &'s Value) -> &'s Value {
        let name = node.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
        name.and_then(|name| self.0.get("$defs")?.get(name)).unwrap_or(node)
    }

    fn at(&self, path: &[Step]) -> Option<&Value> {
        path.iter().try_fold(&self.0, |node, step| {
            let Step::Name(name) = step else { return None };
            let named = node.get("properties").and_then(|names| names.get(name));
            // A table of tables, such as the tiers.
            let any = node.get("additionalProperties").filter(|any| any.is_object());
            named.or(any).map(|below| self.resolved(below))
        })
    }

    fn kind(node: &Value) -> Kind {
        match node.get("type").and_then(Value::as_str) {
            Some("object") => Kind::Table,
            Some("array") => Kind::List,
            _ => Kind::Single,
        }
    }

    /// What is said of a list where none can stand.
    pub fn no_list(&self, path: &[Step]) -> String {
        match self.at(path) {
            Some(node) if Self::kind(node) == Kind::Table => {
                let of_tables = node.get("additionalProperties").is_some_and(Value::is_object);
                let below = if of_tables { ".NAME" } else { "" };
                format!("must be a table, not a list: write [{}{below}]", dotted(path))
            }
            _ => "must be one value, not a list".to_owned(),
        }
    }

    /// The end of a message about an unknown name with a value of this kind, where these are `known`: the one that was
    /// probably meant, if it is not `given`, or else all that are left. Where that one cannot hold such a value, this
    /// is said too, so that nobody is sent from one fault to the next.
    pub fn instead(
        &self,
        path: &[Step],
        kind: Kind,
        known: &[&str],
        given: impl Fn(&[Step]) -> bool,
    ) -> Option<String> {
        let (Step::Name(name), above) = path.split_last()? else { return None };
        let table = self.at(above)?.get("properties")?;
        let kind_of = |known: &str| table.get(known).map(|node| Self::kind(self.resolved(node)));
        let is_taken = |known: &str| given(&[above, &[Step::Name(known.to_owned())]].concat());
        let (taken, free): (Vec<&str>, Vec<&str>) = known.iter().partition(|name| is_taken(name));
        if let Some(meant) = nearest(name, free.iter().copied().filter(|known| kind_of(known) == Some(kind))) {
            return Some(format!("did you mean `{meant}`?"));
        }
        if let Some(meant) = nearest(name, taken) {
            return Some(format!("`{meant}` stands here already"));
        }
        // A table's name that stands before a list, or a list of tables, is another thing altogether.
        let is_leaf = |known: &&str| kind != Kind::Table && kind_of(known).is_some_and(|kind| kind != Kind::Table);
        if let Some(meant) = nearest(name, free.iter().copied().filter(is_leaf)) {
            let (one, other) = if kind == Kind::List { ("one value", "a list") } else { ("a list", "one value") };
            return Some(format!("did you mean `{meant}`? It holds {one}, not {other}"));
        }
        Some(match self.elsewhere(name, kind).filter(|path| !given(path)).as_deref() {
            Some([section @ .., Step::Name(meant)]) => format!("did you mean `{meant}` in [{}]?", dotted(section)),
            _ => there_are(free),
        })
    }

    /// The one place in all the config where a name this near stands and can hold such a value.
    fn elsewhere(&self, name: &str, kind: Kind) -> Option<Vec<Step>> {
        let mut near: Vec<(usize, Vec<Step>)> = Vec::new();
        let mut next = vec![(Vec::new(), &self.0)];
        while let Some((above, node)) = next.pop() {
            let named = node.get("properties").and_then(Value::as_object).into_iter().flatten();
            let any = node.get("additionalProperties").filter(|any| any.is_object());
            for (known, below) in
                named.map(|(known, below)| (known.as_str(), below)).chain(any.map(|any| ("NAME", any)))
            {
                let (path, below) = ([&above[..], &[Step::Name(known.to_owned())]].concat(), self.resolved(below));
                let distance = strsim::damerau_levenshtein(name, known);
                // Nearer than in its own table: there are many more names.
                if distance <= known.len() / 4 && Self::kind(below) == kind {
                    near.push((distance, path.clone()));
                }
                next.push((path, below));
            }
        }
        let least = near.iter().map(|(distance, _)| *distance).min()?;
        near.retain(|(distance, _)| *distance == least);
        if near.len() == 1 { near.pop().map(|(_, path)| path) } else { None }
    }
}
