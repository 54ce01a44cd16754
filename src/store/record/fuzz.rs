//! Fuzz target of a line of an import: an accepted record equals the JSON, and parses to itself when printed.

use serde_json::Value;

use super::*;

fuzz_target!(record_line, 10_000, judge);

fn judge(line: &[u8]) {
    let record = match Record::parse(line) {
        Ok(record) => record,
        Err(why) => return assert!(!why.is_empty() && why.chars().count() <= 300, "{why}"),
    };
    let printed = serde_json::to_string(&record).unwrap();
    assert!(!printed.contains(char::is_control), "it is one line: {printed}");
    assert_eq!(Record::parse(printed.as_bytes()).as_ref(), Ok(&record), "{printed}");

    let typed: Value = serde_json::from_slice(line).unwrap();
    let again: Value = serde_json::from_str(&printed).unwrap();
    let (typed, again) = (typed.as_object().unwrap(), again.as_object().unwrap());
    assert_eq!(typed.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>(), "every field, and no other");
    for (name, value) in typed {
        let expected = match (name.as_str(), value) {
            ("member" | "warn" | "review", Value::String(id)) => {
                let digits = id.trim_start_matches('0');
                Value::from(if digits.is_empty() { "0" } else { digits })
            }
            ("name" | "author" | "reason" | "text", Value::String(text)) => {
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().into()
            }
            (_, value) => value.clone(),
        };
        assert_eq!(again[name], expected, "{name}");
    }
}
