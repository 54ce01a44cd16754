//! The commands `guild`, `key`, `member`, `warn` and `review` on a store.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::config::StoreAt;
use crate::store::Store;

#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: RecordCommand,
}

/// An empty store, and the commands run on it.
pub(super) struct TestStore {
    pub(super) records: Records,
    folder: TempDir,
}

impl TestStore {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = StoreAt::Sqlite(folder.path().join("store.db"));
        let store = Store::open(&at, IfMissing::Make).await.unwrap();
        let records = Records { store, config: config("", folder.path()), clock: Clock::system() };
        TestStore { records, folder }
    }

    /// A store with a guild, and a tier `gold`.
    async fn of_guild() -> Self {
        let mut store = TestStore::new().await;
        store.records.config = config("limits.tiers.standard = {}\nlimits.tiers.gold = {}\n", store.folder.path());
        store.run("guild add 81 --name Night~Watch").await.unwrap();
        store
    }

    /// Runs a command line, in which `~` stands for a space in a text.
    pub(super) async fn run(&self, line: &str) -> Result<String, CommandError> {
        let mut out = Vec::new();
        self.run_into(line, &mut out).await?;
        Ok(String::from_utf8(out).unwrap())
    }

    pub(super) async fn run_into(&self, line: &str, out: &mut dyn Write) -> Result<(), CommandError> {
        let words = std::iter::once("guildgate".to_owned()).chain(line.split(' ').map(|word| word.replace('~', " ")));
        let line = CommandLine::try_parse_from(words).map_err(|e| CommandError::Unusable(e.to_string()))?;
        line.command.run(&self.records, out).await
    }

    /// The JSON that a command line prints.
    async fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(line).await.unwrap_or_else(|e| panic!("{line}: {e}"))).unwrap()
    }

    /// A command line that fails, with this exit code and these words.
    async fn fails(&self, line: &str, code: u8, words: &[&str]) {
        let error = self.run(line).await.expect_err(line);
        assert_eq!(error.code(), code, "{line}: {error}");
        let message = error.to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{line}: {word} is not in {message}"));
    }
}

fn config(toml: &str, folder: &Path) -> Arc<Config> {
    Arc::new(config::load_str(toml, folder, "test").unwrap_or_else(|faults| panic!("{faults}")).config)
}

#[tokio::test]
async fn added_records_are_listed_until_they_are_removed() {
    let store = TestStore::new().await;
    assert_eq!(store.run("guild list --json").await.unwrap(), "[]\n");
    assert_eq!(store.run("guild add 81 --name Night~Watch").await.unwrap(), "");
    store.run("guild leave 81").await.unwrap();
    assert_eq!(store.run("guild list").await.unwrap(), "ID  LEFT  NAME\n81  yes   Night Watch\n");
    store.run("guild return 81").await.unwrap();
    assert_eq!(
        store.run("guild list --json").await.unwrap(),
        "[{\"id\":\"81\",\"name\":\"Night Watch\",\"left\":false}]\n"
    );

    store.run("member set --guild 81 --member 007 --name Ada --points -5").await.unwrap();
    store.run("member set --guild 81 --member 8").await.unwrap();
    assert_eq!(
        store.run("member list --guild 81").await.unwrap(),
        "MEMBER  POINTS  NAME\n7       -5      Ada\n8       0       8\n"
    );
    assert_eq!(
        store.run("member list --guild 81 --json").await.unwrap(),
        "[{\"member\":\"7\",\"name\":\"Ada\",\"points\":-5},\n{\"member\":\"8\",\"name\":\"8\",\"points\":0}]\n"
    );

    let warn = "warn add --guild 81 --member 7 --author Mod --reason spam --expires 10000000000";
    assert_eq!(store.run(warn).await.unwrap(), "1\n");
    assert_eq!(store.run(warn).await.unwrap(), "2\n");
    store.run("warn remove --guild 81 1").await.unwrap();
    assert_eq!(
        store.run("warn list --guild 81").await.unwrap(),
        "MEMBER  ID  AUTHOR  EXPIRES               REASON\n7       2   Mod     2286-11-20T17:46:40Z  spam\n"
    );
    let review = "review add --guild 81 --member 7 --author Bo --rating 5 --text Quick~and~kind";
    assert_eq!(store.run(review).await.unwrap(), "1\n");
    assert_eq!(
        store.run("review list --guild 81 --member 7 --json").await.unwrap(),
        "[{\"id\":\"1\",\"member\":\"7\",\"author\":\"Bo\",\"rating\":5,\"text\":\"Quick and kind\"}]\n"
    );
    assert_eq!(store.run("review list --guild 81 --member 8 --json").await.unwrap(), "[]\n");
    store.run("review remove --guild 81 1").await.unwrap();
    store.run("member remove --guild 81 --member 7").await.unwrap();
    assert_eq!(store.run("member list --guild 81").await.unwrap(), "MEMBER  POINTS  NAME\n8       0       8\n");
}

