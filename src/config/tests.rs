//! The config file from the outside: text in, config or faults out.

mod faults;
mod upstreams;

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::*;

/// Loads text as if from `/etc/gg/gateway.toml`, in an environment of two variables.
fn loaded(text: &str) -> Result<Loaded, Problems> {
    load_with(text, Path::new("/etc/gg"), "gateway.toml", &|name| match name {
        "STORE" => Some("elsewhere.db".to_owned()),
        "PG" => Some("postgres://me:hunter2@host/db".to_owned()),
        _ => None,
    })
}

fn config(text: &str) -> Config {
    loaded(text).unwrap_or_else(|faults| panic!("{faults}")).config
}

/// The faults as printed, without the file's name.
fn faults(text: &str) -> Vec<String> {
    let problems = loaded(text).err().map(|p| p.list).unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

/// Paths that the warnings of this text speak of.
fn warnings(text: &str) -> Vec<String> {
    let warnings = loaded(text).unwrap_or_else(|faults| panic!("{faults}")).warnings;
    warnings.into_iter().map(|n| n.path).collect()
}

fn tier(name: &str, main: Rate, write: Option<Rate>) -> Tier {
    Tier { name: name.into(), main, write, daily: None, in_flight: None, candidate: None }
}

fn rate(period_ns: u64, burst: u32) -> Rate {
    Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() }
}

#[test]
fn an_empty_file_is_a_valid_config() {
    let config = config("");
    assert_eq!(config.server.listen, [Listen::Tcp("127.0.0.1:8080".parse().unwrap())]);
    assert!(config.server.threads >= 1);
    assert_eq!(config.server.drain_delay, Duration::ZERO);
    assert_eq!(config.server.max_connections_per_address, Some(1000));
    assert_eq!(config.server.max_body, 4096);
    assert_eq!(config.server.health_path.as_deref(), Some("/healthz"));
    assert_eq!(
        config.origin,
        Origin { kind: OriginKind::Builtin, store: StoreAt::Sqlite("/etc/gg/guildgate.db".into()) }
    );
    let standard = tier("standard", rate(50_000_000, 40), Some(rate(200_000_000, 10)));
    assert_eq!(*config.limits.default_tier, standard);
    assert_eq!(config.limits.tiers.len(), 1);
    assert_eq!(config.limits.strangers, rate(1_000_000_000, 30));
    assert_eq!(config.cache.points.stale_if_error, Duration::from_secs(600));
    assert_eq!(config.cache.warns.stale_if_error, Duration::ZERO);
    assert_eq!(config.cache.reviews.ttl, Duration::from_secs(300));
    assert_eq!(
        config.log,
        Log { level: LogLevel::Info, json: false, access: Access::Stderr, decisions: None, audit: None, otlp: None }
    );
}

#[test]
fn zero_and_empty_values_turn_settings_off() {
    let off =
        "server = { max_connections_per_address = 0, health_path = \"\" }\nlog.access = \"\"\nanswers.headers = []\n";
    let config = config(off);
    assert_eq!(config.server.max_connections_per_address, None);
    assert_eq!(config.server.health_path, None);
    assert_eq!(config.log.access, Access::None);
    let headers = AnswerHeaders { cache_status: false, ratelimit: false, request_id: false, age: false };
    assert_eq!(config.answers.headers, headers);
}

#[test]
fn each_word_of_the_file_has_its_own_meaning() {
    let config = config(
        "answers = { error_status = \"ok\", headers = [\"age\"], service_name = \"S\", key_command = \"K\" }\n\
         log = { level = \"trace\", format = \"json\" }\ncache.reviews = { ttl = \"1s\", stale_while_revalidate = \"2s\", \
         stale_if_error = \"3s\" }\nserver = { header_timeout = \"1ms\", body_timeout = \"2ms\", write_timeout = \"3ms\", \
         idle_timeout = \"4ms\", drain_timeout = \"5ms\", drain_delay = \"6ms\", max_body = \"1B\", max_header = \"2KiB\", threads = 3, \
         trusted_proxies = [\"10.0.0.0/8\", \"::1\"] }\n",
    );
    assert!(config.answers.errors_as_ok && config.answers.headers.age && !config.answers.headers.ratelimit);
    assert_eq!((config.answers.wording.service_name, config.answers.wording.key_command), ("S".into(), "K".into()));
    assert!(config.log.level == LogLevel::Trace && config.log.json);
    let Freshness { ttl, stale_while_revalidate, stale_if_error } = config.cache.reviews;
    assert_eq!([ttl, stale_while_revalidate, stale_if_error], [1, 2, 3].map(Duration::from_secs));
    let server = config.server;
    let timeouts = [server.header_timeout, server.body_timeout, server.write_timeout, server.idle_timeout];
    assert_eq!(timeouts, [1, 2, 3, 4].map(Duration::from_millis));
    assert_eq!([server.drain_timeout, server.drain_delay], [5, 6].map(Duration::from_millis));
    assert_eq!((server.max_body, server.max_header, server.threads), (1, 2048, 3));
    assert_eq!(server.trusted_proxies, ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
}

#[test]
fn the_shipped_file_says_the_defaults() {
    let shipped = loaded(include_str!("../../gateway.toml")).unwrap();
    assert_eq!(shipped, loaded("").unwrap());
}

#[test]
fn the_schema_on_disk_is_the_files_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gateway.schema.json");
    let on_disk = fs::read_to_string(path).unwrap_or_default();
    assert!(
        on_disk == format!("{:#}\n", schema()),
        "it is out of date; run `guildgate schema > docs/gateway.schema.json`"
    );
}

