//! `serve` that cannot: one clear line, no panic, the right exit code.

use nix::sys::signal::Signal;

use crate::support::*;

/// Runs `serve` to its end, which must come by itself.
async fn ends(world: &World) -> (Option<i32>, String) {
    let mut process = world.serve(&[]);
    let code = process.exit().await;
    // The catching threads may be a moment behind the end.
    eventually(PATIENCE, "something on stderr", || async { !process.stderr().is_empty() }).await;
    let stderr = process.stderr();
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
    assert!(!stderr.contains("ready: "), "{stderr}");
    (code, stderr)
}

/// So many threads may run besides the first one.
const FEW_THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
static int running;
struct start { void *(*run)(void *); void *with; };
static void *counted(void *given) {
    struct start start = *(struct start *)given;
    free(given);
    void *made = start.run(start.with);
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    return made;
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    if (__atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST) > atoi(getenv("THREADS"))) {
        __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
        return EAGAIN;
    }
    struct start *start = malloc(sizeof *start);
    start->run = run;
    start->with = with;
    return create(thread, how, counted, start);
}
"#;

fn config(more: &str) -> World {
    World::new(&format!("{more}\n[admin]\nlisten = \"\"\n"))
}

#[tokio::test]
async fn a_taken_port_is_one_line_and_exit_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, stderr) = ends(&config(&format!("[server]\nlisten = [\"{address}\"]"))).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&address.to_string()), "the address is not named: {stderr}");
}

#[tokio::test]
async fn a_missing_config_that_was_named_is_exit_2() {
    let world = World::plain();
    let missing = world.path("nowhere.toml");
    for command in ["serve", "check"] {
        Ran::of(&mut world.command(&[command, "--config", missing.to_str().unwrap()]), "")
            .failed(2)
            .names(&["nowhere.toml"]);
    }
    Ran::of(world.command(&["check"]).env("GUILDGATE_CONFIG", &missing), "").failed(2).names(&["nowhere.toml"]);
}

#[tokio::test]
async fn a_bad_config_names_every_fault_and_is_exit_2() {
    let (code, stderr) =
        ends(&config("[server]\nheader_timeout = \"5 fortnights\"\nmax_bodi = \"4KiB\"\n[cache]\nmax_size = \"many\""))
            .await;
    assert_eq!(code, Some(2), "{stderr}");
    for named in ["gateway.toml", "header_timeout", "max_bodi", "max_body", "max_size"] {
        assert!(stderr.contains(named), "{named} is not named: {stderr}");
    }
}

#[tokio::test]
async fn a_missing_key_file_is_named() {
    let (code, stderr) =
        ends(&config("[server]\nlisten = [\"127.0.0.1:0\"]\n[keys]\nsource = \"file\"\nfile = \"lost.toml\"")).await;
    assert!(matches!(code, Some(1 | 2)) && stderr.contains("lost.toml"), "{code:?} {stderr}");
}

#[tokio::test]
async fn a_bad_key_file_is_named_and_gives_no_key_away() {
    for keys in [
        "[[key]]\nid = \"a\"\ndigest = \"secret-in-the-wrong-place\"\nguild = \"1\"\n",
        "[[key]]\nid = \"a\"\nguild = \"1\"\n",
        "not toml at all secret-in-the-wrong-place",
    ] {
        let world = config("[server]\nlisten = [\"127.0.0.1:0\"]\n[keys]\nsource = \"file\"\nfile = \"keys.toml\"");
        world.write("keys.toml", keys);
        let (code, stderr) = ends(&world).await;
        assert!(matches!(code, Some(1 | 2)) && stderr.contains("keys.toml"), "{code:?} {stderr}");
        assert!(!stderr.contains("secret-in-the-wrong-place"), "{stderr}");
    }
}

