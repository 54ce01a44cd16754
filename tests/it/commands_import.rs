//! Contract section 2: `import`, `export`, and JSON Lines, plain or gzip. What is packed and unpacked is judged by Debian's
//! gzip. What a line may say and how an import applies it is tested beside the store, on both kinds.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::*;

fn guild() -> String {
    format!(r#"{{"guild":"{GUILD}","name":"Night Watch"}}"#)
}

fn member(id: &str, points: &str) -> String {
    format!(r#"{{"guild":"{GUILD}","member":"{id}","name":"Ada","points":{points}}}"#)
}

/// A guild and so many members.
fn many(members: u64) -> String {
    guild() + "\n" + &(1..=members).map(|id| member(&id.to_string(), "1") + "\n").collect::<String>()
}

fn exported(world: &World) -> String {
    world.run(&["export", "-"]).done().stdout
}

/// The four lines that the contract shows.
fn contract_lines() -> String {
    [
        r#"{"guild":"81384788765712384","name":"Night Watch"}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"spam","expires":1790000000}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","review":"9","author":"Bo","rating":5,"text":"Quick and kind"}"#,
    ]
    .map(|line| format!("{line}\n"))
    .concat()
}

#[test]
fn what_is_imported_is_exported_byte_for_byte_and_holds_no_keys() {
    let world = World::plain();
    world.import(&contract_lines()).done();
    world.run(&["key", "create", "--guild", GUILD, "--name", "canary"]).done();
    assert_eq!(exported(&world), contract_lines());
    world.run(&["export", "out.jsonl"]).done();
    assert_eq!(world.text("out.jsonl"), contract_lines());
    // Stdin is a file as any other.
    let other = World::plain();
    let ran = other.run_with_input(&["import", "-"], &contract_lines()).done();
    assert_eq!(ran.stdout, "4 records imported\n");
    assert_eq!(exported(&other), contract_lines());
    an_export_takes_no_stores_place(&world);
    bad_lines_are_named_by_number_and_nothing_is_imported_or_with_partial_the_others(&World::plain());
    what_a_server_does_not_have_in_its_store_is_not_imported();
}

fn what_a_server_does_not_have_in_its_store_is_not_imported() {
    let lines = [guild(), member("8", "2")].join("\n");
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://127.0.0.1:9\"]\n";
    let theirs = "members, warns and reviews are the HTTP origin's (origin.kind = \"http\"); change them there";
    let world = World::new(http);
    world.import(&lines).failed(1).names(&[theirs, "nothing was imported"]);
    assert_eq!(world.run(&["guild", "list", "--json"]).done().list().len(), 0);
    for source in ["source = \"file\"\nfile = \"keys.toml\"", "source = \"origin\""] {
        let world = World::new(&format!("{http}[keys]\n{source}\n"));
        for ran in [world.import(&lines), world.run(&["limits", "reset", "k"])] {
            ran.failed(1).names(&["this configuration has no store"]);
        }
        assert!(!world.path("guildgate.db").exists());
    }
}

fn bad_lines_are_named_by_number_and_nothing_is_imported_or_with_partial_the_others(world: &World) {
    let file = [&*guild(), "not json at all", &member("8", "2")].join("\n");
    let refused = world.import(&file).failed(1);
    refused.names(&["line 2: not JSON", "nothing was imported", "--partial"]);
    assert_eq!(exported(world), "");
    let ran = world.run(&["import", "--partial", "import.jsonl"]).done().names(&["line 2: not JSON"]);
    assert_eq!(ran.stdout, "2 records imported, bad lines left out: 1\n");
    assert_eq!(exported(world), [guild(), member("8", "2"), String::new()].join("\n"));
}

fn an_export_takes_no_stores_place(world: &World) {
    std::os::unix::fs::symlink("guildgate.db", world.path("store.jsonl")).unwrap();
    for store in ["guildgate.db", "store.jsonl"] {
        world.run(&["export", store]).failed(1).names(&[store, "is an SQLite database; name another file"]);
    }
    assert_eq!(exported(world), contract_lines());
}

/// What gzip makes of it.
fn gzip(args: &[&str], input: impl AsRef<[u8]>) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), input).unwrap();
    let input = std::fs::File::open(file.path()).unwrap();
    let ran = Command::new("gzip").args(args).stdin(input).stderr(Stdio::inherit()).output().unwrap();
    assert!(ran.status.success(), "{args:?}");
    ran.stdout
}

