//! Contract section 4: `/api/openapi.json` describes what the server does. Requests are generated from the description:
//! one that it allows is not 400, one with a single value that it forbids is. `scripts/openapi` does so at length.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::support::*;

const CASES: usize = 300;

/// Generates requests.
struct Generator {
    openapi: Value,
    runner: TestRunner,
}

/// A generated request.
#[derive(Debug)]
struct Generated {
    method: String,
    path: String,
    body: Option<String>,
    operation: Value,
    is_valid: bool,
}

impl Generator {
    fn draw<T: std::fmt::Debug>(&mut self, strategy: impl Strategy<Value = T>) -> T {
        strategy.new_tree(&mut self.runner).unwrap().current()
    }

    fn below(&mut self, count: usize) -> usize {
        self.draw(0..count)
    }

    fn resolve(&self, schema: &Value) -> Value {
        match schema["$ref"].as_str() {
            Some(reference) => self.resolve(self.openapi.pointer(&reference[1..]).unwrap()),
            None => schema.clone(),
        }
    }

    /// A value that the schema allows.
    fn valid(&mut self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        for any in ["anyOf", "oneOf"] {
            if let Some(options) = schema[any].as_array() {
                let at = self.below(options.len());
                return self.valid(&options[at]);
            }
        }
        if let Some(options) = schema["enum"].as_array() {
            return options[self.below(options.len())].clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds[self.below(kinds.len())].clone(),
            kind => kind.clone(),
        };
        match (kind.as_str().unwrap(), schema["format"].as_str()) {
            ("null", _) => Value::Null,
            ("boolean", _) => self.draw(any::<bool>()).into(),
            ("integer", _) => {
                let bound = |name: &str, default| schema[name].as_i64().unwrap_or(default);
                self.draw(bound("minimum", i64::MIN)..=bound("maximum", i64::MAX)).into()
            }
            ("string", Some("date")) => self.draw("20[0-9]{2}-0[1-9]-[01][1-8]").into(),
            ("string", Some("date-time")) => self.draw("2[0-9]{3}-0[1-9]-[01][1-8]T[01][0-9]:[0-5][0-9]:00Z").into(),
            ("string", _) => match schema["pattern"].as_str() {
                Some(pattern) => {
                    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
                    self.draw(string_regex(pattern.strip_suffix('$').unwrap_or(pattern)).unwrap()).into()
                }
                None => self.draw("\\PC{1,20}").into(),
            },
            ("object", _) => {
                let required = schema["required"].as_array().cloned().unwrap_or_default();
                let mut object = Map::new();
                for (name, of) in schema["properties"].as_object().unwrap() {
                    if required.contains(&json!(name)) || self.draw(any::<bool>()) {
                        object.insert(name.clone(), self.valid(of));
                    }
                }
                object.into()
            }
            other => panic!("{other:?}"),
        }
    }

    /// A value that the schema forbids.
    fn invalid(&mut self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        let text = schema.to_string();
        let mut wrong = vec![json!([1])];
        if !text.contains("\"string\"") || text.contains("\"pattern\"") {
            wrong.push(json!("\n"));
        }
        for (bound, beyond) in [("minimum", -1), ("maximum", 1)] {
            wrong.extend(schema[bound].as_i64().and_then(|value| value.checked_add(beyond)).map(Value::from));
        }
        let at = self.below(wrong.len());
        wrong.swap_remove(at)
    }

    fn request(&mut self, key: &str) -> Generated {
        let operations = self.openapi["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(|(method, it)| (path.clone(), method.to_uppercase(), it.clone()))
        });
        let operations: Vec<_> = operations.collect();
        let (mut path, method, operation) = operations[self.below(operations.len())].clone();
        let wants_invalid = self.draw(any::<bool>());
        let (mut is_valid, mut query) = (true, String::new());
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let (name, is_path) = (parameter["name"].as_str().unwrap(), parameter["in"] == "path");
            let mut value = self.valid(&parameter["schema"]);
            // What is there is asked for, and not removed.
            let known = [("guild", GUILD), ("member", "7"), ("id", if path.contains("/keys/") { key } else { "9" })];
            if is_path && method != "DELETE" && self.draw(any::<bool>()) {
                value = known.iter().find(|(known, _)| *known == name).map(|(_, id)| (*id).into()).unwrap();
            }
            let is_open = self.resolve(&parameter["schema"])["pattern"].is_null() && name != "limit";
            if wants_invalid && is_valid && !is_open && self.draw(any::<bool>()) {
                (value, is_valid) = (json!("\n"), false);
            }
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string();
            if is_path {
                path = path.replace(&format!("{{{name}}}"), &text);
            } else if !is_valid || self.draw(any::<bool>()) {
                query += &format!("&{name}={text}");
            }
        }
        let schema = self.resolve(&operation["requestBody"]["content"]["application/json"]["schema"]);
        let body = (!schema.is_null()).then(|| {
            let mut body = self.valid(&schema);
            let all = if schema["properties"].is_object() { &schema } else { &Value::Null };
            let names: Vec<&String> = all["properties"].as_object().into_iter().flat_map(Map::keys).collect();
            if wants_invalid && is_valid && !names.is_empty() {
                let name = names[self.below(names.len())];
                match self.below(3) {
                    0 => body["colour"] = json!(1),
                    1 if all["required"].as_array().is_some_and(|required| required.contains(&json!(name))) => {
                        body.as_object_mut().unwrap().remove(name);
                    }
                    _ => body[name] = self.invalid(&all["properties"][name]),
                }
                is_valid = false;
            }
            body.to_string()
        });
        Generated { method, path: format!("{path}?{}", query.trim_start_matches('&')), body, operation, is_valid }
    }
}

/// On a gateway with a key `bot`.
pub async fn requests_are_answered_as_the_description_says(gate: &TestGateway, admin: &AdminClient) {
    let openapi = admin.get("/api/openapi.json").await.is(200);
    for reference in openapi.to_string().split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(openapi.pointer(pointer).is_some(), "there is no {pointer}");
    }
    let mut generator = Generator { openapi, runner: TestRunner::deterministic() };
    let key = gate.key_id("bot");
    let (mut good, mut bad) = (0, 0);
    for _ in 0..CASES {
        let request = generator.request(&key);
        let Generated { method, path, body, .. } = &request;
        let answer = match body {
            Some(body) => admin.json(method, path, body).await,
            None => admin.send(method, path, &[], "").await,
        };
        let declared = &request.operation["responses"][answer.status.to_string()];
        assert!(declared.is_object(), "{request:?} {answer:?}");
        match request.is_valid {
            true => assert!(answer.status < 500 && answer.status != 400, "{request:?} {answer:?}"),
            false => assert_eq!(answer.status, 400, "{request:?} {answer:?}"),
        }
        *if answer.status < 300 { &mut good } else { &mut bad } += 1;
    }
    assert!(good > CASES / 4 && bad > CASES / 8, "{good} succeeded, {bad} failed");
}
