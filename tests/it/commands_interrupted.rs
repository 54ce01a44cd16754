//! `import`, `export` and `store backup` that are ended by a signal or by kill -9.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rusqlite::Connection as Sqlite;

use crate::support::postgres::connect;
use crate::support::*;

/// The signals that end a command: Ctrl-C, a request to stop, and a terminal that was closed.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Runs a command with SIGHUP's default action, since the tests may run with SIGHUP ignored.
const WITH_HUP: [&str; 2] = ["env", "--default-signal=HUP"];

/// Runs a command with SIGHUP ignored, as nohup does.
const NOHUP: [&str; 3] = ["sh", "-c", "trap '' HUP && exec \"$0\" \"$@\""];

/// How often a command is started until a signal reaches it before it is done.
const TRIES: usize = 50;

/// A world whose store is some megabytes long.
fn world() -> World {
    let world = World::plain();
    let member = |id: u64| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..=60_000).map(member).collect::<String>())).done();
    world
}

/// The temporary files of the world: partly written or staged.
fn temp_files(world: &World) -> Vec<String> {
    temp_files_in(&world.path("."))
}

fn temp_files_in(folder: &Path) -> Vec<String> {
    // Only the names are read, since the files may be removed meanwhile.
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.contains(".part") || name.contains(".import-")).collect()
}

/// Starts the command and sends it this signal while it has a temporary file. Checks that its last argument, the file
/// that it should write, is unchanged.
async fn interrupt_midway(world: &World, args: &[&str], signal: Signal) -> Process {
    let target = world.path(args[args.len() - 1]);
    for _ in 0..TRIES {
        let before = std::fs::read(&target).ok();
        let mut process = Process::start(&mut world.command_by(&WITH_HUP, args));
        let end = std::time::Instant::now() + PATIENCE;
        while temp_files(world).is_empty() && !process.has_ended() {
            assert!(std::time::Instant::now() < end, "{}", process.stderr());
            tokio::task::yield_now().await;
        }
        if !process.has_ended() {
            process.signal(signal);
        }
        let code = process.exit().await;
        // It was done already. A command killed after that has no exit code and no temporary file.
        if code == Some(0) || (signal == Signal::SIGKILL && temp_files(world).is_empty()) {
            continue;
        }
        assert_eq!(code, if signal == Signal::SIGKILL { None } else { Some(1) }, "{}", process.stderr());
        assert!(std::fs::read(&target).ok() == before, "{args:?} wrote to its file");
        return process;
    }
    panic!("{args:?} was always done before the signal came");
}

