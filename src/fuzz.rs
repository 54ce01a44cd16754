//! What the fuzz targets share. A target is a module `fuzz` next to the code that it compares with its oracle. Its seeds,
//! and every input that ever failed, are in `tests/fuzz/NAME`. `cargo test` checks those and some inputs mutated from
//! them, the same ones in each run; `scripts/fuzz NAME SECONDS` searches further, guided by coverage.

use std::fs;
use std::path::Path;

/// The longest plan, in bytes: four edits.
pub(crate) const MAX_PLAN: usize = 48;

/// Defines the target `$name` with the oracle `$check`: a test that checks the seeds and `$mutated` inputs mutated from
/// them, or under `--cfg fuzzing` the inputs of the fuzzer.
macro_rules! fuzz_target {
    ($name:ident, $mutated:expr, $check:path) => {
        #[test]
        fn $name() {
            let seeds = $crate::fuzz::seeds(stringify!($name));
            if cfg!(fuzzing) {
                bolero::check!().for_each(|input: &[u8]| $check(input));
            } else {
                seeds.iter().for_each(|seed| $crate::fuzz::check_and_show(seed, $check));
                for plan in $crate::fuzz::plans().take($mutated) {
                    $crate::fuzz::check_and_show(&$crate::fuzz::mutated(&seeds, &plan), $check);
                }
            }
        }
    };
}

/// The plans by which inputs are mutated, the same ones in each run, so that the result of the tests does not change.
pub(crate) fn plans() -> impl Iterator<Item = Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    std::iter::repeat_with(move || {
        let length = random.usize(..=MAX_PLAN);
        std::iter::repeat_with(|| random.u8(..)).take(length).collect()
    })
}

/// The seeds of a target.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", folder.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Checks an input, and prints it if it fails.
pub(crate) fn check_and_show(input: &[u8], check: impl Fn(&[u8])) {
    struct Shown<'i>(&'i [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input that failed: b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let shown = Shown(input);
    check(shown.0);
}

/// An input mutated from a seed: the plan picks the seed and the edits.
pub(crate) fn mutated(seeds: &[Vec<u8>], plan: &[u8]) -> Vec<u8> {
    let mut plan = plan.iter().map(|byte| usize::from(*byte));
    let mut next = |below: usize| (plan.next().unwrap_or(0) * 256 + plan.next().unwrap_or(0)) % below.max(1);
    let mut input = seeds[next(seeds.len())].clone();
    for _ in 0..next(5) {
        let (edit, at) = (next(6), next(input.len() + 1));
        let end = (at + 1 + next(16)).min(input.len());
        let piece = match edit {
            0 => vec![],
            1 | 2 => vec![next(256) as u8],
            3 => input[at..end].repeat(2),
            _ => {
                let other = &seeds[next(seeds.len())];
                let from = next(other.len());
                other[from..(from + 1 + next(24)).min(other.len())].to_vec()
            }
        };
        // The piece replaces what is there, or is inserted before it.
        let end = if edit % 2 == 0 { end } else { at };
        input.splice(at..end.max(at), piece);
    }
    input
}

#[test]
fn every_edit_mutates_every_seed() {
    let seeds = [b"abcdef".to_vec(), b"XYZ".to_vec()];
    // Seed 0, one edit, its kind, at 2, to 4, then its arguments.
    let edited = |edit: u8, rest: &[u8]| mutated(&seeds, &[&[0, 0, 0, 1, 0, edit, 0, 2, 0, 1], rest].concat());
    let cases: [(u8, &[u8], &[u8]); 6] = [
        (0, &[], b"abef"),
        (1, &[0, b'!'], b"ab!cdef"),
        (2, &[0, b'!'], b"ab!ef"),
        (3, &[], b"abcdcdcdef"),
        (4, &[0, 1, 0, 1, 0, 1], b"abYZef"),
        (5, &[0, 1, 0, 1, 0, 1], b"abYZcdef"),
    ];
    for (edit, rest, expected) in cases {
        assert_eq!(edited(edit, rest), expected, "edit {edit}");
    }
    assert_eq!(mutated(&seeds, &[0, 1]), b"XYZ", "no edit");
    assert_eq!(mutated(&seeds, &[]), b"abcdef", "no plan");
}

#[test]
fn cargo_gives_random_tests_a_seed() {
    // proptest's is for this crate, shuttle's for tests/model.
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".cargo/config.toml")).unwrap();
    let config: toml::Table = toml::from_str(&text).unwrap();
    for name in ["PROPTEST_RNG_SEED", "SHUTTLE_RANDOM_SEED"] {
        let seed = config["env"][name].as_str().unwrap();
        assert!(seed.parse::<u64>().is_ok(), "{name}: {seed}");
    }
}
