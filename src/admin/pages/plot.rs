//! Charts: lines over time as SVG. The script `chart.js` puts a chart in the place of each that tells its values and
//! zooms. The style sheet has the colors.

use std::time::Duration;

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::model::rough;

/// The class and the width of each drawing; the page shows the one that fits.
const WIDTHS: [(&str, f64); 2] = [("wide", 760.0), ("narrow", 360.0)];

const HEIGHT: f64 = 240.0;

/// The room for the labels at the left and below.
const MARGIN: (f64, f64) = (60.0, 30.0);

/// How many lines can be told apart.
pub(super) const MAX_LINES: usize = 8;

/// A line: its color's number below [`MAX_LINES`], its name, and its points, each seconds before now (negative) and a value.
pub(super) type Line = (usize, &'static str, Vec<(f64, f64)>);

/// Draws `lines`, whose points are at the same times, up to `now` (Unix seconds). The table beside it says the same to
/// those who cannot see it.
pub(super) fn draw(id: &str, lines: &[Line], now: i64) -> Markup {
    let x: Vec<f64> = lines.iter().take(1).flat_map(|(.., points)| points).map(|(time, _)| now as f64 + time).collect();
    let of_line = |(color, name, points): &Line| {
        let y = points.iter().map(|(_, value)| *value);
        json!({ "color": color, "name": name, "y": y.collect::<Vec<_>>() })
    };
    let chart = json!({ "x": x, "lines": lines.iter().map(of_line).collect::<Value>() });
    html! {
        figure {
            div.chart id=(id) data-chart=(chart) { (drawing(lines)) }
            ul.legend { @for (color, name, _) in lines { li { span.{ "swatch line-" (color) } {} (name) } } }
        }
    }
}

/// The drawing, for a wide page and for a phone.
fn drawing(lines: &[Line]) -> Markup {
    let points = || lines.iter().flat_map(|(.., points)| points);
    let max = points().fold(1.0, |max: f64, (_, value)| value.max(max));
    // A round number, of which a quarter is one too.
    let power = 10_f64.powf(max.log10().floor());
    let max = [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|n| n * power).find(|round| *round >= max).unwrap_or(max);
    let span = points().fold(60.0, |span: f64, (time, _)| span.max(-time));
    let y = |value: f64| 20.0 + (HEIGHT - 20.0 - MARGIN.1) * (1.0 - value / max);
    html! {
        @for (class, width) in WIDTHS {
            @let x = |time: f64| width - 20.0 + (width - 20.0 - MARGIN.0) * time / span;
            svg aria-hidden="true" class=(class) viewBox=(format!("0 0 {width} {HEIGHT}")) xmlns="http://www.w3.org/2000/svg" {
                @for value in [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| part * max) {
                    line.grid x1=(MARGIN.0) x2=(x(0.0)) y1=(y(value)) y2=(y(value)) {}
                    text x=(MARGIN.0 - 8.0) y=(y(value) + 5.0) text-anchor="end" { (value) }
                }
                @for time in [-1.0, -2.0 / 3.0, -1.0 / 3.0, 0.0].map(|part| part * span) {
                    text x=(x(time)) y=(HEIGHT - 8.0) text-anchor="middle" {
                        @if time == 0.0 { "now" } @else { (rough(Duration::from_secs_f64(-time))) " ago" }
                    }
                }
                @for (color, _, points) in lines {
                    @let points = points.iter().map(|(time, value)| format!("{:.1},{:.1}", x(*time), y(*value)));
                    polyline.{ "stroke-" (color) } points=(points.collect::<Vec<_>>().join(" ")) {}
                }
            }
        }
    }
}
