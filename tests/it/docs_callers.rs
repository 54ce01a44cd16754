//! docs/callers.md: its table of codes is the contract's, and its examples run as they stand there.

use std::process::{Command, Stdio};

use futures_util::future::join_all;
use guildgate::wire::Operation;
use serde_json::{Value, json};

use crate::support::*;

#[path = "../../examples/caller/main.rs"]
#[expect(dead_code, reason = "the tests call `run`, not `main`")]
mod caller;

const PAGE: &str = include_str!("../../docs/callers.md");
const CONTRACT: &str = include_str!("../../docs/contract.md");

/// The text of the fenced block whose first line is this, without that line.
fn block(first_line: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n{first_line}\n")).unwrap_or_else(|| panic!("{first_line} is missing"));
    rest.split_once("```\n").unwrap().0
}

/// An example of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Example {
    Curl,
    Python,
    Requests,
    Node,
    Rust,
}

const EXAMPLES: [Example; 5] = [Example::Curl, Example::Python, Example::Requests, Example::Node, Example::Rust];

impl Example {
    /// Runs it with this key to its end: what it prints, or, if it fails, also what it says of that.
    async fn run(self, gate: &TestGateway, key: &str) -> Result<String, String> {
        let url = format!("http://{}", gate.address());
        let mut command = match self {
            Example::Curl => script(gate, "sh", "# caller.sh", ""),
            Example::Python => script(gate, "python3", "# caller.py", ""),
            Example::Requests => script(gate, python_with_requests(), "# caller_requests.py", ""),
            Example::Node => script(gate, "node", "// caller.mjs", ""),
            Example::Rust => {
                let client = caller::Client { url, key: key.to_owned() };
                return caller::run(&client).await.map_err(|error| error.to_string());
            }
        };
        command.env("GUILDGATE_URL", url).env("GUILDGATE_KEY", key);
        output(command, "").await
    }
}

/// A block of the page as a script in the gateway's folder, with more lines behind it.
fn script(gate: &TestGateway, program: &str, first_line: &str, more: &str) -> Command {
    let name = first_line.split(' ').next_back().unwrap();
    let path = gate.world().write(name, format!("{}{more}", block(first_line)));
    let mut command = Command::new(program);
    command.arg(path).current_dir(gate.world().path(""));
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    command
}

/// Runs a command that reads `input`. Its whole output if it fails.
async fn output(mut command: Command, input: &str) -> Result<String, String> {
    let input = input.to_owned();
    let running = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}; run scripts/setup"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = tokio::time::timeout(4 * PATIENCE, running).await.expect("the example does not end").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    if output.status.success() { Ok(stdout) } else { Err(format!("{stdout}{stderr}")) }
}

/// The Python on the path may be another than Debian's, whose package has the library.
fn python_with_requests() -> &'static str {
    let imports = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-c", "import requests"]).output().is_ok_and(|output| output.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(imports).expect("no Python has requests; run scripts/setup")
}

fn gate(rate: &str, error_status: &str) -> Builder {
    TestGateway::before_http()
        .key("bot")
        .set("limits.tiers.standard.rate", &format!("{rate:?}"))
        .set("limits.tiers.standard.burst", "1")
        .set("answers.error_status", &format!("{error_status:?}"))
        .set("log.access", r#""access.log""#)
}

/// The codes of all requests so far, success as `-`.
fn codes(gate: &TestGateway) -> Vec<String> {
    let log = gate.world().text("access.log");
    log.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned()).collect()
}

async fn it_waits_as_it_is_told(example: Example, error_status: &str) {
    let mut gate = gate("1/s", error_status).start().await;
    gate.origin().next("getPoints", Act::Say(503, "Retry-After: 1\r\n", b"busy".to_vec()));
    let printed = example.run(&gate, gate.secret("bot")).await.unwrap();
    assert_eq!(printed, "0\nSuccessfully set 'Ada' points to '1250'\n1250\n", "{example:?}");
    assert_eq!((gate.origin().asked("getPoints"), gate.origin().asked("setPoints")), (3, 1));
    gate.stop().await;
    let codes = codes(&gate);
    let count = |code: &str| codes.iter().filter(|other| *other == code).count();
    assert_eq!((count("-"), count("21")), (3, 1), "{example:?}: {codes:?}");
    assert!(count("12") <= 3, "{example:?} did not wait long enough: {codes:?}");
    assert_eq!(codes.len(), 4 + count("12"), "{example:?}: {codes:?}");
}

async fn it_stops_at_any_other_refusal(example: Example) {
    let mut gate = gate("1/h", "http").start().await;
    let key = gate.secret("bot").to_owned();
    let said = example.run(&gate, &format!("Bearer {key}")).await.unwrap_err();
    assert!(said.contains("02 | Incorrect API key!"), "{example:?}: {said}");
    // An hour, less what the request took, is too long to wait.
    let said = example.run(&gate, &key).await.unwrap_err();
    assert!(said.contains("12 | Too many requests! Try again in 3"), "{example:?}: {said}");
    gate.stop().await;
    assert_eq!(codes(&gate), ["02", "-", "12"], "{example:?}");
}