#[tokio::test]
async fn what_is_no_guild_member_or_note_is_refused_and_changes_nothing() {
    let store = TestStore::of_guild().await;
    let before = store.json("guild list --json").await;
    let note = "--guild 81 --member 7 --author Mod";
    let long = "9".repeat(65);
    for (line, code, words) in [
        ("guild add  --name N", 2, &[][..]),
        ("guild add two~words --name N", 2, &[]),
        (&format!("guild add {long} --name N"), 2, &[]),
        ("guild leave 404404", 1, &["404404"]),
        ("guild rename 404404 --name N", 1, &["404404"]),
        ("guild rename 81", 2, &["--name"]),
        ("guild remove 81", 1, &["Night Watch", "--yes"]),
        ("guild remove 404404", 1, &["not in the store; `guildgate guild list`"]),
        ("guild remove 404404 --yes", 1, &["not in the store; `guildgate guild list`"]),
        ("member set --guild 404404 --member 7 --points 1", 1, &["404404"]),
        ("member set --guild 81 --member=-7 --points 1", 2, &[]),
        ("member set --guild 81 --member 9223372036854775808 --points 1", 2, &[]),
        ("member set --guild 81 --member 7 --points many", 2, &["whole number"]),
        ("member remove --guild 81 --member 7", 1, &["no member 7"]),
        ("member show --guild 81 --member 8", 1, &["no member 8", "member list"]),
        (&format!("warn add {note} --reason spam --expires some~day"), 2, &["90d", "2026-12-24", "Unix seconds"]),
        (&format!("warn add {note} --reason spam --expires 2020-01-01"), 1, &["not in the future"]),
        (&format!("review add {note} --text kind --rating 6"), 2, &[]),
        (&format!("review add {note} --text kind --rating 4.5"), 2, &[]),
        ("warn remove --guild 81 17", 1, &["no warn 17"]),
        ("warn show --guild 81 2", 1, &["no warn 2", "list"]),
        ("warn show --guild 404404 1", 1, &["404404"]),
        ("review remove --guild 81 x", 2, &["an id is a whole number"]),
    ] {
        store.fails(line, code, words).await;
    }
    assert_eq!(store.json("guild list --json").await, before);
    for list in ["member", "warn", "review"] {
        assert_eq!(store.json(&format!("{list} list --guild 81 --json")).await, json!([]));
    }
}

#[test]
fn what_a_server_does_not_have_in_its_store_is_not_changed_there() {
    let members = "members, warns and reviews are the HTTP origin's";
    let guild = "guild add 81 --name N";
    let of_members = [
        "member set --guild 81 --member 7 --points 5",
        "member show --guild 81 --member 7",
        "warn add --guild 81 --member 7 --author A --reason R --expires 90d",
        "review add --guild 81 --member 7 --author A --rating 5 --text T",
    ];
    let keys = ["key create --guild 81", "key list"];
    let http = "origin = { kind = \"http\", upstreams = [\"http://a\"] }\n";
    let in_file = "keys = { source = \"file\", file = \"keys.toml\" }\n";
    let refused = |toml: &str, line: &str| {
        let line = CommandLine::try_parse_from(std::iter::once("guildgate").chain(line.split(' '))).unwrap();
        line.command.must_be_in_store(&config(toml, Path::new("/"))).err().unwrap_or_default()
    };
    for (toml, of_guild, of_member, of_key) in [
        (http.to_owned(), "", members, ""),
        (format!("{http}{in_file}"), "this configuration has no store", members, "the keys are in the key file"),
        (
            format!("{http}keys.source = \"origin\""),
            "this configuration has no store",
            members,
            "only the origin knows",
        ),
        (in_file.to_owned(), "", "", "the keys are in the key file"),
    ] {
        let lines = of_members.map(|line| (line, of_member)).into_iter().chain(keys.map(|line| (line, of_key)));
        for (line, words) in lines.chain([(guild, of_guild)]) {
            let said = refused(&toml, line);
            assert!(said.starts_with(words) && said.is_empty() == words.is_empty(), "{toml}{line}: {said:?}");
        }
    }
}

