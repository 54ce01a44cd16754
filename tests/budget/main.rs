//! What a request may cost, path by path: the instructions that valgrind's callgrind counts, and the allocations. Counts
//! do not depend on how busy a machine is, as seconds do, so that a growth is seen where it is made. `budget.toml` has
//! the counts of the profile of the tests; `docs/performance.md` says what they include and how to look into them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the counts, for those who ask for them with --nocapture")]

mod callgrind;
mod gateway;

use std::collections::BTreeMap;
use std::fmt::Write;

use gateway::{Path, Paths};
use serde::{Deserialize, Serialize};

/// How many requests of a path are counted. The median is what the path costs: the first ones reserve memory, and moka
/// tidies its records up after so many reads.
const REQUESTS: u64 = 31;

/// Costs may grow by so much. Two builds of one source differ by up to a twentieth, because the compiler divides the
/// program into other units when it builds incrementally and then inlines other functions; other processors have other
/// `memcpy`s; and a miss's look-ups depend on a random seed. What allocates nothing may not begin to.
const TOLERANCE: f64 = 1.08;

/// What one request of a path takes.
#[derive(Debug, Serialize, Deserialize)]
struct Cost {
    instructions: u64,
    allocations: u64,
}

#[test]
fn no_path_takes_more_instructions_or_allocations_than_its_budget_says() {
    let budget: BTreeMap<String, Cost> = toml::from_str(include_str!("budget.toml")).unwrap();
    let instructions = callgrind::count("requests_of_every_path", Path::ALL.map(Path::name), REQUESTS);
    let (mut counted, mut grown) = (BTreeMap::new(), String::new());
    for (path, instructions) in Path::ALL.into_iter().zip(instructions) {
        let cost = Cost { instructions, allocations: allocations(path) };
        let name = path.name();
        println!("{name}: {cost:?}");
        match budget.get(name) {
            None => writeln!(grown, "  {name} has no budget; it takes {cost:?}").unwrap(),
            Some(budget) => {
                let most = |budget: u64| (budget as f64 * TOLERANCE).ceil() as u64;
                if cost.instructions > most(budget.instructions) || cost.allocations > most(budget.allocations) {
                    writeln!(grown, "  {name} takes {cost:?}; its budget is {budget:?}").unwrap();
                }
            }
        }
        counted.insert(name, cost);
    }
    let folder = callgrind::folder();
    let renewed = folder.join("budget.toml");
    std::fs::write(&renewed, toml::to_string(&counted).unwrap()).unwrap();
    assert!(
        grown.is_empty(),
        "Requests cost more than tests/budget/budget.toml says:\n{grown}\
         To see where, compare with the last commit: callgrind_annotate --threshold=100 --inclusive=yes {}/NAME\n\
         If the growth is worth it, renew the budget: cp {} tests/budget/budget.toml",
        folder.display(),
        renewed.display(),
    );
}

#[test]
#[ignore = "this is what the test above runs under callgrind"]
fn requests_of_every_path() {
    for path in Path::ALL {
        let paths = Paths::new(path);
        for n in 0..REQUESTS {
            paths.request(n);
        }
    }
}

fn allocations(path: Path) -> u64 {
    let paths = Paths::new(path);
    callgrind::median((0..REQUESTS).map(|n| paths.request(n)).collect())
}
