//! Prints a made-up service as JSON Lines for `guildgate import`: ten thousand guilds with 15 million
//! members, unless told otherwise. The same arguments give the same bytes. `benches/size.rs` measures a
//! store that is filled with it, and `docs/storage.md` says what came of it.
//!
//! `cargo run --release --example store_fill -- --guilds 100 > service.jsonl`

mod service; // who is in which guild, and what was said of whom

use std::io::{self, BufWriter};

use clap::Parser;
use service::Service;

#[derive(Debug, Parser)]
struct Args {
    /// How many guilds; with 100 there are 0.15 million members, with 2,500 3.7 million
    #[arg(long, default_value_t = 10_000)]
    guilds: u64,
    /// Another seed makes another service of the same size
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let service = Service::new(args.guilds, args.seed);
    let records = service.write(&mut BufWriter::with_capacity(1 << 18, io::stdout().lock()))?;
    eprintln!("{} guilds, {} members, {records} records", service.guilds.len(), service.members());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use guildgate::config::StoreAt;
    use guildgate::model::{MemberId, WARN};
    use guildgate::store::{IfMissing, Mode, Record, Store};

    fn lines(guilds: u64, seed: u64) -> Vec<u8> {
        let mut lines = Vec::new();
        Service::new(guilds, seed).write(&mut lines).unwrap();
        lines
    }

    fn records(lines: &[u8]) -> Vec<Record> {
        let lines = lines.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n');
        lines.map(|line| Record::parse(line).unwrap()).collect()
    }

    #[test]
    fn a_seed_always_gives_the_same_bytes_and_another_seed_others() {
        assert_eq!(lines(30, 7), lines(30, 7));
        assert_ne!(lines(30, 7), lines(30, 8));
    }

    #[test]
    fn guilds_have_200_members_in_the_median_and_15_million_in_all_where_there_are_ten_thousand() {
        for (guilds, all) in [(100, 150_000.0), (2_500, 3_700_000.0), (10_000, 14_800_000.0)] {
            let service = Service::new(guilds, 1);
            let mut sizes: Vec<u64> = service.guilds.iter().map(|guild| guild.members).collect();
            sizes.sort_unstable();
            let median = sizes[sizes.len() / 2];
            assert!((190..=210).contains(&median), "{guilds} guilds: {median}");
            let off = service.members() as f64 / all - 1.0;
            assert!(off.abs() < if guilds == 100 { 0.2 } else { 0.05 }, "{guilds} guilds: {}", service.members());
        }
    }

    #[test]
    fn a_person_is_in_many_guilds_and_nobody_in_one_twice_and_ids_are_of_17_to_19_digits() {
        let service = Service::new(300, 1);
        let mut guilds_of: HashMap<MemberId, u64> = HashMap::new();
        for guild in &service.guilds {
            let members: HashSet<MemberId> = (0..guild.members).map(|rank| service.member(guild, rank)).collect();
            assert_eq!(members.len() as u64, guild.members);
            members.into_iter().for_each(|member| *guilds_of.entry(member).or_default() += 1);
        }
        let ids: HashSet<&str> = service.guilds.iter().map(|guild| guild.id.as_str()).collect();
        assert_eq!(ids.len(), 300);
        let each = service.members() as f64 / guilds_of.len() as f64;
        assert!((2.0..8.0).contains(&each), "{each}");
        let digits: HashSet<usize> = guilds_of.keys().map(|member| member.to_string().len()).collect();
        assert!(digits.contains(&18) && digits.iter().all(|digits| (17..=19).contains(digits)), "{digits:?}");
    }

    #[test]
    fn most_members_have_neither_warns_nor_reviews_and_no_review_is_longer_than_8_kb() {
        let lines = lines(200, 1);
        let (mut members, mut warned, mut reviewed) = (0, HashSet::new(), HashSet::new());
        let mut longest = 0;
        for record in records(&lines) {
            match record {
                Record::Guild { .. } => {}
                Record::Member { .. } => members += 1,
                Record::Note { guild, member, kind, .. } if *kind == WARN => drop(warned.insert((guild, member))),
                Record::Note { guild, member, note, .. } => {
                    longest = longest.max(note.text.len());
                    reviewed.insert((guild, member));
                }
            }
        }
        let part = |of: usize| of as f64 / f64::from(members);
        assert!((0.02..0.05).contains(&part(warned.len())), "{}", part(warned.len()));
        assert!((0.01..0.03).contains(&part(reviewed.len())), "{}", part(reviewed.len()));
        assert!((3000..=8000).contains(&longest), "{longest}");
    }

    #[tokio::test]
    async fn an_import_of_it_is_exported_byte_for_byte() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreAt::Sqlite(folder.path().join("store.db")), IfMissing::Make).await.unwrap();
        let (lines, mut exported) = (lines(40, 3), Vec::new());
        let file = lines.clone();
        let import = store.import(move || Ok(io::Cursor::new(file.clone())), Mode::AllOrNothing, |_| {}).await.unwrap();
        assert_eq!(import.commit().await.unwrap().records, records(&lines).len() as u64);
        store.export(&mut exported, &mut |_| {}).unwrap();
        assert!(exported == lines, "they differ");
    }
}
