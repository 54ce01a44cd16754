//! What the fuzz targets share. A target is a module `fuzz` beside what it holds to its oracle; its
//! seeds, and every input that ever failed, are in `tests/fuzz/NAME`. `cargo test` judges those and
//! some inputs grown from them, the same ones in each run; `scripts/fuzz NAME SECONDS` searches on,
//! guided by coverage.

use std::fs;
use std::path::Path;

/// The longest list of edits by which an input is grown from a seed, in bytes: four of them.
pub(crate) const MAX_PLAN: usize = 48;

/// Makes `$judge` the oracle of the target `$name`: a test that judges the seeds and `$grown` inputs
/// grown from them, or under `--cfg fuzzing` whatever the fuzzer brings.
macro_rules! fuzz_target {
    ($name:ident, $grown:expr, $judge:path) => {
        #[test]
        fn $name() {
            let seeds = $crate::fuzz::seeds(stringify!($name));
            if cfg!(fuzzing) {
                bolero::check!().for_each(|input: &[u8]| $judge(input));
            } else {
                seeds.iter().for_each(|seed| $crate::fuzz::shown(seed, $judge));
                for plan in $crate::fuzz::plans().take($grown) {
                    $crate::fuzz::shown(&$crate::fuzz::grown(&seeds, &plan), $judge);
                }
            }
        }
    };
}

/// The plans by which inputs are grown, the same ones in each run: whether a tree passes its tests is
/// not a matter of luck.
pub(crate) fn plans() -> impl Iterator<Item = Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    std::iter::repeat_with(move || {
        let length = random.usize(..=MAX_PLAN);
        std::iter::repeat_with(|| random.u8(..)).take(length).collect()
    })
}

/// The inputs that a target begins with.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", folder.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Judges an input, and shows it if it fails.
pub(crate) fn shown(input: &[u8], judge: impl Fn(&[u8])) {
    struct Shown<'i>(&'i [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input that failed: b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let shown = Shown(input);
    judge(shown.0);
}

/// An input grown from a seed: the plan picks the seed and what is done to it.
pub(crate) fn grown(seeds: &[Vec<u8>], plan: &[u8]) -> Vec<u8> {
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
        // Put in place of what is there, or before it.
        let end = if edit % 2 == 0 { end } else { at };
        input.splice(at..end.max(at), piece);
    }
    input
}

#[test]
fn inputs_grow_by_every_edit_from_every_seed() {
    let seeds = [b"abcdef".to_vec(), b"XYZ".to_vec()];
    // Seed 0, one edit, which one, at 2, to 4, then what it takes.
    let edited = |edit: u8, rest: &[u8]| grown(&seeds, &[&[0, 0, 0, 1, 0, edit, 0, 2, 0, 1], rest].concat());
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
    assert_eq!(grown(&seeds, &[0, 1]), b"XYZ", "no edit");
    assert_eq!(grown(&seeds, &[]), b"abcdef", "no plan");
}

#[test]
fn cargo_gives_random_tests_a_seed() {
    // proptest's here, and shuttle's in tests/model.
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".cargo/config.toml")).unwrap();
    let config: toml::Table = toml::from_str(&text).unwrap();
    for name in ["PROPTEST_RNG_SEED", "SHUTTLE_RANDOM_SEED"] {
        let seed = config["env"][name].as_str().unwrap();
        assert!(seed.parse::<u64>().is_ok(), "{name}: {seed}");
    }
}
