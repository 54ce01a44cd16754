//! Draws the plots of `docs/limits.md`. The gateway's own bucket decides, at times that are
//! arguments, so they come out the same everywhere: `cargo run --example limits_plot` writes them,
//! and the test below holds that the ones in `docs/` are what the code does now.

mod chart; // a figure as SVG
mod scenes; // what is asked, and what the bucket says

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chart::Figure;

/// The plots, by the name of their file in `docs/`.
fn plots() -> [(&'static str, Figure); 2] {
    [("limits-burst.svg", scenes::burst()), ("limits-reload.svg", scenes::reload())]
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

fn main() -> ExitCode {
    for (name, figure) in plots() {
        let path = place(name);
        if let Err(error) = std::fs::write(&path, figure.svg()) {
            eprintln!("{} cannot be written: {error}", path.display());
            return ExitCode::FAILURE;
        }
        eprintln!("{} is written. {}", path.display(), figure.told);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plots_in_docs_are_what_the_gateways_own_bucket_does() {
        for (name, figure) in plots() {
            let there = std::fs::read_to_string(place(name)).unwrap();
            assert!(there == figure.svg(), "docs/{name} is old: run `cargo run --example limits_plot` and look at it");
        }
    }

    #[test]
    fn the_page_shows_each_plot_and_tells_its_numbers() {
        let page = std::fs::read_to_string(place("limits.md")).unwrap();
        let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for (name, figure) in plots() {
            assert!(page.contains(&format!("]({name})")), "{name} is not shown");
            assert!(words.contains(&figure.told), "limits.md does not say: {}", figure.told);
        }
    }
}
