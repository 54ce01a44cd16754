//! Fuzzes the loader: any text gives a config or faults with their places. A text that was accepted, written in another
//! way (in another order, without its comments), and the report of what is in force give the same config.

use super::*;

fuzz_target!(config, 300, judge);

fn judge(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let env = |name: &str| (name == "STORE").then(|| "elsewhere.db".to_owned());
    let load = |text: &str| load_with(text, Path::new("/etc/gg"), "gateway.toml", &env);
    match load(text) {
        Ok(loaded) => {
            let table: toml::Table = toml::from_str(text).unwrap();
            let written = toml::to_string(&table).unwrap();
            let again =
                load(&written).unwrap_or_else(|faults| panic!("{faults}\nof what was taken before:\n{written}"));
            assert_eq!(again.config, loaded.config, "written as:\n{written}");
            let report = report(&loaded);
            assert!(report.lines().count() > 40, "it prints all that is in force");
            let redis_is_shown_whole = loaded
                .config
                .cluster
                .as_ref()
                .is_none_or(|cluster| cluster.redis.password.is_none() && cluster.redis.user.is_none());
            let is_shown_whole = redis_is_shown_whole
                && match &loaded.config.origin.store {
                    StoreAt::Sqlite(_) => true,
                    StoreAt::Postgres(_) => false, // its password is not shown
                };
            if is_shown_whole {
                let toml = report.split_once("\n\n").unwrap().1.split_once("\nLimits in words:\n").unwrap().0;
                let read = load(toml).unwrap_or_else(|faults| panic!("{faults}\nof the report:\n{toml}")).config;
                assert_eq!(Config { admin: loaded.config.admin.clone(), ..read }, loaded.config, "the report:\n{toml}");
            }
        }
        Err(Problems { list, .. }) => {
            assert!(!list.is_empty() && list.len() <= 1000, "{} faults", list.len());
            assert!(list.is_sorted_by_key(|fault| (fault.line, fault.column)));
            let lines: Vec<&str> = text.split('\n').collect();
            for fault in &list {
                let line = lines.get(fault.line.wrapping_sub(1)).unwrap_or_else(|| panic!("no such line: {fault}"));
                assert!((1..=line.chars().count() + 1).contains(&fault.column), "no such column: {fault}");
                assert!(!fault.message.is_empty(), "{fault}");
                assert!(!fault.to_string().contains(char::is_control), "it may be taken for two: {fault:?}");
            }
        }
    }
}