#[tokio::test]
async fn a_signal_to_an_export_or_a_backup_leaves_the_file_as_it_was_and_nothing_besides_it() {
    let world = world();
    world.run(&["store", "backup", "b.db"]).done();
    world.write("e.jsonl", "as it was");
    for signal in SIGNALS {
        for args in [&["store", "backup", "b.db"][..], &["export", "e.jsonl"], &["export", "new.jsonl.gz"]] {
            let process = interrupt_midway(&world, args, signal).await;
            let line = format!("guildgate: interrupted; {} is as it was", args[args.len() - 1]);
            assert!(
                process.stderr().starts_with(&line) && process.stderr().lines().count() == 1,
                "{}",
                process.stderr()
            );
            assert_eq!(temp_files(&world), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn what_kill_9_left_of_an_export_or_a_backup_is_removed_by_the_next_one() {
    let world = world();
    for args in [&["store", "backup", "b.db"][..], &["export", "e.jsonl"]] {
        interrupt_midway(&world, args, Signal::SIGKILL).await;
        assert!(!temp_files(&world).is_empty());
        world.run(args).done();
        assert_eq!(temp_files(&world), Vec::<String>::new());
    }
}

/// Starts an import from a new pipe through a launcher, and writes a first line to the pipe.
async fn start_import(world: &World, launcher: &[&str], pipe: &str) -> (Process, File) {
    let path = world.path(pipe);
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let process = Process::start(&mut world.command_by(launcher, &["import", pipe]));
    let writing = tokio::task::spawn_blocking(move || {
        let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
        pipe.write_all(b"{\"guild\":\"9\",\"name\":\"Ours\"}\n").unwrap();
        pipe
    });
    let open = writing.await.unwrap();
    std::fs::remove_file(world.path(pipe)).unwrap();
    (process, open)
}

#[tokio::test]
async fn an_import_that_is_ended_during_a_statement_of_postgresql_gives_the_store_back() {
    let authority = Authority::new();
    let (certificate, key) = authority.pem_for("127.0.0.1");
    let files = [("server.pem", certificate.as_str()), ("server.key", key.as_str())];
    let settings = ["ssl = on", "ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'"];
    let server = Postgres::start_with(&settings, &files);
    let url = server.database().await;
    let world = World::new("");
    world.write("ours.pem", authority.pem());
    let (other, mut guilds) = (connect(&url).await, 0);
    for query in ["sslmode=disable", "sslmode=verify-full&sslrootcert=ours.pem"] {
        world.write("gateway.toml", format!("[origin]\nstore = \"{url}?{query}\"\n"));
        world.import(&format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n")).done();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
            let line = format!("{{\"guild\":\"{GUILD}\",\"member\":\"7\",\"name\":\"Ada\",\"points\":3}}\n");
            world.write("in.jsonl", line);
            // A lock on the table makes the import's statement wait while it holds the lock of all writers.
            other.batch_execute("BEGIN; LOCK TABLE member IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
            let mut import = Process::start(&mut world.command(&["import", "in.jsonl"]));
            let watcher = connect(&url).await;
            let waits = async || {
                let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() \
                    AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO member%'";
                watcher.query_opt(sql, &[]).await.unwrap().is_some()
            };
            eventually(PATIENCE, "it waits", waits).await;
            import.signal(signal);
            let code = import.exit().await;
            guilds += 1;
            if signal == Signal::SIGKILL {
                // The server has to notice by itself that the command was killed.
                eventually(PATIENCE, "the lock is let go", async || !waits().await).await;
            } else {
                assert_eq!(code, Some(1));
                assert!(
                    import.stderr().ends_with("guildgate: interrupted; nothing was imported\n"),
                    "{}",
                    import.stderr()
                );
            }
            world.run(&["guild", "add", &guilds.to_string(), "--name", "Next"]).done();
            other.batch_execute("COMMIT").await.unwrap();
        }
        assert_eq!(other.query("SELECT 1 FROM member", &[]).await.unwrap().len(), 0);
    }
}

async fn a_signal_to_an_import_ends_it_with_a_line_and_nothing_is_imported_or_left(kind: Kind) {
    let (world, ..) = TestGateway::on(kind).prepare().await;
    let before = world.run(&["export", "-"]).done().stdout;
    for signal in SIGNALS {
        let (mut import, _held_open) = start_import(&world, &WITH_HUP, "in.jsonl").await;
        eventually(PATIENCE, "it is staging", async || !temp_files(&world).is_empty()).await;
        import.signal(signal);
        assert_eq!(import.exit().await, Some(1));
        assert_eq!(import.stderr(), "guildgate: interrupted; nothing was imported\n");
        assert_eq!(temp_files(&world), Vec::<String>::new());
    }
    assert_eq!(world.run(&["export", "-"]).done().stdout, before);
}

#[tokio::test]
async fn a_command_that_ignores_sighup_goes_on() {
    let world = World::plain();
    let (mut import, mut pipe) = start_import(&world, &NOHUP, "in.jsonl").await;
    eventually(PATIENCE, "it is staging", async || !temp_files(&world).is_empty()).await;
    for guild in 10..20 {
        import.signal(Signal::SIGHUP);
        writeln!(pipe, "{{\"guild\":\"{guild}\",\"name\":\"Theirs\"}}").unwrap();
    }
    drop(pipe);
    assert_eq!(import.exit().await, Some(0), "{}", import.stderr());
    assert_eq!(import.stdout(), "11 records imported\n");
}

#[tokio::test]
async fn what_kill_9_left_of_an_import_into_a_store_behind_a_link_is_removed_by_the_next_command() {
    let world = World::plain();
    std::fs::create_dir(world.path("there")).unwrap();
    std::os::unix::fs::symlink("there/store.db", world.path("link.db")).unwrap();
    world.write("gateway.toml", "[origin]\nstore = \"there/store.db\"\n");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.write("gateway.toml", "[origin]\nstore = \"link.db\"\n");
    let (mut import, _held_open) = start_import(&world, &WITH_HUP, "in.jsonl").await;
    eventually(PATIENCE, "it is staging", async || !temp_files_in(&world.path("there")).is_empty()).await;
    import.kill_hard();
    assert_eq!((temp_files(&world).len(), temp_files_in(&world.path("there")).len()), (0, 1));
    world.run(&["guild", "list"]).done();
    assert_eq!(temp_files_in(&world.path("there")), Vec::<String>::new());
}

/// How many records of an import are applied according to its progress bar.
fn applied_records(screen: &str) -> Option<u64> {
    let frame = screen.rsplit('\r').find(|frame| frame.contains("applying "))?;
    let (before, _) = frame.split_once("/60,001 records")?;
    before.rsplit(' ').next()?.replace(',', "").parse().ok()
}

#[tokio::test]
async fn a_signal_to_an_import_that_is_being_applied_leaves_the_store_as_it_was_and_nothing_besides_it() {
    let world = world();
    let file = world.read("import.jsonl");
    let others = String::from_utf8(file).unwrap().replace("Ada", "Eve").replace("Night Watch", "Day Watch");
    world.write("others.jsonl", others);
    let before = world.run(&["export", "-"]).done().stdout;
    // While it waits for its turn, and while it inserts.
    for (inserts, signal) in [(false, Signal::SIGTERM), (true, Signal::SIGTERM), (true, Signal::SIGHUP)] {
        let mut ended = false;
        // While it inserts, the signal comes earlier at each try, until it comes before the commit.
        for later in (0..TRIES as u64).rev() {
            let writer = Sqlite::open(world.path("guildgate.db")).unwrap();
            writer.execute_batch("BEGIN IMMEDIATE").unwrap();
            let mut import = Process::on_terminal(&mut world.command_by(&WITH_HUP, &["import", "others.jsonl"]));
            eventually(PATIENCE, "it waits for its turn", async || applied_records(&import.stderr()) == Some(0)).await;
            if inserts {
                writer.execute_batch("ROLLBACK").unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(2 * later)).await; // see above
            }
            if !import.has_ended() {
                import.signal(signal);
            }
            let code = import.exit().await;
            if !inserts {
                writer.execute_batch("ROLLBACK").unwrap();
            }
            assert_eq!(temp_files(&world), Vec::<String>::new());
            if code == Some(1) {
                assert!(
                    import.stderr().contains("guildgate: interrupted; nothing was imported\r\n"),
                    "{}",
                    import.stderr()
                );
                ended = true;
                break;
            }
            // It was done already, and is done again from where it was.
            assert_eq!(code, Some(0), "{}", import.stderr());
            world.run(&["import", "import.jsonl"]).done();
        }
        assert!(ended, "it was always done before the signal came");
        assert!(world.run(&["export", "-"]).done().stdout == before, "half of it was done");
        world.run(&["store", "verify"]).done();
    }
}

#[tokio::test]
async fn a_signal_after_the_commit_is_too_late_and_the_outcome_is_printed() {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Day Watch"]).done();
    world.write("in.jsonl", format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n"));
    // Stdout is a full pipe, so that the outcome cannot be printed yet.
    let (mut output, mut stdout) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&stdout, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    let mut filled = 0;
    while let Ok(taken) = stdout.write(&[b'.'; 4096]) {
        filled += taken;
    }
    nix::fcntl::fcntl(&stdout, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let mut import = world.command_by(&WITH_HUP, &["import", "in.jsonl"]).stdout(stdout).spawn().unwrap();
    let id = nix::unistd::Pid::from_raw(i32::try_from(import.id()).unwrap());
    let there = async || world.run(&["export", "-"]).done().stdout.contains("Night Watch");
    eventually(PATIENCE, "it is imported", there).await;
    for _ in 0..10 {
        for signal in SIGNALS {
            nix::sys::signal::kill(id, signal).unwrap();
        }
        world.run(&["guild", "list"]).done(); // gives it time to receive them
    }
    let mut said = vec![0; filled];
    std::io::Read::read_exact(&mut output, &mut said).unwrap();
    said.clear();
    std::io::Read::read_to_end(&mut output, &mut said).unwrap();
    assert_eq!((import.wait().unwrap().code(), &*String::from_utf8_lossy(&said)), (Some(0), "1 records imported\n"));
}

on_both_stores!(a_signal_to_an_import_ends_it_with_a_line_and_nothing_is_imported_or_left);
