//! What `docs/limits.md` and `docs/http-origin.md` show is what the command and the server print. (The plots are held
//! by the tests of `examples/limits_plot`.)

use std::path::Path;

use guildgate::config::{Loaded, Problems, load_str};

use crate::support::*;

const PAGE: &str = concat!(include_str!("../../docs/limits.md"), include_str!("../../docs/http-origin.md"));

/// The pages' blocks of a language, those that stand in a list among them.
fn blocks(language: &str) -> Vec<String> {
    let (mut blocks, mut within) = (Vec::new(), None::<String>);
    for line in PAGE.lines() {
        match (&mut within, line.trim_start()) {
            (None, opening) if opening.strip_prefix("```") == Some(language) => within = Some(String::new()),
            (Some(_), "```") => blocks.extend(within.take()),
            (Some(block), _) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

fn block_with(language: &str, what: &str) -> String {
    let found = blocks(language).into_iter().find(|block| block.contains(what));
    found.unwrap_or_else(|| panic!("no block of {language} has {what}"))
}

#[test]
fn every_configuration_on_the_pages_is_valid() {
    let all = blocks("toml");
    assert!(all.len() >= 4, "only {} were found", all.len());
    for config in all {
        assert!(read(&config).is_ok(), "{config}");
    }
}

fn read(config: &str) -> Result<Loaded, Problems> {
    load_str(config, Path::new("/"), "gateway.toml")
}

#[tokio::test]
async fn what_check_prints_and_a_server_sends_of_the_examples_is_shown() {
    let printed = World::new(&block_with("toml", "partner")).run(&["check"]).done().stdout;
    let shown = block_with("text", "tier partner");
    assert!(printed.contains(&shown), "it prints\n{printed}\nand not\n{shown}");
    let world = World::new("");
    world.write("bad.toml", "[limits.tiers.standard]\nrate = \"20\"\nburst = 0\ndayly = 500000\n");
    let said = Ran::of(&mut world.command(&["--config", "bad.toml", "check"]), "").failed(2).stderr;
    assert_eq!(said, block_with("text", "bad.toml:2:8"));
    the_headers_in_the_example_are_those_of_a_server_with_the_default_limits().await;
}

#[test]
fn every_bound_in_the_table_is_the_one_that_check_holds() {
    let tier = |line: &str| format!("[limits.tiers.standard]\n{line}\n");
    for (holds, over, shown) in [
        ("burst = 1000000000\nrate = \"1000/s\"", "burst = 1000000001\nrate = \"1000/s\"", "1 to 1,000,000,000;"),
        ("daily = 1000000000000", "daily = 1000000000001", "1 to 1,000,000,000,000 "),
        ("in_flight = 1000000", "in_flight = 1000001", "1 to 1,000,000 "),
        ("rate = \"1000000000/s\"", "rate = \"1000000001/s\"", "`\"1000000000/s\"`"),
        ("rate = \"1/d\"\nburst = 365", "rate = \"1/d\"\nburst = 366", "within 365 days"),
    ] {
        assert!(read(&tier(holds)).is_ok() && read(&tier(over)).is_err(), "{holds}, {over}");
        assert!(PAGE.contains(shown), "{shown} is not shown");
    }
}

async fn the_headers_in_the_example_are_those_of_a_server_with_the_default_limits() {
    let mut builder = TestGateway::builder().key("website").points("7", 1250);
    for (name, value) in [("rate", r#""20/s""#), ("burst", "40"), ("write_rate", r#""5/s""#), ("write_burst", "10")] {
        builder = builder.set(&format!("limits.tiers.standard.{name}"), value);
    }
    let gate = builder.start().await;
    let answer = gate.get_points("website", "7").await;
    let shown = block_with("text", "curl -i");
    for name in ["RateLimit-Policy", "RateLimit"] {
        let line = format!("\n{name}: {}\n", answer.is("1250").header(&name.to_lowercase()).unwrap());
        assert!(shown.contains(&line), "{line} is not shown");
    }
}
