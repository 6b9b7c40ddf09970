//! Plots as SVG text: lines, dots and bars, with marked spans and moments. The text is written
//! without a library, so that a plot is one file that needs nothing else.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;

/// Approximate number of ticks on an axis.
const TICKS: f64 = 8.0;

/// Colours of the lines, which most people can tell apart (Okabe and Ito 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

/// How a line's points are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// Points joined by a line.
    #[default]
    Joined,
    /// Points joined by a dashed line, as for a model beside measurements.
    Dashed,
    /// Points without a line.
    Dots,
}

/// A line through points (x, y).
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Name of the line in the legend.
    pub name: String,
    /// Points of the line, x ascending.
    pub points: Vec<(f64, f64)>,
    /// How the points are drawn.
    pub mark: Mark,
}

/// A rectangle of a bar chart, in the colour of its number.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Range of x that the bar covers.
    pub x: (f64, f64),
    /// Range of y that the bar covers.
    pub y: (f64, f64),
    /// Index of the bar's name, which determines its colour.
    pub name: usize,
}

/// A shaded part of the x axis.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name that is written into the span.
    pub name: String,
    /// Beginning of the span on the x axis.
    pub from: f64,
    /// End of the span on the x axis.
    pub to: f64,
}

/// A marked place on the x axis.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Name that is written beside the place.
    pub name: String,
    /// The place on the x axis.
    pub at: f64,
}

/// A chart with axes, lines and bars.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Name of the x axis.
    pub x_name: String,
    /// Name of the y axis.
    pub y_name: String,
    /// Range of x that is shown.
    pub x_range: (f64, f64),
    /// Names of the first, second … unit of x, in the place of numbers.
    pub x_names: Vec<String>,
    /// Range of y that is shown; `None`: everything.
    pub y_range: Option<(f64, f64)>,
    /// Lines of the chart; what lies outside of `x_range` is left out.
    pub lines: Vec<Line>,
    /// Bars of the chart, drawn below the lines.
    pub bars: Vec<Bar>,
    /// Meanings of the bars' colours.
    pub bar_names: Vec<String>,
    /// Shaded parts of the x axis.
    pub spans: Vec<Span>,
    /// Marked places on the x axis.
    pub moments: Vec<Moment>,
}

impl Chart {
    /// The chart as an SVG document.
    pub fn to_svg(&self) -> String {
        let mut svg = header(HEIGHT);
        self.draw(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn draw(&self, svg: &mut String) {
        let scale = self.scale();
        let title = escape(&self.title);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" class=\"t\">{title}</text>");
        self.draw_spans(svg, &scale);
        self.draw_axes(svg, &scale);
        self.draw_bars(svg, &scale);
        for (index, line) in self.lines.iter().enumerate() {
            self.draw_line(svg, &scale, index, line);
        }
        self.draw_moments(svg, &scale);
    }

    fn visible<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (f64, f64)> + 'a {
        let (from, to) = self.x_range;
        line.points.iter().copied().filter(move |point| (from..=to).contains(&point.0))
    }

    fn scale(&self) -> Scale {
        let points = self.lines.iter().flat_map(|line| self.visible(line)).map(|point| point.1);
        let edges = self.bars.iter().flat_map(|bar| [bar.y.0, bar.y.1]);
        let (low, high) = points
            .chain(edges)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        Scale { x: self.x_range, y: self.y_range.unwrap_or((low, high)) }
    }

