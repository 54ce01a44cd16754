//! `import`, `export` and `store backup` that are ended by a signal or by kill -9, and their progress on a terminal.

use std::fs::{File, OpenOptions};
use std::io::Write;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::*;

/// The signals that end a command: Ctrl-C, and a request to stop.
const SIGNALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// How often a command is started until a signal reaches it before it is done.
const TRIES: usize = 50;

/// A world whose store is some megabytes long.
fn world() -> World {
    let world = World::plain();
    let member = |id: u64| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..=30_000).map(member).collect::<String>())).done();
    world
}

/// The temporary files of the world: partly written.
fn temp_files(world: &World) -> Vec<String> {
    // Only the names are read, since the files may be removed meanwhile.
    let entries = std::fs::read_dir(world.path(".")).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.contains(".part")).collect()
}

/// Starts the command and sends it this signal while it has a temporary file. Checks that its last argument, the file
/// that it should write, is unchanged.
async fn interrupt_midway(world: &World, args: &[&str], signal: Signal) -> Process {
    let target = world.path(args[args.len() - 1]);
    for _ in 0..TRIES {
        let before = std::fs::read(&target).ok();
        let mut process = Process::start(&mut world.command(args));
        let end = std::time::Instant::now() + PATIENCE;
        while temp_files(world).is_empty() && !process.has_ended() {
            assert!(std::time::Instant::now() < end, "{}", process.stderr());
            tokio::task::yield_now().await;
        }
        if !process.has_ended() {
            process.signal(signal);
        }
        let code = process.exit().await;
        if code == Some(0) {
            continue; // it was done already
        }
        assert_eq!(code, Some(1), "{}", process.stderr());
        assert!(std::fs::read(&target).ok() == before, "{args:?} wrote to its file");
        return process;
    }
    panic!("{args:?} was always done before the signal came");
}

#[tokio::test]
async fn each_phase_has_its_bar_on_a_terminal_and_a_signal_leaves_everything_as_it_was_and_nothing_besides_it() {
    let world = world();
    on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left(&world).await;
    interrupt_exports_and_backups(&world).await;
    interrupt_import_that_reads(&world).await;
    interrupt_import_that_is_applied(&world).await;
}

async fn interrupt_exports_and_backups(world: &World) {
    world.run(&["store", "backup", "b.db"]).done();
    world.write("e.jsonl", "as it was");
    for signal in SIGNALS {
        for args in [&["store", "backup", "--force", "b.db"][..], &["export", "e.jsonl"], &["export", "new.jsonl.gz"]] {
            let process = interrupt_midway(world, args, signal).await;
            let line = format!("guildgate: interrupted; {} is as it was", args[args.len() - 1]);
            assert!(
                process.stderr().starts_with(&line) && process.stderr().lines().count() == 1,
                "{}",
                process.stderr()
            );
            assert_eq!(temp_files(world), Vec::<String>::new());
        }
    }
}

/// Starts an import from a new pipe, and writes a first line to the pipe.
async fn start_import(world: &World, pipe: &str) -> (Process, File) {
    let path = world.path(pipe);
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let process = Process::start(&mut world.command(&["import", pipe]));
    let writing = tokio::task::spawn_blocking(move || {
        let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
        pipe.write_all(b"{\"guild\":\"9\",\"name\":\"Ours\"}\n").unwrap();
        pipe
    });
    let open = writing.await.unwrap();
    std::fs::remove_file(world.path(pipe)).unwrap();
    (process, open)
}

/// A signal to an import ends it with a line, and nothing is imported or left.
async fn interrupt_import_that_reads(world: &World) {
    let (before, files) = (world.run(&["export", "-"]).done().stdout, world.files().len());
    for signal in SIGNALS {
        let (mut import, _held_open) = start_import(world, "in.jsonl").await;
        import.signal(signal);
        assert_eq!(import.exit().await, Some(1));
        assert_eq!(import.stderr(), "guildgate: interrupted; nothing was imported\n");
    }
    assert_eq!(world.run(&["export", "-"]).done().stdout, before);
    assert_eq!(world.files().len(), files, "something was left");
}

async fn interrupt_import_that_is_applied(world: &World) {
    let of_others = |lines: &str| lines.replace("Ada", "Eve").replace("Night Watch", "Day Watch");
    world.write("others.jsonl", of_others(&world.text("import.jsonl")));
    let before = world.run(&["export", "-"]).done().stdout;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut was_interrupted = false;
        for _ in 0..TRIES {
            let mut import = Process::on_terminal(&mut world.command(&["import", "others.jsonl"]));
            let end = std::time::Instant::now() + PATIENCE;
            while !import.stderr().contains("applying ") && !import.has_ended() {
                assert!(std::time::Instant::now() < end, "{}", import.stderr());
                tokio::task::yield_now().await;
            }
            if !import.has_ended() {
                import.signal(signal);
            }
            let code = import.exit().await;
            if code == Some(1) {
                let line = "guildgate: interrupted; nothing was imported\r\n";
                assert!(import.stderr().contains(line), "{}", import.stderr());
            }
            let now = world.run(&["export", "-"]).done().stdout;
            world.run(&["store", "verify"]).done();
            was_interrupted = now == before;
            if was_interrupted {
                assert_eq!(code, if signal == Signal::SIGKILL { None } else { Some(1) });
                break;
            }
            // It was done already, and at most about to end.
            assert!(now == of_others(&before), "half of it was done");
            assert_ne!(code, Some(1), "it was done");
            world.run(&["import", "import.jsonl"]).done();
        }
        assert!(was_interrupted, "the import was always done before {signal} came");
    }
}

/// The frames in which the bar of a phase was drawn.
fn frames_of<'s>(screen: &'s str, phase: &str) -> Vec<&'s str> {
    screen.split('\r').filter(|frame| frame.contains(&format!("{phase} "))).collect()
}

/// Runs a command on a terminal; returns what it printed there.
async fn run_on_terminal(world: &World, args: &[&str]) -> String {
    let mut process = Process::on_terminal(&mut world.command(args));
    assert_eq!(process.exit().await, Some(0), "{:?}", process.stderr());
    process.stderr()
}

async fn on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left(world: &World) {
    let total = indicatif::HumanBytes(world.read("import.jsonl").len() as u64).to_string();
    world.run(&["export", "packed.jsonl.gz"]).done();
    let packed = indicatif::HumanBytes(world.read("packed.jsonl.gz").len() as u64).to_string();
    for (file, size) in [("import.jsonl", total), ("packed.jsonl.gz", packed)] {
        let screen = run_on_terminal(world, &["import", file]).await;
        let shows =
            |frame: &&str| frame.contains(&format!("/{size}, ")) && frame.contains("B/s, ") && frame.contains(" left");
        for phase in ["reading", "applying"] {
            assert!(frames_of(&screen, phase).iter().any(shows), "{file}, {phase}: {screen:?}");
        }
    }
    let screen = run_on_terminal(world, &["export", "out.jsonl"]).await;
    let frames = frames_of(&screen, "writing");
    assert!(frames.iter().any(|f| f.contains("/30,001 records, ") && f.contains(" left")), "{screen:?}");
    // The bar is cleared at the end.
    assert!(!screen.rsplit('\r').next().unwrap().contains("writing"), "{screen:?}");
}
