//! docs/openapi.yaml is what the wire says: each example and each refusal of each operation is sent, and the answer's
//! status, header fields and body are compared with the file. The file is YAML in the form of JSON.

use std::collections::BTreeSet;

use guildgate::wire::Operation;
use serde_json::Value;

use crate::support::*;

const FILE: &str = include_str!("../../docs/openapi.yaml");
const CONTRACT: &str = include_str!("../../docs/contract.md");

/// The media types of requests and of answers.
const FORM: &str = "application/x-www-form-urlencoded";
const TEXT: &str = "text/plain; charset=utf-8";

/// Fields of HTTP itself, which the file need not list.
const OF_HTTP: [&str; 4] = ["connection", "content-length", "content-type", "date"];

fn file() -> Value {
    serde_json::from_str(FILE).unwrap()
}

/// The value at this pointer, or what it refers to.
fn at<'f>(file: &'f Value, value: &'f Value) -> &'f Value {
    match value["$ref"].as_str() {
        Some(pointer) => file.pointer(pointer.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("no {pointer}")),
        None => value,
    }
}

/// The members of an object.
fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// Each operation, and what the file says of it.
fn operations(file: &Value) -> impl Iterator<Item = (Operation, &Value)> {
    let described = move |operation: Operation| (operation, &file["paths"][format!("/{}", operation.name())]["post"]);
    Operation::ALL.into_iter().map(described)
}

const MEMBER: &str = "190551803669118976";
const END: i64 = 4_102_444_800;