#[test]
fn every_name_of_the_shipped_file_is_in_the_schema_with_a_description() {
    let schema = schema();
    let mut described = 0;
    let mut sections = vec![&schema];
    while let Some(section) = sections.pop() {
        for (name, property) in section["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].is_string(), "{name} has no description");
            described += 1;
            sections.extend([property, &property["additionalProperties"]]);
        }
    }
    assert!(described > 60, "{described}");
}

/// The shipped file with its commented names switched on.
fn uncommented(names: &[&str]) -> String {
    let lines = include_str!("../../gateway.toml").lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if names.iter().any(|name| setting.starts_with(&format!("{name} ="))) => setting,
        _ => line,
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn every_commented_name_is_accepted() {
    assert_eq!(faults(&uncommented(&["upstreams"])).len(), 1, "kind \"builtin\" has none");
    let accepted = [
        "host",
        "connect_timeout",
        "first_byte_timeout",
        "timeout",
        "max_in_flight",
        "queue_timeout",
        "retries",
        "health",
        "file",
        "accepted_for",
        "refused_for",
        "daily",
        "in_flight",
        "candidate",
        "node",
        "read_token",
        "bot_token",
    ];
    let text = uncommented(&accepted);
    assert_eq!(
        warnings(&text),
        [
            "origin.host",
            "origin.connect_timeout",
            "origin.first_byte_timeout",
            "origin.timeout",
            "origin.max_in_flight",
            "origin.queue_timeout",
            "origin.retries",
            "origin.health",
            "keys.accepted_for",
            "keys.refused_for",
            "keys.file",
            "cluster.node",
            "cluster.timeout",
        ]
    );
    let cluster = ["redis", "node", "prefix", "when_away", "nodes", "lease"];
    assert_eq!(warnings(&uncommented(&cluster)), Vec::<String>::new());
    assert_eq!(warnings(&uncommented(&["redis"])), ["cluster.nodes"]);
}

#[test]
fn nodes_before_an_http_origin_need_one_primary_and_are_told_what_its_absence_means() {
    let cluster = |redis: &str| {
        let http = "origin.kind = \"http\"\norigin.upstreams = [\"http://a\"]\n";
        format!("{http}cluster.nodes = 2\ncluster.redis = \"{redis}\"\n")
    };
    let faults = faults(&cluster("redis-cluster://:hunter2@127.0.0.1"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("one primary") && !faults[0].contains("hunter2"), "{faults:?}");
    let one = cluster("redis://127.0.0.1");
    assert_eq!(warnings(&one), Vec::<String>::new());
    assert!(
        report(&loaded(&one).unwrap())
            .contains("every setPoints is refused with 21, and every read goes to the origin")
    );
    let sentinels = cluster("redis-sentinel://127.0.0.1?master=m");
    assert_eq!(warnings(&sentinels), ["cluster.replicas"]);
    let loaded = loaded(&format!("{sentinels}cluster.replicas = 1\n")).unwrap();
    assert!(loaded.warnings.is_empty() && report(&loaded).contains("replicas = 1"), "{}", report(&loaded));
    assert_eq!(loaded.config.cluster.unwrap().replicas, Some(1));
}

#[test]
fn a_store_in_postgresql_is_named_by_a_url_whose_password_is_not_shown() {
    for text in ["origin.store = \"postgres://me:hunter2@host/db\"", "origin.store = \"env:PG\""] {
        let loaded = loaded(text).unwrap();
        let shown = format!("{}\n{loaded:?}", report(&loaded));
        assert!(shown.contains("postgres://me@host:5432/db") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(warnings(text), ["origin.store"], "its certificate is not verified");
    }
    let messages = faults("origin.store = \"postgres://me:hun@ter2@host:x/db\"");
    assert!(messages.len() == 1 && messages[0].contains("%40") && !messages[0].contains("ter2"), "{messages:?}");
}

#[test]
fn a_setting_without_protection_that_has_no_effect_gets_a_warning() {
    assert_eq!(warnings("cluster.node = \"edge-1\""), ["cluster.node"]);
    assert_eq!(warnings("server = { drain_delay = \"5s\", health_path = \"\" }"), ["server.drain_delay"]);
    assert_eq!(warnings("server = { drain_delay = \"0s\", health_path = \"\" }"), Vec::<String>::new());
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://a\", \"http://b\"]\nhealth = { interval = \"1s\" }\n";
    assert_eq!(warnings(http), Vec::<String>::new());
    let in_force = "limits.shadow = true\ncache.points.stale_while_revalidate = \"5s\"\nlimits.strangers.burst = 1\n\
                    server.trusted_proxies = [\"10.0.0.0/8\"]\nserver.max_connections_per_address = 0\n\
                    server.drain_delay = \"5s\"\n[limits.tiers.standard]\ndaily = 5\nin_flight = 5\ncandidate = { burst = 5 }\n";
    assert_eq!(warnings(in_force), Vec::<String>::new());
    assert_eq!(warnings(""), Vec::<String>::new());
}

#[test]
fn decisions_are_recorded_where_the_file_says_and_within_its_bound() {
    let log = |text: &str| config(&format!("[log]\n{text}")).log.decisions;
    let path = PathBuf::from("/etc/gg/d.log");
    assert_eq!(log("decisions = \"d.log\""), Some(Decisions { path: path.clone(), max_size: 64 << 20 }));
    let sized = log("decisions = \"d.log\"\ndecisions_max_size = \"1MiB\"");
    assert_eq!(sized, Some(Decisions { path, max_size: 1 << 20 }));
    assert_eq!(log("decisions_max_size = \"2GiB\""), None);
    for (bad, fault) in [
        ("decisions_max_size = \"1023KiB\"", "2:22: log.decisions_max_size: must be from 1MiB to 1048576GiB"),
        ("access = \"a\"\ndecisions = \"a\"", "3:13: log.decisions: must not be the file of `log.access`"),
    ] {
        assert_eq!(faults(&format!("[log]\n{bad}")), [fault]);
    }
    let messages = report(&loaded("log.decisions = \"d.log\"").unwrap());
    assert!(messages.contains("decisions = \"/etc/gg/d.log\"\ndecisions_max_size = \"64MiB\"\n"), "{messages}");
}

#[test]
fn what_needs_a_restart_is_said_by_name() {
    let reloaded = |before: &str, next: &str, has_store| {
        let Reloaded { config: after, changed, after_restart } = config(before).reloaded(config(next), has_store);
        (after, changed.join(" "), after_restart.join(" "))
    };
    let unchanged = |next: &str| {
        let (after, changed, after_restart) = reloaded("", next, true);
        assert_eq!((after, changed), (config(""), String::new()), "{next}");
        after_restart
    };
    let next = "server = { threads = 1023, max_connections = 5 }\norigin.store = \"b.db\"\n";
    assert_eq!(unchanged(next), "server.threads server.max_connections origin.store");
    assert_eq!(unchanged("server.listen = [\"[::1]:1\"]"), "server.listen");
    assert_eq!(unchanged("log = { decisions = \"d.log\", level = \"warn\" }"), "log.level log.decisions");
    assert_eq!(unchanged("origin = { kind = \"http\", upstreams = [\"http://a\"] }"), "origin.kind");
    let next =
        "limits.shadow = true\nserver.listen = [\"[::1]:1\"]\n[server.tls]\ncertificate = \"a\"\nprivate_key = \"b\"";
    let (after, changed, after_restart) = reloaded("", next, true);
    assert_eq!((&*changed, &*after_restart), ("limits", "server.listen server.tls"));
    assert_eq!(after, config("limits.shadow = true"));
}

#[test]
fn gateway_toml_names_all_that_takes_effect_after_a_restart() {
    let kept = include_str!("reload.rs").split("keep(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let kept: BTreeSet<_> = kept
        .map(|name| match name.split_once('.') {
            Some((section @ ("admin" | "log"), _)) => format!("[{section}]"),
            None if name == "cluster" => "[cluster]".to_owned(),
            _ => name.to_owned(),
        })
        .collect();
    let (_, list) = include_str!("../../gateway.toml").split_once("take effect after a restart").unwrap();
    let words = list.split("\n\n").next().unwrap().split_whitespace().map(|word| word.trim_matches([',', '.']));
    let named = words.filter(|word| word.starts_with('[') || word.contains('.')).map(str::to_owned).collect();
    assert_eq!(kept, named);
}

#[test]
fn a_source_of_keys_that_cannot_follow_another_one_while_running_needs_a_restart() {
    let http = |keys: &str| format!("origin = {{ kind = \"http\", upstreams = [\"http://a\"] }}\nkeys = {{ {keys} }}");
    let [store, file, origin] = ["source = \"store\"", "source = \"file\"\nfile = \"k\"", "source = \"origin\""]
        .map(|k| http(&k.replace('\n', ", ")));
    for (before, next, has_store, follows) in [
        (&store, &file, true, true),
        (&file, &store, true, true),
        (&file, &store, false, false),
        (&file, &origin, true, false),
        (&origin, &store, true, false),
        (&origin, &file, true, false),
    ] {
        let (before, next) = (config(before), config(next));
        let Reloaded { config: after, after_restart, .. } = before.reloaded(next.clone(), has_store);
        assert_eq!(after.keys, if follows { next.keys } else { before.keys });
        assert_eq!(after_restart.is_empty(), follows, "{after_restart:?}");
    }
}

#[test]
fn a_first_limit_by_the_day_needs_a_restart_where_no_store_is_open() {
    let file = "keys = { source = \"file\", file = \"k\" }\n[limits.tiers.standard]\nburst = 7\n";
    let Reloaded { config: after, after_restart, .. } =
        config("").reloaded(config(&format!("{file}daily = 5\n")), false);
    assert_eq!(after_restart, ["limits.tiers.standard.daily"]);
    assert_eq!(after.limits, config(file).limits);
    assert!(Arc::ptr_eq(&after.limits.default_tier, &after.limits.tiers[0]));
}

#[test]
fn a_tiers_missing_rate_and_burst_are_standards_and_a_missing_write_rate_is_none() {
    let limits = config("[limits.tiers.standard]\nrate = \"1/s\"\n[limits.tiers.gold]\nwrite_rate = \"3/s\"\n").limits;
    let standard = tier("standard", rate(1_000_000_000, 40), None);
    let gold = tier("gold", rate(50_000_000, 40), Some(rate(333_333_334, 10)));
    assert_eq!(*limits.default_tier, standard);
    assert_eq!(*limits.tiers[0], gold, "in order of name");
    assert_eq!(*limits.tiers[1], standard);
    assert_eq!(limits.tier(Some("gone")).name, "standard");
}

#[test]
fn the_built_in_standard_tier_exists_with_others_and_does_not_replace_a_misspelt_one() {
    let other = "[limits.tiers.gold]\nburst = 7\n";
    assert_eq!(config(other).limits.default_tier.write, Some(rate(200_000_000, 10)));
    assert_eq!(config(other).limits.tiers.len(), 2);
    assert_eq!(warnings(other), ["limits.default_tier"]);
    assert_eq!(warnings(&format!("limits.default_tier = \"gold\"\n{other}")), Vec::<String>::new());
    let misspelt = faults("[limits.tiers.standrad]\nrate = \"1/s\"\n");
    assert_eq!(misspelt.len(), 1);
    assert!(misspelt[0].starts_with("1:1: limits.tiers.standrad: did you mean `standard`"), "{misspelt:?}");
}

#[test]
fn a_default_tier_that_is_missing_is_a_fault_even_without_tiers() {
    let messages = faults("limits.default_tier = \"standrad\"");
    assert_eq!(messages, ["1:23: limits.default_tier: there is no tier `standrad`; did you mean `standard`?"]);
}

#[test]
fn paths_start_at_the_files_folder() {
    let config = config(
        "server.listen = [\"unix:run/gg.sock\", \"unix:/run/gg.sock\"]\norigin.store = \"env:STORE\"\n\
         log.access = \"/var/log/gg\"\nkeys = { source = \"file\", file = \"keys.toml\" }\n",
    );
    let [relative, absolute] = ["/etc/gg/run/gg.sock", "/run/gg.sock"].map(|path| Listen::Unix(path.into()));
    assert_eq!(config.server.listen, [relative, absolute]);
    assert_eq!(config.origin.store, StoreAt::Sqlite("/etc/gg/elsewhere.db".into()));
    assert_eq!(config.log.access, Access::File("/var/log/gg".into()));
    assert_eq!(config.keys, Keys::File("/etc/gg/keys.toml".into()));
    assert!(faults("origin.store = \"env:NOT_THERE\"")[0].ends_with("`NOT_THERE` is not set or not UTF-8"));
}

#[test]
fn a_tier_may_count_days_and_requests_under_way_and_try_out_a_limit() {
    let limits = config(
        "[limits.tiers.standard]\ndaily = 500000\nin_flight = 32\ncandidate = { rate = \"10/s\", burst = 20 }\n\
         [limits.tiers.gold]\ncandidate.rate = \"1/s\"\n",
    )
    .limits;
    let standard = limits.tier(Some("standard"));
    assert_eq!((standard.daily, standard.in_flight), (Some(500_000), Some(32)));
    assert_eq!(standard.candidate, Some(rate(100_000_000, 20)));
    assert_eq!(limits.tier(Some("gold")).candidate, Some(rate(1_000_000_000, 40)));
    assert!(limits.counts_days() && !config("").limits.counts_days());
    for bad in ["daily = 0", "in_flight = 0", "daily = -1", "in_flight = 9999999", "candidate = { burst = 0 }"] {
        assert_eq!(faults(&format!("[limits.tiers.standard]\n{bad}\n")).len(), 1, "{bad}");
    }
}

#[test]
fn keys_can_be_learned_from_an_http_origin_only() {
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://a\"]\n";
    let s = Duration::from_secs;
    let keys = |rest: &str| config(&format!("{http}[keys]\nsource = \"origin\"\n{rest}")).keys;
    assert_eq!(keys(""), Keys::Origin { accepted_for: s(60), refused_for: s(30) });
    assert_eq!(
        keys("accepted_for = \"5m\"\nrefused_for = \"0s\"\n"),
        Keys::Origin { accepted_for: s(300), refused_for: s(0) }
    );
    assert!(faults("keys.source = \"origin\"")[0].contains("origin.kind"), "{:?}", faults("keys.source = \"origin\""));
    assert_eq!(faults(&format!("{http}[keys]\nsource = \"origin\"\naccepted_for = \"0s\"\n")).len(), 1);
    assert_eq!(warnings("keys.accepted_for = \"5m\""), ["keys.accepted_for"]);
}

#[test]
fn the_store_is_opened_where_something_is_kept_in_it() {
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://a\"]\n[keys]\nsource = \"origin\"\n";
    assert!(!config(http).needs_store());
    assert!(config(&format!("{http}[limits.tiers.standard]\ndaily = 5\n")).needs_store());
    assert!(config("").needs_store());
}

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
        line("setPoints")
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
fn the_admin_listener_is_kept_from_others_who_could_read_its_token() {
    let open = "admin.listen = \"0.0.0.0:9180\"\n";
    assert!(faults(open)[0].contains("set `admin.tls`, or `admin.plaintext = true`"), "{:?}", faults(open));
    for more in ["admin.plaintext = true", "admin.tls = { certificate = \"c\", private_key = \"k\" }"] {
        assert_eq!(faults(&format!("{open}{more}")), Vec::<String>::new());
    }
    let taken = "server.listen = [\"127.0.0.1:9180\"]";
    assert!(faults(taken)[0].contains("is an address of `server.listen`"), "{:?}", faults(taken));
    assert!(faults("admin.read_token = \"env:NO_SUCH\"")[0].contains("NO_SUCH"));
    assert_eq!(faults("admin = { listen = \"\", read_token = \"env:NO_SUCH\" }"), Vec::<String>::new());
}

#[test]
fn no_secret_is_in_the_report() {
    let loaded = loaded("admin.token = \"hunter2\"\norigin.store = \"env:PG\"\n").unwrap();
    let shown = format!("{loaded:?}{}", report(&loaded));
    assert!(!shown.contains("hunter2") && shown.contains("postgres://me@host:5432/db"), "{shown}");
}

#[test]
fn a_whole_rate_is_reported_whole() {
    assert_eq!(rate(50_000_000, 1).per_second(), "20");
    assert_eq!(rate(1, 1).per_second(), "1000000000");
    assert_eq!(rate(50_000_000, 40).most_within(60_000_000_000), 1240);
}

#[test]
fn a_file_that_cannot_be_read_is_reported_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    assert!(matches!(load(Some(&path)), Err(LoadError::Missing(missing)) if missing == path));
    assert!(matches!(load(Some(folder.path())), Err(LoadError::Folder(_))));
    fs::write(&path, b"# fine\n\"\xff\" = 1\n").unwrap();
    assert!(matches!(load(Some(&path)), Err(LoadError::NotText { line: 2, .. })));
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(matches!(load(Some(&path)), Err(LoadError::TooLarge(_))));
    fs::write(&path, "[limts]\n").unwrap();
    let messages = load(Some(&path)).unwrap_err().to_string();
    assert_eq!(messages, format!("{}:1:2: limts: unknown name `limts`; did you mean `limits`?", path.display()));
}

#[test]
fn a_named_file_is_loaded_with_its_own_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gw.toml");
    fs::write(&path, "limits.shadow = true\n").unwrap();
    let loaded = load(Some(&path)).unwrap();
    assert!(loaded.config.limits.shadow);
    assert_eq!(loaded.config.origin.store, StoreAt::Sqlite(folder.path().join("guildgate.db")));
    assert_eq!(loaded.path.as_deref(), Some(path.as_path()));
}

#[test]
fn the_hash_of_a_configuration_is_that_of_its_values() {
    let hash = |toml: &str, folder: &str| load_str(toml, Path::new(folder), "test").unwrap().config.hash.to_string();
    let defaults = hash("", "");
    assert!(defaults.len() == 12 && defaults.bytes().all(|b| b.is_ascii_hexdigit()), "{defaults}");
    assert_eq!(hash("# a comment\n[limits]\nshadow = false\n[admin]\nlisten = \"127.0.0.1:9180\"\n", "/etc"), defaults);
    let secret = |password: &str| hash(&format!("[origin]\nstore = \"postgres://u:{password}@h/d\""), "");
    assert_eq!(secret("one"), secret("two"), "nobody can guess a secret by it");
    let others = ["[limits]\nshadow = true", "[cache.points]\nttl = \"1s\"", "[origin]\nstore = \"b.db\""];
    let mut hashes = others.map(|toml| hash(toml, "")).to_vec();
    hashes.extend([secret("one"), defaults]);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 5, "{hashes:?}");
}

#[test]
fn a_cluster_is_checked_and_shown_without_its_password() {
    let text = "cluster.redis = \"rediss://me:hunter2@cache.example\"\ncluster.node = \"edge-1\"\ncluster.nodes = 3\n";
    let loaded = loaded(text).unwrap();
    let shown = format!("{}\n{loaded:?}", report(&loaded));
    assert!(shown.contains("rediss://cache.example:6379/0") && !shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("over all nodes") && shown.contains("burst 13 at 20/s / 3"), "{shown}");
    let own = "server.listen = [\"10.0.0.2:80\"]\nserver.tls = { certificate = \"c\", private_key = \"k\" }\n\
               admin.listen = \"\"\nlog.access = \"a.log\"\norigin.store = \"b.db\"\n";
    let other = own.to_owned() + &text.replace("edge-1", "edge-2").replace("cache.", "other.");
    assert_eq!(loaded.config.hash.to_string(), config(&other).hash.to_string(), "nodes differ in these");
    assert_ne!(loaded.config.hash.to_string(), config(&text.replace("nodes = 3", "nodes = 4")).hash.to_string());
    for (bad, path) in [
        ("node = \"a b\"", "cluster.node"),
        ("node = \"\"", "cluster.node"),
        ("node = \"café\"", "cluster.node"),
        ("node = \"a\\nb\"", "cluster.node"),
        ("node = \"a:b\"", "cluster.node"),
        ("prefix = \"\"", "cluster.prefix"),
        ("timeout = \"2s\"", "cluster.timeout"),
        ("lease = \"1s\"", "cluster.lease"),
        ("redis = \"redsi://:hunter2@h\"", "cluster.redis"),
        ("redis = \"env:NOWHERE\"", "cluster.redis"),
    ] {
        let url = if bad.starts_with("redis") { "" } else { "redis = \"redis://127.0.0.1\"\n" };
        let list = super::load_str(&format!("[cluster]\n{url}{bad}\n"), Path::new("/"), "t").unwrap_err().list;
        assert_eq!(list.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), [path], "{bad}");
        assert!(!list[0].message.contains("hunter2"), "{list:?}");
    }
}
