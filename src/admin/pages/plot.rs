//! Lines over time as SVG. The colors stand out from both a light and a dark page; the texts have the page's color.

use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

/// The class, width and height of each drawing, in pixels; the page shows the one that fits and scales it.
const SIZES: [(&str, (u32, u32)); 2] = [("wide", (760, 240)), ("narrow", (360, 240))];

/// The colors of the lines, each with a contrast of 3:1 or more to white and to the dark page. The style sheet has them
/// too.
const COLORS: [RGBColor; 8] = [
    RGBColor(0x2f, 0x7e, 0xd8),
    RGBColor(0xd6, 0x45, 0x45),
    RGBColor(0xc8, 0x63, 0x0a),
    RGBColor(0x2a, 0x8c, 0x4a),
    RGBColor(0xa0, 0x5c, 0xd0),
    RGBColor(0x12, 0x86, 0x8c),
    RGBColor(0xd0, 0x43, 0x9b),
    RGBColor(0x7a, 0x7a, 0x7a),
];

/// How many lines can be told apart.
pub(super) const MAX_LINES: usize = COLORS.len();

const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);

/// A line: its color's number below [`MAX_LINES`], and its points, each minutes before now (negative) and a value.
pub(super) type Line = (usize, Vec<(f64, f64)>);

/// Draws `lines` over the last 15 minutes, for a wide page and for a phone.
pub(super) fn draw(lines: &[Line], unit: &str) -> Markup {
    let mut drawn = String::new();
    for (class, size) in SIZES {
        let mut svg = String::new();
        if let Err(error) = draw_into(&mut svg, size, lines, unit) {
            tracing::error!(%error, "a plot cannot be drawn");
            return html! {};
        }
        // The table beside it says the same to those who cannot see it.
        drawn += &svg.replacen("<svg ", &format!("<svg aria-hidden=\"true\" class=\"{class}\" "), 1);
    }
    PreEscaped(drawn)
}

fn draw_into(
    svg: &mut String,
    size: (u32, u32),
    lines: &[Line],
    unit: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let max = lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).fold(0.0, f64::max);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(6)
        .margin_right(18)
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d(-15.0..0.0, 0.0..(max * 1.05).max(1.0))
        .map_err(|e| e.to_string())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GREY.mix(0.35))
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .x_labels(4)
        .y_labels(5)
        .label_style(("sans-serif", 15))
        .x_label_formatter(&|minutes| if *minutes == 0.0 { "now".to_owned() } else { format!("{minutes:.0} min") })
        .y_label_formatter(&|value| if max < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") })
        .y_desc(unit)
        .draw()
        .map_err(|e| e.to_string())?;
    for (color, points) in lines {
        let line = LineSeries::new(points.iter().copied(), COLORS[*color].stroke_width(2));
        chart.draw_series(line).map_err(|e| e.to_string())?;
    }
    area.present().map_err(|e| e.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_no_style_attribute_which_the_pages_policy_would_refuse() {
        let svg = draw(&[(0, vec![(-15.0, 0.0), (-5.0, 3.0)]), (1, vec![])], "requests/s").0;
        assert!(svg.starts_with("<svg ") && svg.contains("<polyline") && svg.contains("requests/s"), "{svg}");
        assert!(svg.contains("class=\"wide\"") && svg.contains("class=\"narrow\""), "{svg}");
        assert!(!svg.contains("style=") && !svg.contains("<style") && !svg.contains("<script"), "{svg}");
    }

    #[test]
    fn the_style_sheet_has_the_colors_of_the_lines() {
        let style = include_str!("assets/style.css");
        for (line, RGBColor(r, g, b)) in COLORS.iter().enumerate() {
            let rule = format!(".line-{line} {{ background: #{r:02x}{g:02x}{b:02x}; }}");
            assert!(style.contains(&rule), "{rule}");
        }
    }
}
