//! Contract section 2: the store as a whole. `store backup` while the server writes, `store verify` on
//! what is good, damaged, foreign, old and new.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection as Sqlite;

use crate::support::*;

/// A world whose store holds a guild, a member, a warn and a review.
fn world() -> World {
    let world = World::plain();
    let lines = [
        format!(r#"{{"guild":"{GUILD}","name":"Night Watch"}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","name":"Ada","points":3}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","warn":"1","author":"Mod","reason":"spam","expires":4000000000}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","review":"9","author":"Bo","rating":5,"text":"kind"}}"#),
    ];
    world.import(&lines.join("\n")).done();
    world
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The points of a member in a store's file.
fn points(store: &Path, member: i64) -> i64 {
    let sql = "SELECT coalesce(max(points), 0) FROM member WHERE member = ?1";
    Sqlite::open(store).unwrap().query_row(sql, [member], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_busy_server_is_of_one_moment_and_can_be_served() {
    let gate = Arc::new(TestGateway::builder().key("bot").points("7", 0).start().await);
    let writer = BusyWriter::start(&gate, |gate, which, amount| {
        gate.request("setPoints", "bot", &format!("memberID={}&amount={amount}", 7 + which))
    });
    let backup = gate.world().path("backup.db");
    let mut last = 0;
    for _ in 0..5 {
        let ran = gate.run(&["store", "backup", text(&backup)]).done();
        assert!(ran.stdout.contains(" bytes written to "), "{ran:#?}");
        assert!(gate.run(&["store", "verify", text(&backup)]).done().stdout.ends_with("nothing is wrong\n"));
        last = BusyWriter::is_one_moment((points(&backup, 7), points(&backup, 8)), last);
    }
    writer.end(last).await;
    assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);

    let restored = World::plain();
    std::fs::copy(&backup, restored.path("guildgate.db")).unwrap();
    let mut other = restored.serve(&[]);
    let mut connection = Connection::to(other.ready().await).await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    connection.ask(&request).await.is(&last.to_string());
}

#[test]
fn a_backup_is_made_whole_or_not_at_all_and_never_over_a_store_in_use() {
    let world = world();
    let (store, other) = (world.path("guildgate.db"), world.path("other.db"));
    world.run(&["store", "backup", text(&store)]).failed(1).names(&["guildgate.db", "is the store itself"]);
    world.run(&["store", "backup", "nowhere/b.db"]).failed(1).names(&["nowhere/b.db cannot be written"]);
    world.run(&["store", "backup", "."]).failed(1).names(&["is not a file"]);

    for end in ["-wal", "-shm", "-journal"] {
        let beside = format!("guildgate.db{end}");
        world.run(&["store", "backup", &beside]).failed(1).names(&[&beside, "SQLite keeps for itself"]);
    }
    world.run(&["store", "backup", "gateway.toml"]).failed(1).names(&["gateway.toml is there, and is no backup"]);

    std::fs::copy(&store, &other).unwrap();
    let open = Sqlite::open(&other).unwrap();
    open.execute("UPDATE member SET points = 4", []).unwrap();
    world.run(&["store", "backup", text(&other)]).failed(1).names(&["other.db", "is a store in use"]);
    drop(open);
    assert_eq!(points(&other, 7), 4, "it was left alone");
    world.run(&["store", "verify", "other.db"]).done(); // leaves nothing behind that looks like use
    world.run(&["store", "backup", text(&other)]).done();
    assert_eq!(points(&other, 7), 3);

    let parts = world.files().into_iter().filter(|(path, _)| text(path).contains(".part"));
    assert_eq!(parts.count(), 0);
}

#[test]
fn a_backup_through_a_link_is_written_where_it_leads() {
    let world = world();
    std::fs::create_dir(world.path("there")).unwrap();
    std::os::unix::fs::symlink("there/b.db", world.path("link.db")).unwrap();
    for _ in 0..2 {
        world.run(&["store", "backup", "link.db"]).done();
        assert!(world.path("link.db").is_symlink());
        assert_eq!(points(&world.path("there/b.db"), 7), 3);
    }
    // A store in use is one by whatever name.
    let open = Sqlite::open(world.path("there/b.db")).unwrap();
    open.execute("UPDATE member SET points = 4", []).unwrap();
    world.run(&["store", "backup", "link.db"]).failed(1).names(&["is a store in use"]);
    drop(open);
    std::fs::remove_file(world.path("link.db")).unwrap();
    std::os::unix::fs::symlink("guildgate.db", world.path("link.db")).unwrap();
    world.run(&["store", "backup", "link.db"]).failed(1).names(&["is the store itself"]);
}

#[tokio::test]
async fn a_backup_needs_room_for_itself_and_for_nothing_besides_it() {
    let mut world = world();
    std::fs::create_dir(world.path("target")).unwrap();
    world.run(&["store", "backup", "elsewhere.db"]).done();
    let kib = std::fs::metadata(world.path("elsewhere.db")).unwrap().len() / 1024;
    // A journal's first page fits in as well, and not the 32 KiB that SQLite shares between those that use a store.
    world.put_on_small_disk("target", kib + 12).await;
    for _ in 0..2 {
        world.run_there(&["store", "backup", "target/b.db"]).done();
        assert!(world.run_there(&["store", "verify", "target/b.db"]).done().stdout.ends_with("nothing is wrong\n"));
        std::fs::remove_file(world.disk().path().join("b.db")).unwrap(); // else there must be room for two
    }
    world.disk().fill("others");
    world.run_there(&["store", "backup", "target/b.db"]).failed(1).names(&["target/b.db cannot be written", "full"]);
    assert_eq!(std::fs::read_dir(world.disk().path()).unwrap().count(), 1);
}

#[test]
fn verify_finds_nothing_wrong_with_a_good_store_and_counts_what_is_in_it() {
    let world = world();
    let said = world.run(&["store", "verify"]).done().stdout;
    for line in ["guild: 1\n", "member: 1\n", "warn: 1\n", "review: 1\n", "key: 0\n", "nothing is wrong\n"] {
        assert!(said.contains(line), "{said}");
    }
}

#[test]
fn verify_names_what_another_program_did() {
    let world = world();
    let store = Sqlite::open(world.path("guildgate.db")).unwrap();
    store.execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM member").unwrap();
    store.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE review SET rating = 9").unwrap();
    drop(store);
    let ran = world.run(&["store", "verify"]).failed(1).names(&["3 things are wrong"]);
    for line in [
        "wrong: CHECK constraint failed in review\n",
        "wrong: table review: 1 rows refer to rows of table member that are missing\n",
        "wrong: table warn: 1 rows refer to rows of table member that are missing\n",
        "repair: stop the server and put a backup in its place (`guildgate store restore FILE`)\n",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
    world.run(&["member", "set", "--guild", GUILD, "--member", "7"]).done();
    Sqlite::open(world.path("guildgate.db")).unwrap().execute("UPDATE review SET rating = 5", []).unwrap();
    world.run(&["store", "verify"]).done();
}

#[test]
fn verify_finds_damage_and_refuses_what_is_no_store_by_name() {
    let world = world();
    let good = world.read("guildgate.db");
    let damaged: Vec<u8> = good.iter().enumerate().map(|(at, byte)| if at >= 4096 { 0xa5 } else { *byte }).collect();
    world.write("damaged.db", damaged);
    world.write("cut.db", &good[..good.len() - 1000]);
    world.write("foreign.txt", "not a database, but as long as a page header: ".repeat(10));
    world.write("empty.db", "");
    Sqlite::open(world.path("other.db")).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let scribbled = good.len() - 4096;
    let scribbled: Vec<u8> = good.iter().enumerate().map(|(at, b)| if at >= scribbled { 0xa5 } else { *b }).collect();
    world.write("scribbled.db", scribbled);
    let verify = |file: &str| world.run(&["store", "verify", file]).failed(1);
    for file in ["damaged.db", "cut.db", "scribbled.db"] {
        let Ran { stdout, stderr, .. } = verify(file);
        let said = format!("{stdout}{stderr}");
        assert!(said.contains("take another one") && !said.contains("store restore"), "{file}: {said}");
        let said = world.run(&["store", "restore", file]).failed(1).names(&["nothing was changed", "take another one"]);
        assert!(!said.stderr.contains("store restore"), "{file}: {said:?}");
    }
    // Of the store itself it says how to mend it, by whatever name it is named.
    world.write("guildgate.db", world.read("cut.db"));
    for file in [&["./guildgate.db"][..], &[]] {
        let Ran { stdout, stderr, .. } = world.run(&[&["store", "verify"], file].concat()).failed(1);
        assert!(format!("{stdout}{stderr}").contains("put a backup in its place"), "{stdout}{stderr}");
    }
    world.write("guildgate.db", &good);
    verify("foreign.txt").names(&["foreign.txt is not an SQLite file"]);
    verify("empty.db").names(&["empty.db is empty"]);
    verify("other.db").names(&["other.db is an SQLite database of another program"]);
    verify("missing.db").names(&["missing.db"]);
    let said = verify("postgres://u:hunter2@localhost/d");
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
    // What is damaged does not take a good backup's place.
    world.run(&["store", "backup", "good.db"]).done();
    let before = world.read("good.db");
    std::fs::copy(world.path("scribbled.db"), world.path("guildgate.db")).unwrap();
    world.run(&["store", "backup", "good.db"]).failed(1).names(&["store verify"]);
    assert_eq!(world.read("good.db"), before);
    // Looking changed nothing, and a backup of what is no store is not made.
    assert_eq!(world.read("empty.db"), b"");
    let config = "[origin]\nstore = \"other.db\"\n[admin]\nlisten = \"\"\n";
    world.write("gateway.toml", config);
    world.run(&["store", "backup", "b.db"]).failed(1).names(&["another program"]);
    assert!(!world.path("b.db").exists());
}

#[test]
fn an_older_store_is_verified_and_backed_up_as_it_is() {
    let world = World::plain();
    let old = include_bytes!("../fixtures/store-v1.db");
    world.write("guildgate.db", old);
    let said = world.run(&["store", "verify"]).done().stdout;
    assert!(said.contains("schema 1, brought up to"), "{said}");
    world.run(&["store", "backup", "b.db"]).done();
    assert!(world.run(&["store", "verify", "b.db"]).done().stdout.contains("schema 1"));
    assert_eq!(world.read("guildgate.db"), old);
}
