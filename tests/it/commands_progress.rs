//! How far an import or export is: rate and time left, drawn on a terminal, and as plain lines elsewhere.

use crate::support::*;

/// Records in the store.
const RECORDS: usize = 20_001;

/// A world with that many, and the file that they came from.
async fn world(kind: Kind) -> World {
    let (world, ..) = TestGateway::on(kind).prepare().await;
    let member =
        |id: usize| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..RECORDS).map(member).collect::<String>())).done();
    world
}

/// What was drawn of the phase that is called so, each time anew.
fn drawn<'s>(screen: &'s str, phase: &str) -> Vec<&'s str> {
    screen.split('\r').filter(|frame| frame.contains(&format!("{phase} "))).collect()
}

async fn on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left(kind: Kind) {
    let world = world(kind).await;
    let total = indicatif::HumanBytes(world.read("import.jsonl").len() as u64).to_string();
    world.run(&["export", "packed.jsonl.gz"]).done();
    let packed = indicatif::HumanBytes(world.read("packed.jsonl.gz").len() as u64).to_string();
    let phases = if kind == Kind::Postgres { &["sending", "applying"][..] } else { &["applying"] };
    for (file, size) in [("import.jsonl", total), ("packed.jsonl.gz", packed)] {
        let (code, screen) = on_terminal(&mut world.command(&["import", file]));
        assert_eq!(code, Some(0), "{screen:?}");
        let reading = drawn(&screen, "reading");
        let shows = |frame: &&&str| {
            frame.contains(&format!("/{size}, ")) && frame.contains("B/s, ") && frame.contains(" left (")
        };
        assert!(reading.iter().any(|frame| shows(&frame)), "{file}: {screen:?}");
        for phase in phases {
            let frames = drawn(&screen, phase);
            let shows = |frame: &&str| frame.contains("/20,001 records, ") && frame.trim_end().contains("/s, ");
            assert!(frames.iter().any(shows) && frames.iter().any(|f| f.contains(" left")), "{phase}: {screen:?}");
        }
    }
    let (code, screen) = on_terminal(&mut world.command(&["export", "out.jsonl"]));
    assert_eq!(code, Some(0), "{screen:?}");
    let frames = drawn(&screen, "writing");
    assert!(frames.iter().any(|f| f.contains("/20,001 records, ") && f.contains(" left")), "{screen:?}");
    // The bar goes away at the end.
    assert!(!screen.rsplit('\r').next().unwrap().contains("writing"), "{screen:?}");
}

async fn elsewhere_nothing_is_drawn(kind: Kind) {
    let world = world(kind).await;
    for args in [["import", "import.jsonl"], ["export", "out.jsonl"]] {
        let ran = world.run(&args).done();
        let plain = |line: &str| line.contains(" records ") && line.contains("/s, ") && line.ends_with(" left");
        assert!(ran.stderr.lines().all(plain) && !ran.stderr.contains('\r'), "{ran:?}");
    }
}

on_both_stores!(on_a_terminal_each_phase_has_its_bar_with_rate_and_time_left, elsewhere_nothing_is_drawn);
