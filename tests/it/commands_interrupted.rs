//! `import`, `export` and `store backup` that are ended midway: by a signal, and by one that cannot be heard.

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::postgres::connect;
use crate::support::*;

/// How often a command is started until the signal comes while it is at work.
const TRIES: usize = 50;

/// A world whose store is some megabytes long.
fn world() -> World {
    let world = World::plain();
    let member = |id: u64| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..=60_000).map(member).collect::<String>())).done();
    world
}

/// The files of the world that are not whole yet, or staged.
fn under_way(world: &World) -> Vec<String> {
    // Names alone: what is looked at may be gone by the time it is read.
    let entries = std::fs::read_dir(world.path(".")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.contains(".part") || name.contains(".import-")).collect()
}

/// Starts the command and ends it by this signal while there is a file under way. The file that it was to write, which
/// its arguments end in, is as it was.
async fn ended_midway(world: &World, args: &[&str], signal: Signal) -> Process {
    let target = world.path(args[args.len() - 1]);
    for _ in 0..TRIES {
        let before = std::fs::read(&target).ok();
        let mut process = Process::start(&mut world.command(args));
        let end = std::time::Instant::now() + PATIENCE;
        while under_way(world).is_empty() && !process.has_ended() {
            assert!(std::time::Instant::now() < end, "{}", process.stderr());
            tokio::task::yield_now().await;
        }
        if !process.has_ended() {
            process.signal(signal);
        }
        let code = process.exit().await;
        // It was done already: who is killed says nothing of it, and has nothing under way any more.
        if code == Some(0) || (signal == Signal::SIGKILL && under_way(world).is_empty()) {
            continue;
        }
        assert_eq!(code, if signal == Signal::SIGKILL { None } else { Some(1) }, "{}", process.stderr());
        assert!(std::fs::read(&target).ok() == before, "{args:?} wrote to its file");
        return process;
    }
    panic!("{args:?} was always done before the signal came");
}

#[tokio::test]
async fn a_signal_to_an_export_or_a_backup_leaves_the_file_as_it_was_and_nothing_beside_it() {
    let world = world();
    world.run(&["store", "backup", "b.db"]).done();
    world.write("e.jsonl", "as it was");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        for args in [&["store", "backup", "b.db"][..], &["export", "e.jsonl"], &["export", "new.jsonl.gz"]] {
            let process = ended_midway(&world, args, signal).await;
            let line = format!("guildgate: interrupted; {} is as it was", args[args.len() - 1]);
            assert!(
                process.stderr().starts_with(&line) && process.stderr().lines().count() == 1,
                "{}",
                process.stderr()
            );
            assert_eq!(under_way(&world), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn what_kill_9_left_of_an_export_or_a_backup_is_removed_by_the_next_one() {
    let world = world();
    for args in [&["store", "backup", "b.db"][..], &["export", "e.jsonl"]] {
        ended_midway(&world, args, Signal::SIGKILL).await;
        assert!(!under_way(&world).is_empty());
        world.run(args).done();
        assert_eq!(under_way(&world), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_import_that_is_ended_amid_a_statement_of_postgresql_gives_the_store_back() {
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
            // What the import writes to is held, so that its statement stands still with the lock of all writers.
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
                // Nobody told the server, which looks for itself.
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
    let pipe = world.path("in.jsonl");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut import = Process::start(&mut world.command(&["import", "in.jsonl"]));
        let path = pipe.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            std::io::Write::write_all(&mut pipe, b"{\"guild\":\"9\",\"name\":\"Ours\"}\n").unwrap();
            pipe
        });
        let _held_open = writing.await.unwrap();
        eventually(PATIENCE, "it is staging", async || !under_way(&world).is_empty()).await;
        import.signal(signal);
        assert_eq!(import.exit().await, Some(1));
        assert_eq!(import.stderr(), "guildgate: interrupted; nothing was imported\n");
        assert_eq!(under_way(&world), Vec::<String>::new());
    }
    assert_eq!(world.run(&["export", "-"]).done().stdout, before);
}

on_both_stores!(a_signal_to_an_import_ends_it_with_a_line_and_nothing_is_imported_or_left);
