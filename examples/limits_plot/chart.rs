use std::fmt::Write;
use std::ops::Range;

/// Milliseconds, and a number of requests or tokens.
pub type Point = (u64, u64);

/// A plot over time: panels one above the other, with one axis of time.
pub struct Figure {
    pub title: &'static str,
    /// What there is to see, for whoever does not see it.
    pub desc: String,
    /// The sentence with its numbers, which the page says too.
    pub told: String,
    pub until_ms: u64,
    pub bands: Vec<Band>,
    pub marks: Vec<Mark>,
    pub panels: Vec<Panel>,
}

/// A stretch of time, and what happens in it.
pub struct Band {
    pub ms: Range<u64>,
    pub text: &'static str,
}

/// A moment, and what happens then.
pub struct Mark {
    pub ms: u64,
    pub text: &'static str,
}

pub struct Panel {
    /// What the axis counts.
    pub axis: &'static str,
    pub most: u64,
    /// A line of the grid every so many.
    pub grid: u64,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub name: &'static str,
    pub look: Look,
    pub points: Vec<Point>,
}

/// How a line is drawn: colours that are told apart whatever one's eyes, and never by colour alone.
#[derive(Clone, Copy)]
pub enum Look {
    Asked,
    LetIn,
    Level,
    Other,
}

impl Look {
    const fn style(self) -> &'static str {
        match self {
            Look::Asked => "stroke=\"#6b7280\" stroke-width=\"2\" stroke-dasharray=\"2 3\"",
            Look::LetIn => "stroke=\"#0072b2\" stroke-width=\"3\"",
            Look::Level => "stroke=\"#00795a\" stroke-width=\"3\"",
            Look::Other => "stroke=\"#c04a00\" stroke-width=\"2\" stroke-dasharray=\"8 5\"",
        }
    }
}

const WIDTH: u64 = 760;
const LEFT: u64 = 76;
const RIGHT: u64 = 24;
/// Above the first panel: the title and what happens when.
const TOP: u64 = 74;
/// Above each panel: its legend.
const LEGEND: u64 = 30;
const PANEL: u64 = 190;
/// Below the last panel: the axis of time.
const BOTTOM: u64 = 56;
/// Width of one letter of the legend, generously.
const LETTER: u64 = 8;

impl Figure {
    /// The figure as an SVG file, with a background of its own: it reads the same on a dark page.
    pub fn svg(&self) -> String {
        let height = TOP + (LEGEND + PANEL) * self.panels.len() as u64 + BOTTOM;
        let mut out = String::new();
        self.draw(&mut out, height).unwrap_or_default(); // a String takes everything
        out
    }

    fn draw(&self, out: &mut String, height: u64) -> std::fmt::Result {
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"#1f2937\">"
        )?;
        writeln!(out, "<title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>", self.title, self.desc)?;
        writeln!(out, "<rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"#ffffff\"/>")?;
        writeln!(out, "<text x=\"{LEFT}\" y=\"28\" font-size=\"16\" font-weight=\"600\">{}</text>", self.title)?;
        let foot = height - BOTTOM;
        for (n, band) in self.bands.iter().enumerate() {
            let (from, to) = (self.x(band.ms.start), self.x(band.ms.end));
            let shade = if n % 2 == 0 { "#eef4fa" } else { "#fafafa" };
            let (top, tall, wide) = (TOP - 26, foot - TOP + 26, to - from);
            writeln!(
                out,
                "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{tall}\" fill=\"{shade}\"/>"
            )?;
            let middle = f64::midpoint(from, to);
            writeln!(out, "<text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", TOP - 8, band.text)?;
        }
        for mark in &self.marks {
            let (x, top) = (self.x(mark.ms), TOP + LEGEND);
            for panel in 0..self.panels.len() as u64 {
                let top = top + (LEGEND + PANEL) * panel;
                writeln!(out, "<path d=\"M{x:.1} {top}v{PANEL}\" stroke=\"#1f2937\" stroke-width=\"1.5\"/>")?;
            }
            writeln!(out, "<text x=\"{:.1}\" y=\"{}\" font-weight=\"600\">{}</text>", x + 6.0, top + 14, mark.text)?;
        }
        for (n, panel) in self.panels.iter().enumerate() {
            self.panel(out, panel, TOP + (LEGEND + PANEL) * n as u64 + LEGEND)?;
        }
        self.time(out, foot)?;
        writeln!(out, "</svg>")
    }

    fn panel(&self, out: &mut String, panel: &Panel, top: u64) -> std::fmt::Result {
        let foot = top + PANEL;
        let y = |value: u64| foot as f64 - PANEL as f64 * value as f64 / panel.most as f64;
        for value in (0..=panel.most).step_by(panel.grid as usize) {
            let (at, right) = (y(value), WIDTH - RIGHT);
            let shade = if value == 0 { "#1f2937" } else { "#d1d5db" };
            writeln!(out, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"{shade}\"/>")?;
            writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>", LEFT - 8, at + 4.5)?;
        }
        let middle = top + PANEL / 2;
        writeln!(
            out,
            "<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            panel.axis
        )?;
        let mut x = LEFT + 6;
        for Line { name, look, .. } in &panel.lines {
            let at = top - 12;
            writeln!(out, "<path d=\"M{x} {at}h34\" fill=\"none\" {}/>", look.style())?;
            writeln!(out, "<text x=\"{}\" y=\"{}\">{name}</text>", x + 42, at + 4)?;
            x += 42 + LETTER * name.len() as u64 + 20;
        }
        // Where lines meet, the first one named is to be seen.
        for Line { look, points, .. } in panel.lines.iter().rev() {
            let mut path = String::new();
            for (n, (ms, value)) in turns(points).into_iter().enumerate() {
                write!(path, "{}{:.1} {:.1}", if n == 0 { 'M' } else { 'L' }, self.x(ms), y(value))?;
            }
            writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke-linejoin=\"round\" {}/>", look.style())?;
        }
        Ok(())
    }

    fn time(&self, out: &mut String, foot: u64) -> std::fmt::Result {
        for second in 0..=self.until_ms / 1_000 {
            let x = self.x(second * 1_000);
            writeln!(out, "<path d=\"M{x:.1} {foot}v5\" stroke=\"#1f2937\"/>")?;
            writeln!(out, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{second}</text>", foot + 20)?;
        }
        let middle = u64::midpoint(LEFT, WIDTH - RIGHT);
        writeln!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">time in seconds</text>", foot + 42)
    }

    fn x(&self, ms: u64) -> f64 {
        LEFT as f64 + (WIDTH - LEFT - RIGHT) as f64 * ms as f64 / self.until_ms as f64
    }
}

/// The points at which a line turns: the others lie on straight stretches between them.
fn turns(points: &[Point]) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for &point in points {
        if let [.., a, b] = kept[..]
            && is_straight(a, b, point)
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

fn is_straight(a: Point, b: Point, c: Point) -> bool {
    let run = |from: Point, to: Point| i128::from(to.0) - i128::from(from.0);
    let rise = |from: Point, to: Point| i128::from(to.1) - i128::from(from.1);
    rise(a, b) * run(b, c) == rise(b, c) * run(a, b)
}