/// A gateway whose data is what the examples tell of.
fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind)
        .key("bot")
        .key_of_tier("slow", "slow")
        .read_key("reader")
        .points(MEMBER, 1250)
        .warn(MEMBER, 17, "Mod", "spam, again", END)
        .warn(MEMBER, 18, "Mod", "flood", END)
        .review(MEMBER, 9, "Bo", 5, "Quick and kind")
        .set("limits.tiers.standard.write_rate", r#""1000000/s""#)
        .set("limits.tiers.standard.write_burst", "1000000")
        .set("limits.tiers.slow.rate", r#""30/m""#)
        .set("limits.tiers.slow.burst", "1")
        .set("server.body_timeout", r#""1s""#)
        .set("origin.store", r#""guildgate.db""#)
}

/// Digits give way to one nine, and the tier to the default one, so that only the form of a field's value is compared.
fn form(value: &str) -> String {
    let mut form = String::new();
    for c in value.replace("slow", "standard").chars().map(|c| if c.is_ascii_digit() { '9' } else { c }) {
        if c != '9' || !form.ends_with('9') {
            form.push(c);
        }
    }
    form
}

/// Whether a field's value is as the file has it.
fn is_as_described(described: &Value, value: &str) -> bool {
    let schema = &described["schema"];
    let length = value.len() as u64;
    let is_example = |(_, example): (&str, &Value)| form(example["value"].as_str().unwrap()) == form(value);
    match (schema["const"].as_str(), schema["type"].as_str()) {
        (Some(only), _) => value == only,
        (None, Some("integer")) => value.parse::<u64>().is_ok_and(|n| n >= schema["minimum"].as_u64().unwrap()),
        (None, _) if described["examples"].is_object() => members(&described["examples"]).any(is_example),
        (None, _) => (schema["minLength"].as_u64().unwrap()..=schema["maxLength"].as_u64().unwrap()).contains(&length),
    }
}

/// Compares an answer with the response and the example that the file has for it.
fn compare(file: &Value, what: &str, (status, response): (&str, &Value), example: &str, answer: &Answer) {
    assert_eq!(answer.status.to_string(), status, "{what}: {answer:#?}");
    let content = &response["content"][TEXT];
    let text = content["examples"][example]["value"].as_str().unwrap();
    let n = answer.header("retry-after").unwrap_or("2");
    assert_eq!(answer.body, text.replace("again in 2 s.", &format!("again in {n} s.")), "{what}");
    assert_eq!(answer.header("content-type"), Some(TEXT), "{what}");
    for (name, value) in &answer.headers {
        if OF_HTTP.contains(&name.to_ascii_lowercase().as_str()) {
            continue;
        }
        let described = members(&response["headers"]).find(|(described, _)| described.eq_ignore_ascii_case(name));
        let (_, described) = described.unwrap_or_else(|| panic!("{what}: the file has no {name}"));
        assert!(is_as_described(at(file, described), value), "{what}: {name}: {value} is not as described");
    }
    for (name, described) in members(&response["headers"]) {
        let is_required = at(file, described)["required"] == true;
        assert!(!is_required || answer.header(name).is_some(), "{what}: there is no {name}");
    }
    // By default the key's limits are told once the key is known, and the id always.
    let code = answer.code().filter(|_| status != "200");
    let is_known = !matches!(code, Some(1 | 2 | 10 | 11 | 14 | 16));
    assert_eq!(answer.header("ratelimit").is_some(), is_known, "{what}: {answer:#?}");
    assert!(answer.header("x-request-id").is_some(), "{what}: {answer:#?}");
}

#[tokio::test]
async fn each_example_is_answered_as_the_file_says() {
    let (file, gate) = (file(), gate(Kind::Builtin).start().await);
    let mut sent = 0;
    for (operation, described) in operations(&file) {
        let (is_write, operation) = (operation.is_write(), operation.name());
        assert_eq!(described["operationId"], operation);
        let response = &described["responses"]["200"];
        let requests = &described["requestBody"]["content"][FORM]["examples"];
        let names = |examples: &Value| members(examples).map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(requests), names(&response["content"][TEXT]["examples"]), "{operation}");
        for (example, request) in members(requests) {
            let pairs: Vec<String> =
                members(&request["value"]).map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
            let request = gate.request(operation, "bot", &pairs.join("&"));
            // Reads twice: from the origin, and from memory.
            for round in 0..if is_write { 1 } else { 2 } {
                let answer = gate.send(&request).await;
                compare(&file, &format!("{operation} {example}"), ("200", response), example, &answer);
                assert_eq!(answer.header("age").is_some(), round == 1, "{answer:#?}");
                sent += 1;
            }
        }
    }
    assert_eq!(sent, 14);
}

/// Has this operation refused with this code, which the name of an example begins with.
async fn refused(gate: &TestGateway, operation: &str, example: &str) -> Answer {
    let good = format!("memberID={MEMBER}&amount=5");
    let with = |body: &str| gate.request(operation, "bot", body);
    let says = |status: u16, text: &str| gate.origin().next(operation, Act::say(status, text));
    // A member of its own, so that no answer is in memory.
    let other = format!("memberID=99{}&amount=5", &example[..2]);
    let request = match example {
        "01" => Request::post(&format!("/{operation}"), &good),
        "02" => Request::post(&format!("/{operation}"), &good).key("Bearer gg_0"),
        "03" => {
            says(403, "03 | Error while retrieving guild using this API key. Is Some Bot still on guild?");
            with(&other)
        }
        "04" => with("amount=5"),
        "05" => with("memberID=Ada&amount=5"),
        "06" => with(&format!("memberID={MEMBER}")),
        "07" => with(&format!("memberID={MEMBER}&amount=many")),
        "08" => with("memberID=7&memberID=7&amount=5"),
        "08-amount" => with(&format!("memberID={MEMBER}&amount=5&amount=5")),
        "10" => Request::post(&format!("/{}", operation.to_lowercase()), &good).key(gate.secret("bot")),
        "11" => Request::bare("GET", &format!("/{operation}")).key(gate.secret("bot")),
        "12" => {
            let request = gate.request(operation, "slow", &good);
            gate.send(&request).await;
            request
        }
        "13" => with(&good).header("Content-Encoding", "gzip"),
        "14" => with(&"x".repeat(5000)),
        "15" => gate.request(operation, "reader", &good),
        "16" => with(&good).header("Content-Length", "5"),
        "17" => {
            let mut connection = gate.connect_and_send(with(&good).head()).await;
            return connection.answer().await;
        }
        "20" => {
            says(500, "an error page");
            with(&other)
        }
        "21" => {
            says(503, "busy");
            with(&other)
        }
        "22" => {
            gate.origin().next(operation, Act::Stall);
            with(&other)
        }
        code => panic!("the test knows no way to be refused with {code}"),
    };
    gate.send(&request).await
}

#[tokio::test]
async fn each_refusal_is_answered_as_the_file_says() {
    let file = file();
    let gate = gate(Kind::Http).set("origin.timeout", r#""500ms""#).set("origin.retries", "0").start().await;
    for (operation, described) in operations(&file) {
        let (is_write, operation) = (operation.is_write(), operation.name());
        let mut codes = BTreeSet::new();
        for (status, response) in members(&described["responses"]).filter(|(status, _)| *status != "200") {
            let response = at(&file, response);
            for (example, _) in members(&response["content"][TEXT]["examples"]) {
                let answer = refused(&gate, operation, example).await;
                answer.is_a_refusal();
                assert_eq!(answer.code(), example[..2].parse().ok(), "{operation} {example}: {answer:#?}");
                compare(&file, &format!("{operation} {example}"), (status, response), example, &answer);
                codes.insert(answer.code().unwrap());
            }
        }
        // Reads have no amount, and no key may do less than read.
        let of_contract = CONTRACT.lines().filter_map(|line| line.strip_prefix("| ")?.get(..2)?.parse::<u8>().ok());
        let can_be_met = of_contract.filter(|code| is_write || !matches!(code, 6 | 7 | 15));
        assert_eq!(codes, can_be_met.collect(), "{operation}");
    }
}

#[test]
fn every_reference_of_the_file_leads_somewhere() {
    fn walk<'f>(file: &'f Value, value: &'f Value, followed: &mut usize) {
        if value["$ref"].is_string() {
            assert!(!at(file, value).is_null());
            *followed += 1;
        }
        members(value).for_each(|(_, value)| walk(file, value, followed));
        value.as_array().into_iter().flatten().for_each(|value| walk(file, value, followed));
    }
    let (file, mut followed) = (file(), 0);
    walk(&file, &file, &mut followed);
    assert!(followed > 100, "{followed}");
    let paths: BTreeSet<String> = members(&file["paths"]).map(|(path, _)| path.to_owned()).collect();
    assert_eq!(paths, Operation::ALL.map(|operation| format!("/{}", operation.name())).into(), "what is served");
}
