//! `docs/framing.md` leaves out no clause of the contract, and the tests that it names are there.

use std::path::Path;

const PAGE: &str = include_str!("../../docs/framing.md");
const CONTRACT: &str = include_str!("../../docs/contract.md");

/// The cells of each row of the table under this heading, its two head lines left out.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(&format!("## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let table = rest.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| "));
    table.map(|line| line.trim_end_matches(" |").split(" | ").collect()).skip(1).collect()
}

fn all_rows() -> Vec<Vec<&'static str>> {
    let headings = PAGE.lines().filter_map(|line| line.strip_prefix("## "));
    headings.flat_map(rows).collect()
}

#[test]
fn every_clause_of_the_framing_paragraph_has_its_row() {
    let paragraph = CONTRACT.lines().find_map(|line| line.strip_prefix("**Framing.** ")).unwrap();
    let mut rest = paragraph;
    for row in rows("The framing paragraph") {
        let between = |c: char| c.is_whitespace() || ",.:;".contains(c);
        rest = rest.trim_start_matches(between);
        rest = rest.strip_prefix(row[0]).unwrap_or_else(|| panic!("{:?} does not come next in {rest:?}", row[0]));
    }
    assert_eq!(rest.trim_end_matches('.'), "", "the page has no row for it");
}

#[test]
fn every_time_out_and_bound_of_the_server_has_its_row() {
    let (_, section) = CONTRACT.split_once("[server]\n").unwrap();
    let names: Vec<&str> = section
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split(" = ").next())
        .filter(|name| name.ends_with("_timeout") || name.starts_with("max_"))
        .collect();
    assert!(names.len() >= 9, "{names:?}");
    let rows = rows("Deadlines and bounds of `[server]`");
    let told: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    for name in names {
        assert!(told.contains(&name), "no row for {name}");
    }
}

#[test]
fn every_row_names_tests_for_both_versions_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let rows = all_rows();
    assert!(rows.len() > 30, "{}", rows.len());
    for row in rows {
        assert_eq!(row.len(), 5, "{row:?}");
        for cell in &row[3..] {
            let tests: Vec<&str> = cell.split('`').filter(|text| text.contains("::")).collect();
            assert!(!tests.is_empty(), "no test: {row:?}");
            for test in tests {
                let (module, name) = test.split_once("::").unwrap();
                let path = folder.join(format!("{module}.rs"));
                let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(source.contains(&format!("async fn {name}(")), "{module}.rs has no test {name}");
                let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
                assert!(main.contains(&format!("mod {module};")), "{module} is not compiled");
            }
        }
    }
}
