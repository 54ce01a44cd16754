//! Lines over time as SVG. The colors stand out from both a light and a dark page; the texts have the page's color.

use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

/// Width and height, in pixels of the drawing; the page scales it.
const SIZE: (u32, u32) = (760, 240);

/// The colors of the lines, each with a contrast of 3:1 or more to white and to the dark page. The style sheet has them
/// too.
const COLORS: [RGBColor; 6] = [
    RGBColor(0x2f, 0x7e, 0xd8),
    RGBColor(0xd6, 0x45, 0x45),
    RGBColor(0xc8, 0x63, 0x0a),
    RGBColor(0x2a, 0x8c, 0x4a),
    RGBColor(0xa0, 0x5c, 0xd0),
    RGBColor(0x7a, 0x7a, 0x7a),
];

/// How many lines can be told apart.
pub(super) const MAX_LINES: usize = COLORS.len();

const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);

/// Draws `lines` over the last 15 minutes. A point is minutes before now (negative) and a value.
pub(super) fn draw(lines: &[Vec<(f64, f64)>], unit: &str) -> Markup {
    let mut svg = String::new();
    if let Err(error) = draw_into(&mut svg, lines, unit) {
        tracing::error!(%error, "a plot cannot be drawn");
        return html! {};
    }
    // The table beside it says the same to those who cannot see it.
    PreEscaped(svg.replacen("<svg ", "<svg aria-hidden=\"true\" ", 1))
}

fn draw_into(
    svg: &mut String,
    lines: &[Vec<(f64, f64)>],
    unit: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let max = lines.iter().flatten().map(|(_, value)| *value).fold(0.0, f64::max);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
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
    for (line, color) in lines.iter().zip(COLORS) {
        let line = LineSeries::new(line.iter().copied(), color.stroke_width(2));
        chart.draw_series(line).map_err(|e| e.to_string())?;
    }
    area.present().map_err(|e| e.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_no_style_attribute_which_the_pages_policy_would_refuse() {
        let svg = draw(&[vec![(-15.0, 0.0), (-5.0, 3.0)], vec![]], "requests/s").0;
        assert!(svg.starts_with("<svg ") && svg.contains("<polyline") && svg.contains("requests/s"), "{svg}");
        assert!(!svg.contains("style=") && !svg.contains("<style") && !svg.contains("<script"), "{svg}");
    }
}
