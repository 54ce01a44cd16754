//! The commands `guild`, `member`, `warn` and `review` on a store.

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
    _folder: TempDir,
}

impl TestStore {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = StoreAt::Sqlite(folder.path().join("store.db"));
        let store = Store::open(&at, IfMissing::Make).await.unwrap();
        let loaded = config::load_str("", folder.path(), "test").unwrap_or_else(|faults| panic!("{faults}"));
        let records = Records { store, config: Arc::new(loaded.config), clock: Clock::system() };
        TestStore { records, _folder: folder }
    }

    /// Runs a command line, in which `_` stands for a space in a text.
    pub(super) async fn run(&self, line: &str) -> Result<String, CommandError> {
        let mut out = Vec::new();
        self.run_into(&line.replace('_', "\u{a0}"), &mut out).await?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// Runs a command line, in which a no-break space stands for a space in a text.
    pub(super) async fn run_into(&self, line: &str, out: &mut dyn Write) -> Result<(), CommandError> {
        let words = line.split(' ').map(|word| word.replace('\u{a0}', " "));
        let line = CommandLine::try_parse_from(std::iter::once("guildgate".to_owned()).chain(words)).unwrap();
        line.command.run(&self.records, out).await
    }
}

#[tokio::test]
async fn added_records_are_listed_until_they_are_removed() {
    let store = TestStore::new().await;
    assert_eq!(store.run("guild list --json").await.unwrap(), "[]\n");
    assert_eq!(store.run("guild add 81 --name Night_Watch").await.unwrap(), "");
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
    let review = "review add --guild 81 --member 7 --author Bo --rating 5 --text Quick_and_kind";
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