/// curl alone goes by the status, as the page says.
async fn curl_stops_where_each_refusal_has_status_200() {
    let gate = gate("1/s", "ok").start().await;
    gate.origin().next("getPoints", Act::Say(503, "Retry-After: 1\r\n", b"busy".to_vec()));
    let said = Example::Curl.run(&gate, gate.secret("bot")).await.unwrap_err();
    assert_eq!(said, "21 | The service is not available. Try again later.\n");
}

#[tokio::test]
async fn each_example_waits_as_it_is_told_and_stops_at_any_other_refusal_and_all_but_curl_go_by_the_line() {
    join_all(EXAMPLES.map(|example| it_waits_as_it_is_told(example, "http"))).await;
    join_all(EXAMPLES.map(it_stops_at_any_other_refusal)).await;
    let (curl, others) = EXAMPLES.split_first().unwrap();
    assert_eq!(*curl, Example::Curl);
    join_all(others.iter().map(|example| it_waits_as_it_is_told(*example, "ok"))).await;
    curl_stops_where_each_refusal_has_status_200().await;
}

#[tokio::test]
async fn maps_are_read_whatever_is_in_them() {
    let end = unix_now() + 1000;
    let warns = [
        (1, "Mod", "spam, flood = bad", end),
        (2, "a, b=c", "as in warns_7_id_9_5=x: y (Expires 5), warns_7_id_10_6=z: q", end + 1),
        (17, "Mod", "2: two, warns_7_id_3_4=x: lower", end + 2),
        (18, "Mod", "}", end + 3),
    ];
    let reviews = [
        (1, "Bo, reviews_7_id_5_5=x", 5, "good, reviews_7_id_1_5=Bo (5★): as the last one"),
        (2, "Bo", 3, "so, so = so"),
    ];
    let gate = warns.iter().fold(TestGateway::builder().key("bot"), |gate, (id, author, reason, expires)| {
        gate.warn("7", *id, author, reason, *expires)
    });
    let gate =
        reviews.iter().fold(gate, |gate, (id, author, rating, text)| gate.review("7", *id, author, *rating, text));
    let gate = gate.start().await;
    let text = |n: &dyn ToString| n.to_string();
    let warns: Vec<Value> = warns.iter().map(|w| json!([text(&w.0), text(&w.3), w.1, w.2])).collect();
    let reviews: Vec<Value> = reviews.iter().map(|r| json!([text(&r.0), text(&r.2), r.1, r.3])).collect();
    let maps = [
        ("warns", gate.get_warns("bot", "7").await.body, warns),
        ("reviews", gate.get_reviews("bot", "7").await.body, reviews),
        ("warns", gate.get_warns("bot", "8").await.body, Vec::new()),
    ];
    for (kind, map, entries) in maps {
        let python = format!(
            "\nimport json, sys\nmap = sys.stdin.buffer.read().decode()\n\
             print(json.dumps([[str(part) for part in entry] for entry in read_map(map, {kind:?}, \"007\")]))\n"
        );
        let node = format!(
            "\nimport {{ readFileSync }} from \"node:fs\";\n\
             const entries = readMap(readFileSync(0, \"utf8\"), {kind:?}, \"007\");\n\
             console.log(JSON.stringify(entries.map((e) => [e.id, e.number, e.author, e.text])));\n"
        );
        for (program, first_line, more) in [("python3", "# read_map.py", python), ("node", "// read_map.mjs", node)] {
            let read = output(script(&gate, program, first_line, &more), &map).await.unwrap();
            assert_eq!(serde_json::from_str::<Vec<Value>>(&read).unwrap(), entries, "{program}: {map}");
        }
    }
}

#[tokio::test]
async fn a_member_id_does_not_survive_as_a_number_in_javascript() {
    let mut command = Command::new("node");
    command.args(["--print", r#"String(Number("190551803669118976"))"#]);
    let printed = output(command, "").await.unwrap();
    assert!(PAGE.contains(&format!(r#"`String(Number("190551803669118976"))` is `{}`"#, printed.trim())), "{printed}");
}

#[test]
fn every_operation_has_its_row() {
    let table = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | `memberID`"));
    assert_eq!(table.map(|(name, _)| name).collect::<Vec<_>>(), Operation::ALL.map(Operation::name));
}

#[test]
fn every_code_of_the_contract_has_its_row() {
    let rows = |page: &'static str| -> Vec<(&str, &str)> {
        let cells = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (code, status) = (cells.next()?, cells.next()?);
            (code.len() == 2 && code.parse::<u8>().is_ok()).then_some((code, status))
        });
        cells.collect()
    };
    assert!(rows(CONTRACT).len() >= 19);
    assert_eq!(rows(PAGE), rows(CONTRACT));
}

#[test]
fn the_rust_of_the_page_is_the_examples() {
    let (_, rest) = PAGE.split_once("```rust\n").unwrap();
    let unindented = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    let example = unindented(include_str!("../../examples/caller/main.rs"));
    for part in rest.split_once("```\n").unwrap().0.split("\n\n") {
        assert!(example.contains(unindented(part).trim()), "the example has no such lines:\n{part}");
    }
}
