//! Files with faults: each fault is reported with its place and in words that help.

use super::{config, faults, loaded};

#[test]
fn every_fault_is_reported_at_once_with_its_place_and_the_nearest_name() {
    let text = r#"
[server]
listen = ["127.0.0.1:8080", 5, "localhost:80", "127.0.0.1:8080", "unix:"]
base_path = "v1/"
threads = -1
header_timeout = "5"
body_timeout = "0s"
max_body = 4096
maxheader = "16KiB"
trusted_proxies = ["10.0.0.0/8", "10.0.0.0/99"]

[answers]
error_status = "htpp"
headers = ["age", "agee", "age"]
cors_origins = ["https://shop.example", "Shop.example/", "null"]
service_name = "a\nb"

[limits]
default_tier = "fre"
shadow = "no"
[limits.tiers.free]
rate = "0/s"
  brust = 5
burst = 0
write_burst = 3
# A comment.

[[cache]]
ttl = "5s"

[origin]
kind = "http"
upstreams = ["http://u:p@h", "ftp://h", "http://h:0"]
store = ":memory:"

[keys]
source = "file"

[log]
level = "loud"
"é" = "✓"
"#;
    assert_eq!(
        faults(text),
        [
            "3:29: server.listen[1]: `5` is not an address; write IP:PORT, such as \"127.0.0.1:8080\", \"[::1]:8080\" or, for \
             every address, \"0.0.0.0:8080\"",
            "3:32: server.listen[2]: `localhost:80` is not an address; write IP:PORT, such as \"127.0.0.1:8080\", \"[::1]:8080\" or, \
             for every address, \"0.0.0.0:8080\"",
            "3:48: server.listen[3]: is listed twice",
            "3:66: server.listen[4]: a path must follow `unix:`",
            "4:13: server.base_path: must begin with `/`, such as \"/v1\"",
            "5:11: server.threads: must be from 0 to 1024",
            "6:18: server.header_timeout: `5` is not a duration; write a whole number and ms, s, m, h or d, such as \"250ms\"",
            "7:16: server.body_timeout: must not be 0, since every request would time out",
            "8:12: server.max_body: `4096` is not a size; write a whole number and B, KiB, MiB or GiB, such as \"8KiB\"",
            "9:1: server.maxheader: unknown name `maxheader`; did you mean `max_header`?",
            "10:34: server.trusted_proxies[1]: `10.0.0.0/99` is not a CIDR; write one such as \"10.0.0.0/8\"",
            "13:16: answers.error_status: unknown value `htpp`; did you mean `http`?",
            "14:19: answers.headers[1]: unknown value `agee`; did you mean `age`?",
            "15:41: answers.cors_origins[1]: `Shop.example/` is no origin as browsers send it, such as `https://shop.example`, without a path; \"*\": every page",
            "15:58: answers.cors_origins[2]: `null` is no origin as browsers send it, such as `https://shop.example`, without a path; \"*\": every page",
            "16:16: answers.service_name: must be one line without control characters, since a refusal is one line",
            "19:16: limits.default_tier: there is no tier `fre`; did you mean `free`?",
            "20:10: limits.shadow: is of type string; it must be of type boolean",
            "22:8: limits.tiers.free.rate: a rate of 0 refuses every request; the lowest is \"1/d\"",
            "23:3: limits.tiers.free.brust: unknown name `brust`; did you mean `burst`?",
            "24:9: limits.tiers.free.burst: must be from 1 to 1000000000",
            "25:15: limits.tiers.free.write_burst: needs `write_rate`: without it there is no separate limit of writes",
            "28:1: cache: is of type array; it must be of type table: write [cache]",
            "33:14: origin.upstreams[0]: must not have a user or password; the caller's key is sent instead",
            "33:30: origin.upstreams[1]: is not a service's URL; write http://host:port or http://host:port/path, or https://…",
            "33:41: origin.upstreams[2]: is not a service's URL; write http://host:port or http://host:port/path, or https://…",
            "34:9: origin.store: must be a file: data in memory is lost at exit",
            "36:1: keys.file: `keys.source` \"file\" needs it: the path of the key file",
            "40:9: log.level: unknown value `loud`; there are `error`, `warn`, `info`, `debug` and `trace`",
            "41:1: log.\"é\": unknown name `é`; there are `access`, `audit`, `decisions`, `decisions_max_size`, `format`, `level`, \
             `otlp` and `otlp_sample`",
        ]
    );
}

#[test]
fn faults_of_syntax_are_reported_with_the_others() {
    let text = "[server]\nmax_body = \"4KiB\"\nmax_body = \"5KiB\"\nthreads = 20/s\nbase_path = \"v1\n[server]\n\
                [limits.strangers]\nbrst = 1\n";
    assert_eq!(
        faults(text),
        [
            "3:1: `max_body` is already set",
            "4:11: string values must be quoted, expected literal string",
            "5:16: invalid basic string, expected `\"`",
            "6:2: `server` is already set",
            "8:1: limits.strangers.brst: unknown name `brst`; did you mean `burst`?",
        ]
    );
}