#[test]
fn a_file_that_ends_in_gz_is_packed_and_one_that_does_not_is_plain() {
    let world = World::plain();
    world.import(&many(5000)).done();
    for name in ["out.jsonl.gz", "OUT.GZ"] {
        let ran = world.run(&["export", name]).done();
        assert_eq!(ran.stdout, "5001 records exported\n");
        assert!(world.read(name).len() < many(5000).len() / 5);
        assert_eq!(String::from_utf8(gzip(&["-dc"], world.read(name))).unwrap(), many(5000));
        let other = World::plain();
        std::fs::copy(world.path(name), other.path(name)).unwrap();
        assert_eq!(other.run(&["import", name]).done().stdout, "5001 records imported\n");
        assert_eq!(exported(&other), many(5000));
    }
    world.run(&["export", "gz"]).done();
    assert_eq!(world.text("gz"), many(5000));
    assert_eq!(exported(&world), many(5000), "- is never packed");
    a_gzip_file_that_is_not_whole_and_sound_is_refused_and_nothing_of_it_is_taken(&World::plain());
}

fn a_gzip_file_that_is_not_whole_and_sound_is_refused_and_nothing_of_it_is_taken(world: &World) {
    let packed = gzip(&["-c"], many(5000));
    let mut damaged = packed.clone();
    damaged[packed.len() / 2] ^= 0x55;
    let mut sum = packed.clone();
    sum[packed.len() - 6] ^= 1;
    let cut = |bytes: usize| packed[..bytes].to_vec();
    let cases = [
        (cut(packed.len() - 1), "unexpected end of file"),
        ([&*packed, &packed[..packed.len() / 3]].concat(), "incomplete deflate stream"),
        ([&*packed, b"and something else, as long as a header"].concat(), "invalid gzip header"),
        (damaged, "corrupt"),
        (sum, "corrupt"),
    ];
    world.import("").done(); // which makes the store, and says so
    world.run(&["import", "."]).failed(1).names(&[". cannot be read: is a directory"]);
    for (bytes, why) in cases {
        world.write("in.jsonl.gz", bytes);
        let ran = world.run(&["import", "--partial", "in.jsonl.gz"]).failed(1);
        let ran = ran.names(&["in.jsonl.gz cannot be read: ", why, "nothing was imported"]);
        assert_eq!((ran.stderr.lines().count(), &*exported(world)), (1, ""), "{why}: {ran:?}");
    }
}

#[tokio::test]
async fn an_export_is_of_one_moment_and_holds_nobody_up() {
    for kind in [Kind::Builtin, Kind::Postgres] {
        one_is_of_one_moment_and_holds_nobody_up(kind).await;
    }
}

async fn one_is_of_one_moment_and_holds_nobody_up(kind: Kind) {
    let gate =
        TestGateway::on(kind).key("bot").points("7", 0).points("90000", 0).line(many(12_000).trim_end()).start().await;
    let pipe = gate.world().path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut export = Process::start(&mut gate.world().command(&["export", "pipe"]));
    let begun = tokio::task::spawn_blocking(move || {
        let (mut pipe, mut begin) = (File::open(pipe).unwrap(), vec![0; 1000]);
        pipe.read_exact(&mut begin).unwrap();
        (pipe, begin)
    });
    let (mut pipe, mut exported) = begun.await.unwrap();
    // It is midway now, since the rest is more than fits into the pipe and all buffers on the way.
    for member in ["7", "90000"] {
        gate.set_points("bot", member, 9).await.is("Successfully set 'Ada' points to '9'");
    }
    gate.world().import(&member("90001", "1")).done();
    let exported = tokio::task::spawn_blocking(move || {
        pipe.read_to_end(&mut exported).unwrap();
        String::from_utf8(exported).unwrap()
    });
    let exported = exported.await.unwrap();
    assert_eq!(export.exit().await, Some(0), "{}", export.stderr());
    assert!(exported.contains(&member("90000", "0")) && !exported.contains("90001"), "{}", exported.len());
    assert!(!exported.contains("\"points\":9}"), "{}", exported.len());
}
