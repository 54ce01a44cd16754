//! What `check` prints of a configuration, and its hash.

use super::*;

#[test]
fn the_report_says_what_a_key_can_do_in_its_first_minute_and_in_a_day() {
    let text =
        "[limits.tiers.standard]\nrate = \"3/s\"\nburst = 10\nwrite_rate = \"1/d\"\nwrite_burst = 2\ndaily = 100000\n";
    let report = report(&loaded(text).unwrap());
    let line = |begin: &str| {
        let found = report.lines().find(|l| l.trim_start().starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin} in\n{report}")).trim().to_owned()
    };
    assert!(
        line("all operations")
            .ends_with("2.999999994/s, burst 10; a key can do at most 189 in its first minute, 100000 in a day")
    );
    assert!(
        line("write_rate, in addition")
            .ends_with("0.00001157407407/s, burst 2; a key can do at most 2 in its first minute, 3 in a day")
    );
    assert!(line("strangers").ends_with("1/s, burst 30; an address can do at most 90 in its first minute"));
}

#[test]
fn what_the_report_says_is_in_force_is_a_config_that_says_the_same() {
    let with_origin = "[origin]\nkind = \"http\"\nupstreams = [\"https://b\"]\nhealth = {}\nfirst_byte_timeout = \"1s\"\n\
                       tls = { ca = \"ca.pem\" }\n[keys]\nsource = \"origin\"\n[server]\nlisten = [\"unix:a.sock\", \"[::1]:1\"]\n\
                       tls = { certificate = \"c\", private_key = \"k\" }\nhandover = \"h.sock\"\n";
    let with_tiers = "[limits]\ndefault_tier = \"b.c\"\n[limits.tiers.a]\nrate = \"600/m\"\n[limits.tiers.\"b.c\"]\nwrite_rate = \"1/s\"\n\
                      candidate = {}\ndaily = 5\n[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n[log]\naccess = \"a.log\"\n";
    let with_admin = "[admin]\nlisten = \"0.0.0.0:1\"\nread_token = \"file:r\"\ntls = { certificate = \"c\", private_key = \"k\" }\n\
                      [log]\naudit = \"audit.log\"\n";
    for text in ["", with_origin, with_tiers, with_admin, "admin.listen = \"\""] {
        let (typed, report) = (loaded(text).unwrap(), report(&loaded(text).unwrap()));
        let toml = report.split_once("\n\n").unwrap().1.split_once("\nLimits in words:\n").unwrap().0;
        let read = load_with(toml, Path::new("/elsewhere"), "gateway.toml", &|_| None);
        let read = read.unwrap_or_else(|faults| panic!("{faults}\n{toml}")).config;
        assert_eq!(read, typed.config, "{toml}");
    }
}

#[test]
fn no_secret_is_in_the_report() {
    let loaded = loaded("admin.token = \"hunter2\"\norigin.store = \"env:PG\"\n").unwrap();
    let shown = format!("{loaded:?}{}", report(&loaded));
    assert!(!shown.contains("hunter2") && shown.contains("postgres://me@host/db"), "{shown}");
}

#[test]
fn a_whole_rate_is_reported_whole() {
    assert_eq!(rate(50_000_000, 1).per_second(), "20");
    assert_eq!(rate(1, 1).per_second(), "1000000000");
    assert_eq!(rate(50_000_000, 40).most_within(60_000_000_000), 1240);
}

#[test]
fn the_hash_of_a_configuration_is_that_of_what_decides_about_answers() {
    let hash = |toml: &str, folder: &str| load_str(toml, Path::new(folder), "test").unwrap().config.hash.to_string();
    let defaults = hash("", "");
    assert!(defaults.len() == 12 && defaults.bytes().all(|b| b.is_ascii_hexdigit()), "{defaults}");
    assert_eq!(hash("# a comment\n[limits]\nshadow = false\n[admin]\nlisten = \"127.0.0.1:9180\"\n", "/etc"), defaults);
    assert_eq!(hash("origin.store = \"postgres://u:one@h/d\"", ""), defaults, "it is no other for nodes that differ");
    let others = ["[limits]\nshadow = true", "[cache.points]\nttl = \"1s\"", "[answers]\nservice_name = \"S\""];
    let mut hashes = others.map(|toml| hash(toml, "")).to_vec();
    hashes.push(defaults);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 4, "{hashes:?}");
}
