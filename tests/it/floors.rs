//! Holds the floors of `src/lib.rs`: a module imports only from the floors below its own, and
//! Pingora is named only in `edge`, where the network is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};

/// Each module's floor, as `src/lib.rs` has it.
static FLOORS: LazyLock<BTreeMap<String, u8>> = LazyLock::new(|| {
    let mut floors = BTreeMap::from([("fuzz".to_owned(), 0), ("main".to_owned(), 10)]);
    let mut floor = None;
    for line in include_str!("../../src/lib.rs").lines() {
        if let Some(rest) = line.strip_prefix("// Floor ") {
            floor = rest.split(':').next().and_then(|n| n.parse().ok());
        } else if let Some(rest) = line.strip_prefix("pub mod ") {
            floors.insert(rest.split(';').next().unwrap().to_owned(), floor.expect("a module below a floor"));
        }
    }
    assert!(floors.len() > 20 && floors["wire"] < floors["edge"], "{floors:?}");
    floors
});

fn floor(module: &str) -> Option<u8> {
    FLOORS.get(module).copied()
}

/// What is wrong with one source file, whose path is relative to `src/`.
fn violations(path: &str, source: &str) -> Vec<String> {
    let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let names = names_in(path, source);
    let mut wrong = Vec::new();
    if names.pingora && !path.starts_with("edge/") {
        wrong.push(format!("{path} names pingora"));
    }
    if module == "lib" {
        return wrong;
    }
    let Some(own) = floor(module) else {
        wrong.push(format!("{path}: the module {module} has no floor"));
        return wrong;
    };
    for used in names.modules {
        match floor(&used) {
            _ if used == module => {}
            Some(floor) if floor < own => {}
            Some(floor) => wrong.push(format!("{path} (floor {own}) uses {used} (floor {floor})")),
            None => wrong.push(format!("{path} uses crate::{used}, which has no floor")),
        }
    }
    wrong
}

/// What a source file names.
#[derive(Default)]
struct Names {
    /// The crate's top-level modules, by `crate::…`, `guildgate::…` or `super::…`.
    modules: BTreeSet<String>,
    pingora: bool,
}

fn names_in(path: &str, source: &str) -> Names {
    let depth = path.split('/').filter(|part| *part != "mod.rs").count();
    let mut names = Names::default();
    names.collect(source.parse().unwrap(), depth);
    names
}

impl Names {
    /// Collects from code that is `depth` modules below the crate's root. Comments and literals name nothing.
    fn collect(&mut self, code: TokenStream, depth: usize) {
        let tokens: Vec<TokenTree> = code.into_iter().collect();
        let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token.to_string() == word);
        let mut at = 0;
        while at < tokens.len() {
            // A path's separator is two tokens: `crate`, `:`, `:`, `store`.
            let mut supers = 0;
            while is(at + 3 * supers, "super") && is(at + 3 * supers + 1, ":") {
                supers += 1;
            }
            match &tokens[at] {
                TokenTree::Group(group) => {
                    let is_module = at >= 2 && is(at - 2, "mod");
                    self.collect(group.stream(), depth + usize::from(is_module));
                }
                TokenTree::Ident(_) if supers > 0 => {
                    if supers >= depth {
                        self.add(tokens.get(at + 3 * supers));
                    }
                    at += 3 * supers - 1;
                }
                TokenTree::Ident(word) if (word == "crate" || word == "guildgate") && is(at + 1, ":") => {
                    self.add(tokens.get(at + 3));
                }
                TokenTree::Ident(word) => {
                    self.pingora |= *word == "pingora" || word.to_string().starts_with("pingora_")
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }

    /// Adds the name that a path goes on with, or each of those in its braces.
    fn add(&mut self, next: Option<&TokenTree>) {
        match next {
            Some(TokenTree::Group(group)) => {
                let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
                for path in tokens.split(|token| token.to_string() == ",") {
                    self.add(path.first());
                }
            }
            Some(name) => drop(self.modules.insert(name.to_string())),
            None => {}
        }
    }
}

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.extension() {
            _ if path.is_dir() => found.extend(source_files(&path)),
            Some(extension) if extension == "rs" => found.push(path),
            _ => {}
        }
    }
    found
}

#[test]
fn every_module_imports_from_lower_floors_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = source_files(&src);
    assert!(files.len() > 10, "only {} files under {}", files.len(), src.display());
    let mut wrong = Vec::new();
    let mut uses = 0;
    for file in files {
        let path = file.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&file).unwrap();
        uses += names_in(&path, &source).modules.len();
        wrong.extend(violations(&path, &source));
    }
    assert!(uses > 10, "only {uses} uses were found: this reads nothing");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_planted_violation_is_caught() {
    for (path, source) in [
        ("wire/form.rs", "use crate::store::Store;"),
        ("wire/mod.rs", "fn f() { let _ = crate::config::Config::default(); }"),
        ("model/key.rs", "use crate::{model::KeyId, wire::{Fault, Form}};"),
        ("cache/mod.rs", "use crate::limits::Gcra;"), // its own floor, another module
        ("cache/epoch.rs", "use super::super::store;"),
        ("cache/epoch.rs", "mod tests { use super::super::super::gateway::handle; }"),
        ("clock.rs", "use super::edge;"),
        ("gateway/mod.rs", "mod a { fn f() {} } use super::edge::Edge;"),
        ("config/file.rs", "pub use crate::unheard_of::Thing;"),
        ("cellar/mod.rs", ""),
        ("edge/mod.rs", "use guildgate::process::run;"),
        ("process/mod.rs", "use crate::cli::Failure;"),
        ("process/serving.rs", "use pingora::server::Server;"),
        ("gateway/mod.rs", "use pingora::server::ShutdownWatch;"),
        ("origin/health.rs", "use pingora_load_balancing::LoadBalancer;"),
        ("cli/keys.rs", "let x: pingora_core::Result<()> = Ok(());"),
        ("keys/table.rs", "const A: char = '\"'; use crate::origin::Origin; const B: char = '\"';"),
        ("keys/table.rs", "const A: &str = r#\"a\"b\"#; use crate::origin::Origin;"),
    ] {
        assert!(!violations(path, source).is_empty(), "not caught in {path}: {source}");
    }
}

#[test]
fn what_is_allowed_is_not_caught() {
    for (path, source) in [
        ("store/sqlite.rs", "use crate::{clock::Clock, model::{GuildId, Note}, store::records};"),
        ("store/sqlite.rs", "use super::records::*; mod tests { use super::*; use super::super::Store; }"),
        ("store/mod.rs", "// crate::edge is not named by a comment\n/* nor crate::cli */ fn f<'a>(x: &'a str) {}"),
        ("wire/fault.rs", "const A: &str = \"crate::store and \\\" pingora\"; const B: char = '\\'';"),
        ("edge/server.rs", "use pingora::apps::ServerApp; use crate::gateway::Gateway;"),
        ("cli/serve.rs", "use crate::edge::Edge;"),
        ("process/startup.rs", "use crate::{edge::Edge, gateway::Gateway};"),
        ("main.rs", "fn main() -> std::process::ExitCode { guildgate::cli::run() }"),
        ("lib.rs", "pub mod clock;"),
    ] {
        assert_eq!(violations(path, source), Vec::<String>::new(), "{path}: {source}");
    }
}
