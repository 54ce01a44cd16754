//! Runs a test of this program under callgrind and reads the counts. Callgrind counts only inside of
//! `gateway::counted_request`, and writes a file each time `gateway::Paths::request` returns, which calls it once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where callgrind's files are kept until the next run: for each path the one of its median request.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("budget")
}

/// The instructions of the median request of each path; the test makes so many requests of each path, one path after
/// the other.
pub fn count<const PATHS: usize>(test: &str, paths: [&str; PATHS], requests: u64) -> [u64; PATHS] {
    let folder = folder();
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*::counted_request", "--dump-after=*::Paths::request"])
        .arg("--compress-strings=no") // so that each file can be read without the others
        .arg(format!("--callgrind-out-file={}/out", folder.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--test-threads=1"])
        .output()
        .expect("valgrind is needed to count instructions: run scripts/setup");
    assert!(output.status.success(), "under valgrind: {}", String::from_utf8_lossy(&output.stderr));
    let mut number = 0;
    let counts = paths.map(|path| {
        let mut dumps: Vec<(u64, PathBuf)> = (0..requests)
            .map(|_| {
                number += 1;
                let file = folder.join(format!("out.{number}"));
                (total(&file), file)
            })
            .collect();
        dumps.sort_unstable();
        let (instructions, file) = &dumps[dumps.len() / 2];
        fs::rename(file, folder.join(path)).unwrap();
        *instructions
    });
    let of_one_request = |name: &str| name.starts_with("out");
    for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        if entry.file_name().to_str().is_some_and(of_one_request) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    counts
}

fn total(dump: &Path) -> u64 {
    let text = fs::read_to_string(dump).unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("callgrind wrote a total");
    total.trim().parse().unwrap()
}

pub fn median(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts[counts.len() / 2]
}