    fn draw_axes(&self, svg: &mut String, scale: &Scale) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (index, name) in self.x_names.iter().enumerate() {
            let (x, y) = (scale.x(index as f64 + 0.5), bottom + 16.0);
            let name = escape(name);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>"
            );
        }
        let numbers = if self.x_names.is_empty() { ticks(scale.x) } else { Vec::new() };
        for tick in numbers {
            let x = scale.x(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" class=\"g\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                number(tick)
            );
        }
        for tick in ticks(scale.y) {
            let y = scale.y(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" class=\"g\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x_name),
            (TOP + bottom) / 2.0,
            escape(&self.y_name)
        );
    }

    fn draw_spans(&self, svg: &mut String, scale: &Scale) {
        for span in &self.spans {
            let (from, to) = (scale.x(span.from), scale.x(span.to));
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" class=\"s\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" class=\"r\">{}</text>",
                (to - from).max(1.0),
                HEIGHT - BOTTOM - TOP,
                to + 4.0,
                HEIGHT - BOTTOM - 6.0,
                escape(&span.name)
            );
        }
    }

    fn draw_bars(&self, svg: &mut String, scale: &Scale) {
        for bar in &self.bars {
            let colour = COLOURS[bar.name % COLOURS.len()];
            let (left, right) = (scale.x(bar.x.0), scale.x(bar.x.1));
            let (top, bottom) = (scale.y(bar.y.1), scale.y(bar.y.0));
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                right - left,
                bottom - top
            );
        }
        for (index, name) in self.bar_names.iter().enumerate() {
            draw_name(svg, index, COLOURS[index % COLOURS.len()], name);
        }
    }

    fn draw_line(&self, svg: &mut String, scale: &Scale, index: usize, line: &Line) {
        let index = index + self.bar_names.len();
        let colour = COLOURS[index % COLOURS.len()];
        if line.mark == Mark::Dots {
            for (x, y) in self.visible(line) {
                let (x, y) = (scale.x(x), scale.y(y));
                let _ =
                    write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>");
            }
        } else {
            let mut path = String::new();
            for (x, y) in self.visible(line) {
                let _ = write!(path, "{:.1},{:.1} ", scale.x(x), scale.y(y));
            }
            let dashes = if line.mark == Mark::Dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashes}/>",
                path.trim_end()
            );
        }
        draw_name(svg, index, colour, &line.name);
    }

    fn draw_moments(&self, svg: &mut String, scale: &Scale) {
        for (index, moment) in self.moments.iter().enumerate() {
            let x = scale.x(moment.at);
            // Neighbouring names stand at different heights.
            let y = TOP + 14.0 + 14.0 * (index % 8) as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" class=\"m\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\" class=\"r\">{}</text>",
                HEIGHT - BOTTOM,
                x + 4.0,
                escape(&moment.name)
            );
        }
    }
}

/// Several charts below each other, as one SVG document.
pub fn stacked(charts: &[Chart]) -> String {
    let mut svg = header(HEIGHT * charts.len() as f64);
    for (index, chart) in charts.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {:.1})\">", HEIGHT * index as f64);
        chart.draw(&mut svg);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws a line's name in the legend; a line without a name has none.
fn draw_name(svg: &mut String, index: usize, colour: &str, name: &str) {
    let (x, y) = (LEFT + 8.0, TOP + 14.0 + 16.0 * index as f64);
    let name = escape(name);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"n\" fill=\"{colour}\">{name}</text>"
    );
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn x(&self, x: f64) -> f64 {
        let x = x.clamp(self.x.0, self.x.1);
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        let y = y.clamp(self.y.0, self.y.1);
        HEIGHT - BOTTOM - (y - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - BOTTOM - TOP)
    }
}

fn header(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>.t{{font-size:14px;font-weight:bold}}.g{{stroke:#ddd}}.s{{fill:#f6c7b0}}\
         .m{{stroke:#a00;stroke-dasharray:3 3}}\
         .r{{fill:#a00;paint-order:stroke;stroke:#fff;stroke-width:3px}}\
         .n{{paint-order:stroke;stroke:#fff;stroke-width:3px}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// Round places within a range: steps of 1, 2 or 5 times a power of ten.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let rough = (to - from) / TICKS;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|it| it * power >= rough).unwrap_or(10.0);
    let step = factor * power;
    let first = (from / step).ceil() as i64;
    (first..).map(|n| n as f64 * step).take_while(|tick| *tick <= to).collect()
}

/// A number without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text as it must be written in XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks((0.0, 80.0)), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        assert_eq!(ticks((5.0, 5.0)), Vec::<f64>::new());
        assert!(ticks((-0.3, 0.4)).iter().all(|tick| (-0.3..=0.4).contains(tick)));
        assert_eq!(number(-0.0), "0");
        assert_eq!(number(2.50), "2.5");
    }

    #[test]
    fn a_chart_without_points_is_still_a_document() {
        let chart = Chart { x_range: (0.0, 1.0), title: "<a>".to_owned(), ..Chart::default() };
        let svg = stacked(&[chart.clone(), chart.clone()]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("&lt;a&gt;"));
        assert!(!chart.to_svg().contains("NaN"));
    }
}
