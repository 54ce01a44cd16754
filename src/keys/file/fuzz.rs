//! The key file's reader: whatever the text, keys that hold to the rules or a fault with its line;
//! and what was taken, written out again, is taken again.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::*;

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
            let lines = text.split('\n').count();
            for fault in faults {
                let line: usize = fault.strip_prefix("line ").unwrap().split(':').next().unwrap().parse().unwrap();
                assert!((1..=lines).contains(&line), "{fault}");
                assert_eq!(hide_keys(&fault), fault, "it shows a key");
            }
        }
    }
}

fn written(keys: &[Listed]) -> String {
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