#[tokio::test]
async fn a_guild_is_renamed_as_an_import_does_it_and_removed_if_it_is_meant() {
    let store = TestStore::of_guild().await;
    store.run("guild rename 81 --name Day\nWatch\u{7}").await.unwrap();
    assert_eq!(store.json("guild list --json").await, json!([{"id": "81", "name": "Day Watch ", "left": false}]));
    store.run("guild remove 81 --yes").await.unwrap();
    assert_eq!(store.json("guild list --json").await, json!([]));
}

#[tokio::test]
async fn one_member_warn_or_review_is_shown_to_people_or_as_an_object() {
    let store = TestStore::of_guild().await;
    store.run("member set --guild 81 --member 007 --name Ada --points -5").await.unwrap();
    let of = "--guild 81 --member 7 --author Mod";
    store.run(&format!("warn add {of} --reason spam --expires 4133289600")).await.unwrap();
    store.run(&format!("review add {of} --rating 5 --text kind")).await.unwrap();
    for (show, list, told) in [
        ("member show --guild 81 --member 7", "member", &["7", "Ada", "-5"][..]),
        ("warn show --guild 81 1", "warn", &["7", "Mod", "spam", "2100-12-24T00:00:00Z"]),
        ("review show --guild 81 1", "review", &["7", "Mod", "5", "kind"]),
    ] {
        let shown = store.run(show).await.unwrap();
        assert!(told.iter().all(|word| shown.contains(word)), "{shown}");
        let object = store.json(&format!("{show} --json")).await;
        assert_eq!(store.json(&format!("{list} list --guild 81 --json")).await, json!([object]));
    }
}

#[tokio::test]
async fn a_key_is_printed_once_and_listed_with_everything_but_itself() {
    let store = TestStore::of_guild().await;
    let line = "key create --guild 81 --name Ada's~bot --tier gold --scope read --expires 2100-12-24 --json";
    let mut made = store.json(line).await;
    let secret = made.as_object_mut().unwrap().remove("key").unwrap().as_str().unwrap().to_owned();
    assert_eq!((secret.len(), &made["expires"]), (52, &json!(4_133_289_600_i64)));
    assert_eq!(store.json("key list --json").await, json!([made]));
    let names: Vec<&String> = made.as_object().unwrap().keys().collect();
    assert_eq!(names, ["created", "expires", "guild", "id", "last_used", "name", "previous_until", "scope", "tier"]);
    assert_eq!((&made["tier"], &made["scope"], &made["guild"]), (&json!("gold"), &json!("read"), &json!("81")));
    let id = made["id"].as_str().unwrap();
    let (list, show) = (store.run("key list").await.unwrap(), store.run(&format!("key show {id}")).await.unwrap());
    assert!(list.starts_with("ID ") && list.contains("  2100-12-24T00:00:00Z  never "), "{list}");
    assert!(list.contains(id) && show.contains("Ada's bot"), "{list}{show}");
    assert!(![list, show, made.to_string()].iter().any(|text| text.contains(&secret[3..])));

    store.run("guild add 999 --name Other").await.unwrap();
    store.run("guild add 1000 --name Empty").await.unwrap();
    let there = store.run("key create --guild 999 --name there").await.unwrap();
    assert_eq!((there.len(), there.lines().count()), (53, 1), "the key stands alone");
    let of_there = store.json("key list --guild 999 --json").await;
    assert_eq!((of_there.as_array().unwrap().len(), &of_there[0]["name"]), (1, &json!("there")));
    assert_eq!((&of_there[0]["scope"], &of_there[0]["expires"]), (&json!("write"), &Value::Null));
    assert_eq!(store.json("key list --guild 1000 --json").await, json!([]));
    store.run(&format!("key set {id} --expires 9999-12-31")).await.unwrap();
    assert!(store.run("key list").await.unwrap().contains(" 9999-12-31T00:00:00Z "));
    let before = store.json("key list --json").await;
    for (line, code, words) in [
        ("key list --guild 404404", 1, &["404404", "guild list"][..]),
        ("key create --guild 404404", 1, &["404404"]),
        ("key create --guild 81 --tier golf", 1, &["golf"]),
        ("key create --guild 81 --scope admin", 2, &[]),
        ("key create --guild 81 --expires soon", 2, &[]),
        ("key create --guild 81 --expires 10000-01-01", 2, &["the latest is 9999-12-31T23:59:59Z"]),
        ("key create --guild 81 --expires 253402300800", 1, &["the latest end is 9999-12-31T23:59:59Z"]),
        ("key create --guild 81 --expires 0s", 1, &["not in the future"]),
        (&format!("key set {id} --expires 2020-01-01"), 1, &["not in the future"]),
    ] {
        store.fails(line, code, words).await;
    }
    assert_eq!(store.json("key list --json").await, before);
}

