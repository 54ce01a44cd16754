//! The steps that make the tables of a store, or bring those of an older version up to date: the files of `migrations/`.
//! Which of them were taken is in the store's own table `refinery_schema_history`. A step that a store may have taken is
//! never changed.

pub(super) const SQLITE: &[&str] = &[
    include_str!("migrations/sqlite/V1__guilds_members_keys_changes.sql"),
    include_str!("migrations/sqlite/V2__previous_secrets_daily_counts.sql"),
    include_str!("migrations/sqlite/V3__lineage.sql"),
    include_str!("migrations/sqlite/V4__notes_and_feed.sql"),
    include_str!("migrations/sqlite/V5__requests_by_day.sql"),
];

pub(super) const POSTGRES: &[&str] = &[
    include_str!("migrations/postgres/V1__guilds_members_keys_changes_daily.sql"),
    include_str!("migrations/postgres/V2__notes_and_feed.sql"),
    include_str!("migrations/postgres/V3__requests_by_day.sql"),
];

/// The number of the schema after all of these steps.
pub(super) const fn newest(steps: &[&str]) -> i64 {
    steps.len().cast_signed() as i64
}

/// The statements that bring a store up to date that has taken the first `taken` steps. They are for one transaction.
pub(super) fn statements(steps: &[&str], taken: i64) -> String {
    let table = "CREATE TABLE IF NOT EXISTS refinery_schema_history (version integer PRIMARY KEY);\n";
    let steps = (1..).zip(steps).filter(|(version, _)| *version > taken);
    steps.fold(table.to_owned(), |sql, (version, step)| {
        format!("{sql}{step}\nINSERT INTO refinery_schema_history (version) VALUES ({version});\n")
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_file_is_a_step() {
        for (folder, steps) in [("sqlite", super::SQLITE), ("postgres", super::POSTGRES)] {
            let folder = format!("{}/src/store/migrations/{folder}", env!("CARGO_MANIFEST_DIR"));
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), steps.len(), "{folder}");
        }
    }
}
