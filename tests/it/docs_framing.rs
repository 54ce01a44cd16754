//! `docs/framing.md` leaves out no clause of the contract's framing and none of `[server]`'s bounds.

const PAGE: &str = include_str!("../../docs/framing.md");
const CONTRACT: &str = include_str!("../../docs/contract.md");

/// The cells of each row of the table under this heading, its two head lines left out.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(&format!("## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let table = rest.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| "));
    table.map(|line| line.trim_end_matches(" |").split(" | ").collect()).skip(1).collect()
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
