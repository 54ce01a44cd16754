//! Holds the floors of `src/lib.rs`: a module imports only from the floors below its own, and
//! Pingora is named only where the network and the choice of upstreams are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each module's floor. `src/lib.rs` is the same table for readers; a test below compares them.
const FLOORS: [(&str, u8); 18] = [
    ("fuzz", 0),
    ("clock", 0),
    ("sync", 0),
    ("model", 0),
    ("wire", 1),
    ("config", 2),
    ("telemetry", 3),
    ("cache", 3),
    ("limits", 3),
    ("store", 3),
    ("keys", 4),
    ("origin", 4),
    ("gateway", 5),
    ("edge", 6),
    ("admin", 6),
    ("cluster", 6),
    ("cli", 7),
    ("main", 8),
];

fn floor(module: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor)
}

fn may_name_pingora(path: &str) -> bool {
    path.starts_with("edge/") || path.starts_with("origin/") || path.starts_with("cli/serve")
}

/// What is wrong with one source file, whose path is relative to `src/`.
fn violations(path: &str, source: &str) -> Vec<String> {
    let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let tokens = tokens(source);
    let mut wrong = Vec::new();
    let names_pingora = tokens.iter().any(|t| t == "pingora" || t.starts_with("pingora_"));
    if names_pingora && !may_name_pingora(path) {
        wrong.push(format!("{path} names pingora"));
    }
    if module == "lib" {
        return wrong;
    }
    let Some(own) = floor(module) else {
        wrong.push(format!("{path}: the module {module} stands on no floor"));
        return wrong;
    };
    for used in modules_used(path, &tokens) {
        match floor(&used) {
            _ if used == module => {}
            Some(floor) if floor < own => {}
            Some(floor) => wrong.push(format!("{path} (floor {own}) uses {used} (floor {floor})")),
            None => wrong.push(format!("{path} uses crate::{used}, which stands on no floor")),
        }
    }
    wrong
}

/// The crate's top-level modules that a file names by `crate::…`, `guildgate::…` or `super::…`.
fn modules_used(path: &str, tokens: &[String]) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    // How many modules deep the code at hand is, and at which brace each inline module began.
    let file_depth = path.split('/').filter(|part| *part != "mod.rs").count();
    let (mut braces, mut inline) = (0, Vec::new());
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    let mut at = 0;
    while at < tokens.len() {
        match token(at) {
            "{" => {
                braces += 1;
                if at >= 2 && token(at - 2) == "mod" {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces -= 1;
            }
            "crate" | "guildgate" if token(at + 1) == "::" => named_after(at + 2, tokens, &mut used),
            "super" if token(at + 1) == "::" && token(at.wrapping_sub(1)) != "::" => {
                let mut chain = 0;
                while token(at + 2 * chain) == "super" && token(at + 2 * chain + 1) == "::" {
                    chain += 1;
                }
                if chain >= file_depth + inline.len() {
                    named_after(at + 2 * chain, tokens, &mut used);
                }
                at += 2 * chain - 1;
            }
            _ => {}
        }
        at += 1;
    }
    used
}

/// The first name of the path at `at`, or of each path in the braces there.
fn named_after(at: usize, tokens: &[String], used: &mut BTreeSet<String>) {
    if tokens.get(at).map(String::as_str) != Some("{") {
        used.extend(tokens.get(at).cloned());
        return;
    }
    let (mut depth, mut expects_name) = (0, false);
    for token in &tokens[at..] {
        match token.as_str() {
            "{" => {
                depth += 1;
                expects_name = depth == 1;
            }
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
            "," => expects_name = depth == 1,
            name if expects_name => {
                used.insert(name.to_owned());
                expects_name = false;
            }
            _ => {}
        }
    }
}

/// Words, `::` and single signs; comments and the insides of literals are left out.
fn tokens(source: &str) -> Vec<String> {
    let bytes = source.as_bytes();
    let mut tokens: Vec<String> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let hashes = |from: &str| from.len() - from.trim_start_matches('#').len();
        let raw = ["r", "br"]
            .into_iter()
            .find_map(|p| rest.strip_prefix(p))
            .filter(|r| r.trim_start_matches('#').starts_with('"'));
        let step = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = raw {
            let hashes = hashes(raw);
            let start = rest.len() - raw.len() + hashes + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            rest[start..].find(&end).map_or(rest.len(), |n| start + n + end.len())
        } else if rest.starts_with('"') {
            quoted(rest, '"')
        } else if rest.starts_with('\'') && is_char_literal(rest) {
            quoted(rest, '\'')
        } else if word > 0 {
            tokens.push(rest[..word].to_owned());
            word
        } else {
            let sign = if rest.starts_with("::") { 2 } else { rest.chars().next().map_or(1, char::len_utf8) };
            if !rest.starts_with(char::is_whitespace) {
                tokens.push(rest[..sign].to_owned());
            }
            sign
        };
        at += step;
    }
    tokens
}

/// Whether a `'` begins a character and not a lifetime.
fn is_char_literal(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    chars.next() == Some('\\') || chars.next() == Some('\'')
}

/// The length of a literal that ends in this quote.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
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
        uses += modules_used(&path, &tokens(&source)).len();
        wrong.extend(violations(&path, &source));
    }
    assert!(uses > 10, "only {uses} uses were found: this reads nothing");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_map_in_lib_rs_tells_the_same_floors() {
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let (mut on, mut told) = (None, 0);
    for line in lib.lines() {
        if let Some(rest) = line.strip_prefix("// Floor ") {
            on = rest.split(':').next().and_then(|n| n.parse().ok());
        } else if let Some(rest) = line.strip_prefix("pub mod ") {
            let module = rest.split(';').next().unwrap();
            assert_eq!(floor(module), on, "{module}");
            told += 1;
        }
    }
    assert!(told >= 12, "only {told} modules in the map");
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
        ("edge/mod.rs", "use guildgate::cli::run;"),
        ("gateway/mod.rs", "use pingora::server::ShutdownWatch;"),
        ("cli/keys.rs", "let x: pingora_core::Result<()> = Ok(());"),
        ("keys/book.rs", "const A: char = '\"'; use crate::origin::Origin; const B: char = '\"';"),
        ("keys/book.rs", "const A: &str = r#\"a\"b\"#; use crate::origin::Origin;"),
    ] {
        assert!(!violations(path, source).is_empty(), "not caught in {path}: {source}");
    }
}

#[test]
fn what_is_allowed_is_not_caught() {
    for (path, source) in [
        ("store/sqlite.rs", "use crate::{clock::Clock, model::{GuildId, Warn}, store::records};"),
        ("store/sqlite.rs", "use super::records::*; mod tests { use super::*; use super::super::Store; }"),
        ("store/mod.rs", "// crate::edge is not named by a comment\n/* nor crate::cli */ fn f<'a>(x: &'a str) {}"),
        ("wire/fault.rs", "const A: &str = \"crate::store and \\\" pingora\"; const B: char = '\\'';"),
        ("edge/server.rs", "use pingora::apps::ServerApp; use crate::gateway::Gateway;"),
        ("origin/health.rs", "use pingora_load_balancing::LoadBalancer;"),
        ("cli/serve.rs", "use pingora::server::Server; use crate::edge::Edge;"),
        ("main.rs", "fn main() -> std::process::ExitCode { guildgate::cli::run() }"),
        ("lib.rs", "pub mod clock;"),
    ] {
        assert_eq!(violations(path, source), Vec::<String>::new(), "{path}: {source}");
    }
}