#[tokio::test]
async fn a_key_is_found_by_its_secret_with_what_is_wrong_with_it() {
    let mut store = TestStore::of_guild().await;
    let made = store.json("key create --guild 81 --tier gold --scope read --json").await;
    let (id, secret) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let find = async |store: &TestStore, key: &str, json: bool| {
        let (mut out, config) = (Vec::new(), &store.records.config);
        let json = output::JsonArg { json };
        keys::find(config, Some(&store.records.store), &mut key.as_bytes(), json, &mut out).await?;
        Ok::<_, CommandError>(String::from_utf8(out).unwrap())
    };
    let found = find(&store, &format!("{secret}\n"), false).await.unwrap();
    assert!([id, "81", "gold", "read", "wrong    nothing"].iter().all(|part| found.contains(part)), "{found}");
    assert!(!found.contains(&secret[3..]), "{found}");
    let json: Value = serde_json::from_str(&find(&store, secret, true).await.unwrap()).unwrap();
    assert_eq!(json["id"], id);
    store.run("guild leave 81").await.unwrap();
    let left = find(&store, secret, false).await.unwrap();
    assert!(left.contains("wrong    the bot has left guild 81 (03)"), "{left}");
    store.run("guild return 81").await.unwrap();
    store.run(&format!("key rotate {id}")).await.unwrap();
    assert!(find(&store, secret, false).await.unwrap().contains("expires  2"), "the secret before a rotation ends");
    store.run(&format!("key rotate {id}")).await.unwrap();
    let unknown = find(&store, secret, false).await.unwrap_err().to_string();
    assert!(unknown.contains("no key has this secret") && unknown.contains("no trace is kept"), "{unknown}");
    let last = if secret.ends_with('x') { 'y' } else { 'x' };
    let mistyped = find(&store, &format!("{}{last}", &secret[..51]), false).await.unwrap_err().to_string();
    assert!(mistyped.contains("mistyped"), "{mistyped}");
    // The keys of a file, whose guilds the store has.
    store.records.config = config("keys = { source = \"file\", file = \"keys.toml\" }", store.folder.path());
    let digest = crate::model::Digest::of(secret.as_bytes());
    for (more, wrong) in [
        ("guild = \"81\"\n", "nothing"),
        ("guild = \"81\"\nexpires = 1700000000\n", "it expired at 2023-11-14T22:13:20Z"),
        ("guild = \"404\"\n", "guild 404 is not in the store (03)"),
    ] {
        let entry = format!("[[key]]\nid = \"f\"\ndigest = \"{digest}\"\n{more}");
        std::fs::write(store.folder.path().join("keys.toml"), entry).unwrap();
        let found = find(&store, secret, false).await.unwrap();
        assert!(found.starts_with("id       f\n") && found.contains(&format!("wrong    {wrong}")), "{found}");
    }
}
