//! The config file from the outside: text in, config or faults out.

mod cluster;
mod faults;
mod report;
mod restart;
mod shipped_file;
mod upstreams;

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::wire::Operation;

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
    warnings.into_iter().map(|warning| warning.setting).collect()
}

fn tier(name: &str, main: Rate, write: Option<Rate>) -> Tier {
    Tier { write, ..Tier::new(name, main) }
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
    assert_eq!(config.server.max_connections_per_address, 1000);
    assert_eq!(config.server.max_body, 4096);
    assert_eq!(config.server.health_path, "/healthz");
    assert_eq!(
        config.origin,
        Origin { kind: OriginKind::Builtin, store: StoreAt::Sqlite("/etc/gg/guildgate.db".into()) }
    );
    let standard = tier("standard", rate(50_000_000, 40), Some(rate(200_000_000, 10)));
    assert_eq!(*config.limits.default_tier, standard);
    assert_eq!(config.limits.tiers.len(), 1);
    assert_eq!(config.limits.strangers, rate(1_000_000_000, 30));
    assert_eq!(config.cache.of(Operation::GetPoints).stale_if_error, Duration::from_secs(600));
    assert_eq!(config.cache.of(Operation::GetWarns).stale_if_error, Duration::ZERO);
    assert_eq!(config.cache.of(Operation::GetReviews).ttl, Duration::from_secs(300));
    let log = config.log;
    assert_eq!((log.level, log.is_json(), log.access), (LogLevel::Info, false, Access::Stderr));
    assert_eq!((log.decisions, log.audit, log.otlp), (None, None, None));
}

#[test]
fn zero_and_empty_values_turn_settings_off() {
    let off =
        "server = { max_connections_per_address = 0, health_path = \"\" }\nlog.access = \"\"\nanswers.headers = []\n";
    let config = config(off);
    assert_eq!(config.server.max_connections_per_address, 0);
    assert!(!config.server.is_health(b"GET", b""));
    assert_eq!(config.log.access, Access::None);
    for (access, names) in [
        (Access::Stdout, ["stdout", "-", "/dev/stdout", "/proc/self/fd/1"]),
        (Access::Stderr, ["stderr", "stderr", "/dev/stderr", "/proc/self/fd/2"]),
    ] {
        for typed in names {
            assert_eq!(self::config(&format!("log.access = \"{typed}\"")).log.access, access, "{typed}");
        }
    }
    assert_eq!(config.answers.headers, []);
}

#[test]
fn a_store_in_postgresql_is_named_by_a_url_whose_password_is_not_shown() {
    for text in ["origin.store = \"postgres://me:hunter2@host/db\"", "origin.store = \"env:PG\""] {
        let loaded = loaded(text).unwrap();
        let shown = format!("{}\n{loaded:?}", report(&loaded));
        assert!(shown.contains("postgres://me@host/db") && !shown.contains("hunter2"), "{shown}");
        assert_eq!(warnings(text), ["origin.store"], "its certificate is not verified");
    }
    for store in [
        "host=127.0.0.1 user=me password=hunter2 dbname=db",
        "password=hunter2",
        "postgres:/me:hunter2@host/db",
        "postgresql//me:hunter2@host/db",
        "me:hunter2@host/db",
        "me:hunter2@host",
    ] {
        let messages = faults(&format!("origin.store = \"{store}\""));
        let why = match store {
            _ if store.starts_with("me:") => "must be the path of an SQLite file, or a postgres:// URL",
            _ => "is no usable postgres:// URL",
        };
        assert!(messages[0].contains(why), "{messages:?}");
        assert!(!messages[0].contains("hunter2"), "{messages:?}");
    }
    assert_eq!(
        config("origin.store = \"postgres/g.db\"").origin.store,
        StoreAt::Sqlite("/etc/gg/postgres/g.db".into())
    );
    let messages = faults("origin.store = \"postgres://me:hun@ter2@host:x/db\"");
    assert!(messages.len() == 1 && messages[0].contains("%40") && !messages[0].contains("ter2"), "{messages:?}");
}

