//! `import` and `export` of files that end in `.gz`. What is packed and unpacked is judged by Debian's gzip.

use std::process::{Command, Stdio};

use crate::support::*;

fn lines() -> String {
    let member =
        |id: u64| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada ★\",\"points\":{id}}}\n");
    format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n") + &(1..=5000).map(member).collect::<String>()
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

fn exported(world: &World) -> String {
    world.run(&["export", "-"]).done().stdout
}

#[test]
fn a_file_that_ends_in_gz_is_packed_and_one_that_does_not_is_plain() {
    let world = World::plain();
    world.import(&lines()).done();
    for name in ["out.jsonl.gz", "OUT.GZ"] {
        let ran = world.run(&["export", name]).done();
        assert_eq!(ran.stdout, "5001 records exported\n");
        assert!(world.read(name).len() < lines().len() / 5);
        assert_eq!(String::from_utf8(gzip(&["-dc"], world.read(name))).unwrap(), lines());
        let other = World::plain();
        std::fs::copy(world.path(name), other.path(name)).unwrap();
        assert_eq!(other.run(&["import", name]).done().stdout, "5001 records imported\n");
        assert_eq!(exported(&other), lines());
    }
    world.run(&["export", "gz"]).done();
    assert_eq!(world.text("gz"), lines());
    assert_eq!(exported(&world), lines(), "- is never packed");
}

#[test]
fn all_members_of_a_gzip_file_are_read() {
    let world = World::plain();
    let text = lines();
    // The cut goes through a line.
    let (head, tail) = text.split_at(text.len() / 2 + 3);
    let empty = gzip(&["-c"], "");
    let padding = vec![0; 512]; // which gzip takes for the end of a tape
    world.write("in.jsonl.gz", [gzip(&["-1c"], head), empty, gzip(&["-9c"], tail), padding].concat());
    world.run(&["import", "in.jsonl.gz"]).done();
    assert_eq!(exported(&world), text);
}

#[test]
fn a_gzip_file_that_is_not_whole_and_sound_is_refused_and_nothing_of_it_is_taken() {
    let world = World::plain();
    let packed = gzip(&["-c"], lines());
    let mut damaged = packed.clone();
    damaged[packed.len() / 2] ^= 0x55;
    let mut sum = packed.clone();
    sum[packed.len() - 6] ^= 1;
    let cut = |bytes: usize| packed[..bytes].to_vec();
    let cases = [
        (cut(packed.len() - 1), "it is cut off"),
        (cut(packed.len() - 8), "it is cut off"),
        (cut(packed.len() / 2), "it is cut off"),
        (cut(5), "it is cut off"),
        (Vec::new(), "it is cut off"),
        ([&*packed, &packed[..packed.len() / 3]].concat(), "it is cut off"),
        (lines().into_bytes(), "it is not gzip"),
        ([&*packed, b"and something else, as long as a header"].concat(), "something else follows"),
        (damaged, "it is damaged"),
        (sum, "it is damaged"),
    ];
    world.import("").done(); // which makes the store, and says so
    for (at, (bytes, why)) in cases.into_iter().enumerate() {
        world.write("in.jsonl.gz", bytes);
        for args in [&["import", "in.jsonl.gz"][..], &["import", "--partial", "in.jsonl.gz"]] {
            let ran = world.run(args).failed(1).names(&["in.jsonl.gz cannot be read: ", why, "nothing was imported"]);
            assert_eq!(ran.stderr.lines().count(), 1, "{at}: {ran:?}");
            assert_eq!(exported(&world), "", "{at}");
        }
    }
}

#[test]
fn a_gzip_bomb_is_a_long_line_and_takes_no_memory() {
    let world = World::plain();
    let bomb = "head -c 1500000000 /dev/zero | tr '\\0' x | gzip -1 > bomb.gz; \
        printf '\\n{\"guild\":\"7\",\"name\":\"G\"}\\n' | gzip >> bomb.gz; gzip -t bomb.gz";
    let made = Command::new("sh").args(["-c", bomb]).current_dir(world.path(".")).status().unwrap();
    assert!(made.success());
    // In KiB: half of what is in it, and more than it takes to start.
    let bounded = "ulimit -v 750000 && exec \"$0\" \"$@\"";
    let import = world.command(&["import", "--partial", "bomb.gz"]);
    let mut command = Command::new("sh");
    command.args(["-c", bounded]).arg(import.get_program()).args(import.get_args()).current_dir(world.path("."));
    let ran = Ran::of(&mut command, "").done().names(&["line 1: longer than 1048576 bytes"]);
    assert_eq!(ran.stdout, "1 records imported, bad lines left out: 1\n");
}
