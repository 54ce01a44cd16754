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
    /// probably meant, if it can hold such a value and is not `taken`, or else all that are left.
    pub fn instead(&self, path: &[Step], kind: Kind, known: &[&str], taken: impl Fn(&str) -> bool) -> Option<String> {
        let (Step::Name(name), above) = path.split_last()? else { return None };
        let table = self.at(above)?.get("properties")?;
        let fits = |known: &&str| table.get(known).is_some_and(|node| Self::kind(self.resolved(node)) == kind);
        let (taken, free): (Vec<&str>, Vec<&str>) = known.iter().partition(|name| taken(name));
        if let Some(meant) = nearest(name, free.iter().copied().filter(fits)) {
            return Some(format!("did you mean `{meant}`?"));
        }
        Some(match nearest(name, taken) {
            Some(meant) => format!("`{meant}` stands here already"),
            None => there_are(free),
        })
    }
}