#[test]
fn a_setting_without_protection_that_has_no_effect_gets_a_warning() {
    assert_eq!(warnings("cluster.node = \"edge-1\""), ["cluster"]);
    assert_eq!(warnings("server.trusted_proxies = [\"10.0.0.1\", \"::/0\"]"), ["server.trusted_proxies"]);
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
    let log = |text: &str| config(&format!("[log]\n{text}")).log;
    let default = log("decisions = \"d.log\"");
    assert_eq!((default.decisions, default.decisions_max_size), (Some("/etc/gg/d.log".into()), 64 << 20));
    assert_eq!(log("decisions = \"d.log\"\ndecisions_max_size = \"1MiB\"").decisions_max_size, 1 << 20);
    assert_eq!(log("decisions_max_size = \"2GiB\"").decisions, None);
    let fault = "2:22: log.decisions_max_size: must be from 1MiB to 1048576GiB";
    assert_eq!(faults("[log]\ndecisions_max_size = \"1023KiB\""), [fault]);
    for (setting, file) in [
        ("access", "guildgate.db"),
        ("decisions", "/etc/gg/guildgate.db"),
        ("audit", "admin.token"),
        ("audit", "keys.toml"),
        ("access", "gateway.toml"),
    ] {
        let found =
            faults(&format!("keys = {{ source = \"file\", file = \"keys.toml\" }}\nlog.{setting} = \"{file}\""));
        assert!(found.len() == 1 && found[0].contains("has another use"), "{file}: {found:?}");
    }
    let files = ["log.access = \"a\"", "log.decisions = \"a\"", "log.audit = \"/etc/gg/a\""];
    for pair in [[0, 1], [0, 2], [1, 2]].map(|pair| pair.map(|n| files[n]).join("\n")) {
        let found = faults(&pair);
        assert!(
            found.len() == 1 && found[0].starts_with("2:") && found[0].contains("has another use"),
            "{pair}: {found:?}"
        );
    }
    assert_eq!(faults("log.decisions = \"a\"\nlog.audit = \"a.1\"").len(), 1, "the older file of the record");
    let messages = report(&loaded("log.decisions = \"d.log\"").unwrap());
    assert!(messages.contains("decisions = \"/etc/gg/d.log\"\ndecisions_max_size = \"64MiB\"\n"), "{messages}");
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
    let relative = load_str("admin.token = \"file:t\"", Path::new("conf"), "").unwrap().config;
    assert!(relative.admin.token.source() == secret::Source::File("conf/t"), "only once");
    assert!(faults("origin.store = \"env:NOT_THERE\"")[0].ends_with("`NOT_THERE` is not set or not UTF-8"));
    assert!(faults("origin.store = \"${STORE}\"")[0].contains("write \"env:NAME\""));
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
}

#[test]
fn the_store_is_opened_where_something_is_kept_in_it() {
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://a\"]\n[keys]\nsource = \"origin\"\n";
    assert!(!config(http).needs_store());
    assert!(config(&format!("{http}[limits.tiers.standard]\ndaily = 5\n")).needs_store());
    assert!(config("").needs_store());
}

#[test]
fn the_admin_listener_is_kept_from_others_who_could_read_its_token() {
    let open = "admin.listen = \"0.0.0.0:9180\"\n";
    assert!(faults(open)[0].contains("set `admin.tls`, or `admin.plaintext = true`"), "{:?}", faults(open));
    for more in ["admin.plaintext = true", "admin.tls = { certificate = \"c\", private_key = \"k\" }"] {
        assert_eq!(faults(&format!("{open}{more}")), Vec::<String>::new());
    }
    for taken in ["server.listen = [\"127.0.0.1:9180\"]", "server.listen = [\"0.0.0.0:9180\"]"] {
        assert!(faults(taken)[0].contains("is an address of `server.listen`"), "{:?}", faults(taken));
    }
    let covered = "server.listen = [\"127.0.0.1:80\", \"[::]:80\", \"0.0.0.0:80\", \"127.0.0.1:81\"]";
    assert_eq!(
        faults(covered),
        ["1:18: server.listen[0]: 0.0.0.0:80 takes every address of this port; leave one of them out"]
    );
    assert!(faults("admin.read_token = \"env:NO_SUCH\"")[0].contains("NO_SUCH"));
    assert_eq!(faults("admin = { listen = \"\", read_token = \"env:NO_SUCH\" }"), Vec::<String>::new());
    for path in ["/run/secrets/admin_token", "./admin-token-of-mine", "~/guildgate/token", "bot.token"] {
        let found = faults(&format!("admin.token = \"{path}\""));
        assert!(found[0].contains("write \"file:\" before it") && !found[0].contains(path), "{found:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_reported_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let said = |path: &Path| load(Some(path)).unwrap_err().to_string();
    assert!(said(&path).starts_with("there is no config file"));
    assert!(said(folder.path()).contains("directory"), "{}", said(folder.path()));
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(said(&path).contains("cannot be read"), "a link to nowhere is not taken for no file");
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"# fine\n\"\xff\" = 1\n").unwrap();
    assert!(said(&path).ends_with("is not UTF-8 text: invalid utf-8 sequence of 1 bytes from index 8"));
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(said(&path).contains("is larger than 1 MiB"));
    fs::write(&path, "[limts]\n").unwrap();
    assert_eq!(said(&path), format!("{}:1:2: limts: unknown name `limts`; did you mean `limits`?", path.display()));
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