#[test]
fn a_list_that_is_not_closed_is_reported_once_a_line() {
    let messages = "missing comma between array elements, expected `,`";
    let text = "[server]\nlisten = [\"[::1]:80\"\nthreads = 5\nx = 1\n";
    assert_eq!(faults(text), [format!("3:1: {messages}"), format!("4:1: {messages}")]);
}

#[test]
fn faults_of_type_and_misspelt_names_are_reported_in_the_words_of_the_file() {
    for (text, fault) in [
        ("server.tls = true", "1:14: server.tls: is of type boolean; it must be of type table: write [server.tls]"),
        ("server.tls = { certificate = \"a\" }", "1:14: server.tls: needs `private_key`"),
        ("answers.error_status = 5", "1:24: answers.error_status: is of type integer; it must be of type string"),
        (
            "limits.tiers = 5",
            "1:16: limits.tiers: is of type integer; it must be of type table: write [limits.tiers.NAME]",
        ),
        ("log.level = {}", "1:13: log.level: is of type table; it must be of type string"),
        ("server.threads = 1.5", "1:18: server.threads: is of type float; it must be of type integer"),
        ("server.threads = 99999999999999999999", "1:18: server.threads: must be from 0 to 1024"),
        (
            "limits.default_tier = \"standrad\"",
            "1:23: limits.default_tier: there is no tier `standrad`; did you mean `standard`?",
        ),
        ("server.lissten = [\"127.0.0.1:1\"]", "1:8: server.lissten: unknown name `lissten`; did you mean `listen`?"),
        (
            "origin.upstream = [\"http://a\"]",
            "1:8: origin.upstream: unknown name `upstream`; did you mean `upstreams`?",
        ),
        (
            "[[limits.tiers]]\n",
            "1:1: limits.tiers: is of type array; it must be of type table: write [limits.tiers.NAME]",
        ),
        ("[[server]]\nlisten = []\n", "1:1: server: is of type array; it must be of type table: write [server]"),
        ("server.base_path = [\"/v1\"]", "1:20: server.base_path: is of type array; it must be of type string"),
        ("server.tls = []", "1:14: server.tls: is of type array; it must be of type table: write [server.tls]"),
        (
            "upstream = [\"a\"]",
            "1:1: upstream: unknown name `upstream`; there are `admin`, `answers`, `cache`, `cluster`, `keys`, `limits`, `log`, `origin`, `pass` and `server`",
        ),
        ("[limits.teirs.gold]\nburst = 1", "1:9: limits.teirs: unknown name `teirs`; did you mean `tiers`?"),
        ("server.tsl = { certificate = \"a\" }", "1:8: server.tsl: unknown name `tsl`; did you mean `tls`?"),
    ] {
        assert_eq!(faults(text), [fault], "{text}");
    }
}

#[test]
fn a_rejected_value_makes_no_second_fault_by_its_absence() {
    for text in ["keys = { source = \"file\", file = 5 }", "origin = { kind = \"http\", upstreams = 5 }"] {
        assert_eq!(faults(text).len(), 1, "{text}: {:#?}", faults(text));
    }
}

#[test]
fn a_column_counts_characters_and_a_fault_of_a_missing_setting_has_the_place_of_its_section() {
    assert_eq!(faults("answers = { service_name = \"日本\", x = 1 }")[0][..5], *"1:34:");
    assert_eq!(faults("\r\n[keys]\r\nsource = \"file\"\r\n")[0][..15], *"2:1: keys.file:");
    assert_eq!(faults("origin.kind = \"http\"")[0][..4], *"1:1:");
}

#[test]
fn a_file_of_nothing_but_faults_ends_and_they_are_printed_one_a_line_behind_the_files_name() {
    let problems = loaded("colour = 1\nshape = 2\n").unwrap_err().to_string();
    let lines: Vec<_> = problems.lines().collect();
    assert!(lines[0].starts_with("gateway.toml:1:1: colour: unknown name `colour`; there are `admin`,"), "{lines:?}");
    assert!(lines.len() == 2 && lines[1].starts_with("gateway.toml:2:1: shape: unknown name"), "{lines:?}");
    let text: String = (0..500).map(|i| format!("k{i} = 1\n")).collect();
    assert_eq!(faults(&text).len(), 100);
}

