//! Lines over the last minutes as SVG. The style sheet has their colors.

use std::time::Duration;

use maud::{Markup, html};

use crate::model::rough;

/// The class and the width of each drawing; the page shows the one that fits.
const WIDTHS: [(&str, f64); 2] = [("wide", 760.0), ("narrow", 360.0)];

const HEIGHT: f64 = 240.0;

/// The room for the labels at the left and below.
const MARGIN: (f64, f64) = (60.0, 30.0);

/// How many lines can be told apart.
pub(super) const MAX_LINES: usize = 8;

/// A line: its color's number below [`MAX_LINES`], and its points, each minutes before now (negative) and a value.
pub(super) type Line = (usize, Vec<(f64, f64)>);

/// Draws `lines` over the last `span` minutes, for a wide page and for a phone. The table beside it says the same to those
/// who cannot see it.
pub(super) fn draw(lines: &[Line], span: f64) -> Markup {
    let max = lines.iter().flat_map(|(_, points)| points).fold(1.0, |max: f64, (_, value)| value.max(max));
    // A round number, of which a quarter is one too.
    let unit = 10_f64.powf(max.log10().floor());
    let max = [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|n| n * unit).find(|round| *round >= max).unwrap_or(max);
    let span = span.max(1.0);
    let y = |value: f64| 20.0 + (HEIGHT - 20.0 - MARGIN.1) * (1.0 - value / max);
    html! {
        @for (class, width) in WIDTHS {
            @let x = |minutes: f64| width - 20.0 + (width - 20.0 - MARGIN.0) * minutes / span;
            svg aria-hidden="true" class=(class) viewBox=(format!("0 0 {width} {HEIGHT}")) xmlns="http://www.w3.org/2000/svg" {
                @for value in [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| part * max) {
                    line.grid x1=(MARGIN.0) x2=(x(0.0)) y1=(y(value)) y2=(y(value)) {}
                    text x=(MARGIN.0 - 8.0) y=(y(value) + 5.0) text-anchor="end" { (value) }
                }
                @for minutes in [-1.0, -2.0 / 3.0, -1.0 / 3.0, 0.0].map(|part| part * span) {
                    text x=(x(minutes)) y=(HEIGHT - 8.0) text-anchor="middle" {
                        @if minutes == 0.0 { "now" } @else { (rough(Duration::from_secs_f64(-60.0 * minutes))) " ago" }
                    }
                }
                @for (color, points) in lines {
                    @let points = points.iter().map(|(minutes, value)| format!("{:.1},{:.1}", x(*minutes), y(*value)));
                    polyline.{ "stroke-" (color) } points=(points.collect::<Vec<_>>().join(" ")) {}
                }
            }
        }
    }
}
