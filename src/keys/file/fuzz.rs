//! The key file's reader: whatever the text, keys that hold to the rules or a fault with its line;
//! and what was taken, written out again, is taken again.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::*;
use crate::model::hide_keys;

fuzz_target!(key_file, 3_000, judge);

fn judge(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse(text) {
        Ok(keys) => {
            let unlike = |what: usize| assert_eq!(what, keys.len(), "each id and digest stands once");
            unlike(keys.iter().map(|key| &key.id).collect::<HashSet<_>>().len());
            unlike(keys.iter().map(|key| key.digest).collect::<HashSet<_>>().len());
            for key in &keys {
                assert!((1..=MAX_ID).contains(&key.id.len()) && !key.id.contains(char::is_control), "{key:?}");
            }
            assert_eq!(parse(&written(&keys)).as_ref(), Ok(&keys));
        }
        Err(faults) => {
            assert!(!faults.is_empty());
            let lines: Vec<&str> = text.split('\n').collect();
            for fault in faults {
                let line = lines.get(fault.line.wrapping_sub(1)).unwrap_or_else(|| panic!("no such line: {fault}"));
                assert!((1..=line.chars().count() + 1).contains(&fault.column), "no such column: {fault}");
                let fault = fault.to_string();
                assert!(!fault.contains(char::is_control), "it may be taken for two: {fault:?}");
                assert_eq!(hide_keys(&fault), fault, "it shows a key");
            }
        }
    }
}

fn written(keys: &[ListedKey]) -> String {
    let mut out = String::new();
    for key in keys {
        let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let (id, digest, guild, scope) = (text(&key.id), key.digest, text(key.guild.as_str()), key.scope);
        writeln!(out, "[[key]]\nid = {id}\ndigest = \"{digest}\"\nguild = {guild}\nscope = \"{scope}\"").unwrap();
        if let Some(tier) = &key.tier {
            writeln!(out, "tier = {}", text(tier)).unwrap();
        }
        if let Some(expires) = key.expires {
            writeln!(out, "expires = {expires}").unwrap();
        }
    }
    out
}