#[tokio::test]
async fn bad_usage_is_exit_2_and_says_what_is_known() {
    let world = World::plain();
    for args in [&["sevre"][..], &[], &["serve", "--demmo"], &["key"], &["key", "create"], &["guild", "add"]] {
        Ran::of(&mut world.command(args), "").failed(2);
    }
    for args in [&["--help"][..], &["serve", "--help"], &["key", "create", "--help"], &["import", "--help"]] {
        let ran = Ran::of(&mut world.command(args), "").done();
        assert!(ran.stdout.contains("--config") || args == ["--help"], "{ran:#?}");
    }
}

#[tokio::test]
async fn where_the_system_has_too_few_threads_to_give_it_says_so_in_one_line() {
    let tools = tempfile::tempdir().unwrap();
    let preload = preload(tools.path(), FEW_THREADS);
    let mut gate =
        TestGateway::builder().tls().admin().key("bot").points("7", 3).set("server.threads", "2").start().await;
    gate.stop().await;
    let config = gate.world().path("gateway.toml");
    for threads in 0..60 {
        let launcher = ["env", preload, &format!("THREADS={threads}")];
        let command = &mut gate.world().command_by(&launcher, &["serve", "--config", config.to_str().unwrap()]);
        let mut process = Process::start(command);
        eventually(PATIENCE, "its end, or that it is ready", async || {
            process.has_ended() || process.stderr().contains("ready: https")
        })
        .await;
        if !process.has_ended() {
            let admin =
                eventually(PATIENCE, "the admin listener", async || process.stderr().contains("admin listener ready"));
            admin.await;
            process.signal(Signal::SIGTERM);
            assert_eq!(process.exit().await, Some(0));
            assert!(!process.stderr().contains("thread"), "{}", process.stderr());
            return;
        }
        let (code, said) = (process.exit().await, process.stderr());
        assert_eq!(code, Some(1), "with {threads}: {said}");
        assert!(said.contains("thread") && !said.contains("panicked"), "with {threads}: {said}");
    }
    panic!("it needs more than 60 threads");
}

#[tokio::test]
async fn too_few_threads_are_told_in_the_format_of_the_log() {
    let tools = tempfile::tempdir().unwrap();
    let preload = preload(tools.path(), FEW_THREADS);
    let (world, ..) = TestGateway::builder().key("bot").set("log.format", r#""json""#).prepare().await;
    let (config, launcher) = (world.path("gateway.toml"), ["env", preload, "THREADS=20"]);
    let mut process =
        Process::start(&mut world.command_by(&launcher, &["serve", "--config", config.to_str().unwrap()]));
    assert_eq!(process.exit().await, Some(1));
    let said = process.stderr();
    let line: serde_json::Value = serde_json::from_str(said.trim()).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert!(line["fields"]["message"].as_str().unwrap().contains("ulimit -u"), "{said}");
}

#[tokio::test]
async fn where_the_system_lets_it_open_too_few_files_it_says_so_in_one_line() {
    let (world, ..) = TestGateway::builder().key("bot").prepare().await;
    let config = world.path("gateway.toml");
    for files in ["6", "40", "255"] {
        let launcher = ["prlimit", &format!("--nofile={files}")];
        let mut process =
            Process::start(&mut world.command_by(&launcher, &["serve", "--config", config.to_str().unwrap()]));
        assert_eq!(process.exit().await, Some(1));
        let said = process.stderr();
        assert!(said.contains("ulimit -n") && said.contains(files) && said.lines().count() == 1, "{said}");
    }
}

#[tokio::test]
async fn where_the_threads_leave_too_few_files_it_says_so_in_one_line() {
    let (world, ..) = TestGateway::builder().key("bot").set("server.threads", "64").prepare().await;
    let config = world.path("gateway.toml");
    let mut process = Process::start(
        &mut world.command_by(&["prlimit", "--nofile=511:511"], &["serve", "--config", config.to_str().unwrap()]),
    );
    assert_eq!(process.exit().await, Some(1));
    let said = process.stderr();
    assert!(said.contains("to 512 at least, or lower server.threads") && said.lines().count() == 1, "{said}");
}