#[test]
fn values_out_of_bounds_are_faults() {
    for bad in [
        "server.listen = []",
        "server.listen = [\"unix:/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/\
         0123456789/0123456789\"]",
        "log.access = \"a\\u0000b\"",
        "keys = { source = \"file\", file = \"\" }",
        "server.base_path = \"/\"",
        "server.base_path = \"/a?b\"",
        "server.max_connections = 0",
        "server.threads = 100000",
        "server.max_header = \"1B\"",
        "server.max_header = \"1GiB\"",
        "server.max_body = \"0B\"",
        "server.max_body = \"2MiB\"",
        "server.idle_timeout = \"366d\"",
        "server.drain_timeout = \"0s\"",
        "server.drain_delay = \"366d\"",
        "server.handover = \"a\\u0000b\"",
        "server.handover = \"/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/\
         0123456789/0123\"",
        "server.health_path = \"healthz\"",
        "server.health_path = \"/getPoints\"",
        "server = { base_path = \"/v1\", health_path = \"/v1/setPoints\" }",
        "server = []",
        "origin.retries = 11",
        "origin.host = \"a b\"",
        "origin.timeout = \"0s\"",
        "origin.store = \"\"",
        "origin.store = \"file:x\"",
        "limits.strangers = { rate = \"1/d\", burst = 1000 }",
        "limits.strangers.burst = 1000000001",
        "limits.tiers.\"a b\".burst = 5\nlimits.tiers.standard = {}",
        "cache.max_size = \"99999999GiB\"",
        "admin.listen = \"9180\"",
        "admin.hosts = [\"http://ops\"]",
        "admin.token = \"env:\"",
        "admin.token = 12345",
    ] {
        let faults = faults(bad);
        assert_eq!(faults.len(), 1, "{bad}: {faults:#?}");
        assert!(!faults[0].contains("12345"), "a token is shown: {faults:?}");
    }
    for good in [
        "server.listen = [\"127.0.0.1:0\", \"[::]:80\"]",
        "server.base_path = \"/v1\"",
        "server.health_path = \"\"",
        "server.trusted_proxies = [\"10.1.2.3\", \"::1/128\"]",
        "cache.points.ttl = \"0s\"",
        "answers.headers = []",
    ] {
        assert_eq!(faults(good), Vec::<String>::new(), "{good}");
    }
}

#[cfg(not(feature = "otlp"))]
#[test]
fn traces_need_a_build_that_can_export_them() {
    let fault = "1:12: log.otlp: this build has no OTLP export; build with --features otlp";
    assert_eq!(faults("log.otlp = \"http://127.0.0.1:4318\""), [fault]);
    assert!(faults("log.otlp = \"\"\nlog.otlp_sample = 0.5").is_empty());
}

#[test]
fn where_proxies_announce_callers_some_are_trusted() {
    let why = "needs `server.trusted_proxies`, since the connections of all others are closed";
    assert_eq!(faults("server.proxy_protocol = true"), [format!("1:25: server.proxy_protocol: {why}")]);
    assert_eq!(faults("server = { proxy_protocol = true, trusted_proxies = [\"10.0.0.1\"] }"), Vec::<String>::new());
}

#[test]
fn what_passes_needs_an_http_origin_and_a_judge_of_its_keys() {
    let http = |more: &str| format!("origin = {{ kind = \"http\", upstreams = [\"http://a\"] }}\n{more}\n");
    let learned = "keys.source = \"origin\"\n[pass]\n";
    for (text, fault) in [
        (
            "pass.paths = [\"/\"]".to_owned(),
            "pass.paths: needs `origin.kind` \"http\": the built-in backend answers operations only",
        ),
        (http("pass.paths = [\"docs\"]"), "pass.paths[0]: must begin with `/`, such as \"/v1\""),
        (http("pass.paths = [\"\"]"), "pass.paths[0]: must begin with `/`, such as \"/docs\""),
        (http("pass.paths = [\"/docs/\"]"), "pass.paths[0]: must not end in `/`; write it as \"/docs\""),
        (http("pass.paths = [\"/a\", \"/a\"]"), "pass.paths[1]: is listed twice"),
        (http("pass.max_body = \"2000GiB\""), "pass.max_body: must be from 0B to 1024GiB"),
        (http("pass.idle_timeout = \"0s\""), "pass.idle_timeout: must not be 0, since every request would time out"),
        (
            http(&format!("{learned}paths = [\"/\"]")),
            "pass.key: must be false: only the origin can judge keys there (`keys.source` \"origin\"), and it judges what \
             passes itself",
        ),
    ] {
        let found = faults(&text);
        assert!(found.len() == 1 && found[0].ends_with(fault), "{text}{found:?}");
    }
    for text in [http(&format!("{learned}key = false\npaths = [\"/\"]")), http(learned), "pass.key = false".to_owned()]
    {
        assert_eq!(faults(&text), Vec::<String>::new());
    }
    let pass = config(&http("pass.paths = [\"/docs\", \"/img\"]")).pass;
    assert!(pass.covers(b"/img/a.png") && pass.covers(b"/docs") && !pass.covers(b"/"));
    assert!(!config("").pass.covers(b"/"));
}
