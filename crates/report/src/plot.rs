//! Plots as SVG text: lines, dots and bars, with marked spans and moments. The text is written
//! without a library, so that a plot is one file that needs nothing else.

use crate::layout::{Label, Placed, place, text_width, wrap};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
/// Height of the axes' box.
const PLOT_HEIGHT: f64 = 240.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
/// Height of the title, of a line of the legend, and of a row of names.
const TITLE: f64 = 32.0;
const ROW: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// Approximate number of ticks on an axis.
const TICKS: f64 = 8.0;

/// Size of the texts, in px.
const FONT: f64 = 12.0;

/// Colours of the lines, which most people can tell apart (Okabe and Ito 2008), and brighter ones
/// for a dark screen.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56a8e0"),
    ("#d55e00", "#ff8c42"),
    ("#009e73", "#2fcf9f"),
    ("#cc79a7", "#e7a1c8"),
    ("#e69f00", "#f2b632"),
    ("#56b4e9", "#8ad1f5"),
    ("#444444", "#bbbbbb"),
];

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
    /// Half the height of each point's error bar; none if empty.
    pub errors: Vec<f64>,
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

/// The colours of names: the same name has the same colour in all charts that are drawn together.
struct Palette(BTreeMap<String, usize>);

impl Palette {
    fn of(charts: &[Chart]) -> Self {
        let mut colours = BTreeMap::new();
        for name in charts.iter().flat_map(Chart::names).filter(|name| !name.is_empty()) {
            let next = colours.len() % COLOURS.len();
            colours.entry(name.clone()).or_insert(next);
        }
        Self(colours)
    }

    /// The colour of a name; a line without one has the first.
    fn of_name(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }
}

impl Chart {
    /// The chart as an SVG document.
    pub fn to_svg(&self) -> String {
        stacked(std::slice::from_ref(self))
    }

    /// Names that have a colour, in the legend's order.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.bar_names.iter().chain(self.lines.iter().map(|line| &line.name))
    }

    /// The names of the legend, and their places in its lines.
    fn legend(&self) -> Vec<(&str, Placed)> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.names().map(String::as_str).filter(|name| !name.is_empty()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let widths: Vec<f64> = names.iter().map(|it| text_width(it, FONT) + 18.0).collect();
        let places = wrap(&widths, WIDTH - LEFT - RIGHT, 12.0);
        names.into_iter().zip(places).collect()
    }

    /// The names of moments, and their places above the plot.
    fn named_moments(&self, scale: &Scale) -> Vec<(&Moment, Placed)> {
        let mut moments: Vec<&Moment> = self.moments.iter().collect();
        moments.sort_by(|a, b| a.at.total_cmp(&b.at));
        let label = |it: &&Moment| Label { at: scale.x(it.at), width: text_width(&it.name, FONT) };
        let labels: Vec<Label> = moments.iter().map(label).collect();
        let places = place(&labels, (LEFT, WIDTH - RIGHT), 4.0);
        moments.into_iter().zip(places).collect()
    }

    fn draw(&self, svg: &mut String, palette: &Palette) -> f64 {
        let legend = self.legend();
        let rows = |last: Option<usize>| last.map_or(0.0, |row| (row + 1) as f64 * ROW);
        let legend_height = rows(legend.iter().map(|it| it.1.row).max());
        let mut scale = self.scale();
        let moments = self.named_moments(&scale);
        let names_top = TITLE + legend_height;
        scale.top = names_top + rows(moments.iter().map(|it| it.1.row).max()) + 2.0;
        let title = escape(&self.title);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" class=\"t\">{title}</text>");
        for (name, place) in &legend {
            let (x, y) = (LEFT + place.left, TITLE + place.row as f64 * ROW + FONT);
            let colour = palette.of_name(name);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"8\" class=\"f{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                y - 9.0,
                x + 16.0,
                escape(name)
            );
        }
        self.draw_spans(svg, &scale);
        self.draw_axes(svg, &scale);
        self.draw_bars(svg, &scale, palette);
        for line in &self.lines {
            self.draw_line(svg, &scale, palette, line);
        }
        draw_moments(svg, &scale, names_top, &moments);
        scale.bottom() + BOTTOM
    }

    fn visible<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (f64, f64)> + 'a {
        let (from, to) = self.x_range;
        line.points.iter().copied().filter(move |point| (from..=to).contains(&point.0))
    }

    fn scale(&self) -> Scale {
        let point = |line: &'_ Line, at: usize| {
            let (x, y) = line.points[at];
            let error = line.errors.get(at).copied().unwrap_or(0.0);
            let is_shown = (self.x_range.0..=self.x_range.1).contains(&x);
            is_shown.then_some([y - error, y + error])
        };
        let points = self.lines.iter().flat_map(|line| {
            (0..line.points.len()).filter_map(move |at| point(line, at)).flatten()
        });
        let edges = self.bars.iter().flat_map(|bar| [bar.y.0, bar.y.1]);
        let (low, high) = points
            .chain(edges)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        Scale { x: self.x_range, y: self.y_range.unwrap_or((low, high)), top: TITLE }
    }

    fn draw_axes(&self, svg: &mut String, scale: &Scale) {
        let (right, top, bottom) = (WIDTH - RIGHT, scale.top, scale.bottom());
        for (index, name) in self.x_names.iter().enumerate() {
            let (x, y) = (scale.x(index as f64 + 0.5), bottom + 16.0);
            let name = escape(name);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>"
            );
        }
        let numbers = if self.x_names.is_empty() { ticks(scale.x, TICKS) } else { Vec::new() };
        for tick in numbers {
            let x = scale.x(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" class=\"g\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                number(tick)
            );
        }
        for tick in ticks(scale.y, TICKS) {
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
            bottom + BOTTOM - 8.0,
            escape(&self.x_name),
            (top + bottom) / 2.0,
            escape(&self.y_name)
        );
    }

    fn draw_spans(&self, svg: &mut String, scale: &Scale) {
        for span in &self.spans {
            let (from, to) = (scale.x(span.from), scale.x(span.to));
            let width = text_width(&span.name, FONT);
            let left =
                if to + 4.0 + width <= WIDTH - RIGHT { to + 4.0 } else { from - 4.0 - width };
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{PLOT_HEIGHT}\" class=\"s\"/>\
                 <text x=\"{left:.1}\" y=\"{:.1}\" class=\"r\">{}</text>",
                scale.top,
                (to - from).max(1.0),
                scale.bottom() - 6.0,
                escape(&span.name)
            );
        }
    }

    fn draw_bars(&self, svg: &mut String, scale: &Scale, palette: &Palette) {
        for bar in &self.bars {
            let colour = self.bar_names.get(bar.name).map_or(0, |name| palette.of_name(name));
            let (left, right) = (scale.x(bar.x.0), scale.x(bar.x.1));
            let (top, bottom) = (scale.y(bar.y.1), scale.y(bar.y.0));
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"f{colour}\"/>",
                right - left,
                bottom - top
            );
        }
    }

    fn draw_line(&self, svg: &mut String, scale: &Scale, palette: &Palette, line: &Line) {
        let colour = palette.of_name(&line.name);
        self.draw_errors(svg, scale, colour, line);
        if line.mark == Mark::Dots {
            for (x, y) in self.visible(line) {
                let (x, y) = (scale.x(x), scale.y(y));
                let _ = write!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" class=\"f{colour}\"/>"
                );
            }
            svg.push('\n');
            return;
        }
        let mut path = String::new();
        for (x, y) in self.visible(line) {
            let _ = write!(path, "{:.1},{:.1} ", scale.x(x), scale.y(y));
        }
        let dashes = if line.mark == Mark::Dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke-width=\"1.5\"{dashes} class=\"l{colour}\"/>",
            path.trim_end()
        );
    }

    fn draw_errors(&self, svg: &mut String, scale: &Scale, colour: usize, line: &Line) {
        for ((x, y), error) in line.points.iter().zip(&line.errors) {
            if *error <= 0.0 || !(self.x_range.0..=self.x_range.1).contains(x) {
                continue;
            }
            let (x, low, high) = (scale.x(*x), scale.y(y - error), scale.y(y + error));
            let (left, right) = (x - 3.0, x + 3.0);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}M{left:.1} {high:.1}H{right:.1}\" \
                 fill=\"none\" class=\"l{colour}\"/>"
            );
        }
    }
}

fn draw_moments(svg: &mut String, scale: &Scale, top: f64, moments: &[(&Moment, Placed)]) {
    for (moment, place) in moments {
        let (x, y) = (scale.x(moment.at), top + place.row as f64 * ROW);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" class=\"m\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"r\">{}</text>",
            y + 2.0,
            scale.bottom(),
            place.left,
            y + FONT,
            escape(&moment.name)
        );
    }
}

/// Several charts below each other, as one SVG document. A name has one colour in all of them.
pub fn stacked(charts: &[Chart]) -> String {
    let palette = Palette::of(charts);
    let (mut body, mut height) = (String::new(), 0.0);
    for chart in charts {
        let _ = writeln!(body, "<g transform=\"translate(0 {height:.1})\">");
        height += chart.draw(&mut body, &palette);
        body.push_str("</g>\n");
    }
    header(height) + &body + "</svg>\n"
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    /// Where the axes' box begins.
    top: f64,
}

impl Scale {
    fn bottom(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }

    fn x(&self, x: f64) -> f64 {
        let x = x.clamp(self.x.0, self.x.1);
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        let y = y.clamp(self.y.0, self.y.1);
        self.bottom() - (y - self.y.0) / (self.y.1 - self.y.0) * PLOT_HEIGHT
    }
}

fn header(height: f64) -> String {
    let colours = |dark: bool| {
        let one = |(index, pair): (usize, &(&str, &str))| {
            let colour = if dark { pair.1 } else { pair.0 };
            format!(".f{index}{{fill:{colour}}}.l{index}{{stroke:{colour}}}")
        };
        COLOURS.iter().enumerate().map(one).collect::<String>()
    };
    let (light, dark) = (colours(false), colours(true));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"{FONT}\">\n\
         <style>.t{{font-size:14px;font-weight:bold}}.g{{stroke:#ddd}}.s{{fill:#f6c7b0}}.p{{fill:#fff}}\
         .m{{stroke:#a00;stroke-dasharray:3 3}}text{{fill:#222}}\
         .r{{fill:#a00;paint-order:stroke;stroke:#fff;stroke-width:3px}}{light}\
         @media(prefers-color-scheme:dark){{.g{{stroke:#333b48}}.s{{fill:#5a3524}}.p{{fill:#12151c}}\
         .m{{stroke:#ff8a80}}text{{fill:#e8eaf0}}.r{{fill:#ff8a80;stroke:#12151c}}{dark}}}</style>\n\
         <rect width=\"100%\" height=\"100%\" class=\"p\"/>\n"
    )
}

/// Round places within a range, about `count`: steps of 1, 2 or 5 times a power of ten.
#[must_use]
pub fn ticks((from, to): (f64, f64), count: f64) -> Vec<f64> {
    let rough = (to - from) / count;
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
#[must_use]
pub fn number(value: f64) -> String {
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
        assert_eq!(
            ticks((0.0, 80.0), TICKS),
            [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
        );
        assert_eq!(ticks((5.0, 5.0), TICKS), Vec::<f64>::new());
        assert!(ticks((-0.3, 0.4), TICKS).iter().all(|tick| (-0.3..=0.4).contains(tick)));
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

    fn chart() -> Chart {
        let line = |name: &str, y| Line {
            name: name.to_owned(),
            points: vec![(0.0, y), (1.0, y + 1.0)],
            ..Line::default()
        };
        let moment = |at| Moment { name: "something happens".to_owned(), at };
        Chart {
            x_range: (0.0, 1.0),
            lines: vec![line("Vegas", 1.0), line("Boston", 2.0)],
            moments: vec![moment(0.9), moment(0.1), moment(0.11)],
            ..Chart::default()
        }
    }

    /// Places of the legend's names, of the moments' names and of the axes' box, from the top.
    #[test]
    fn neither_legend_nor_moments_lie_on_the_data_or_on_each_other() {
        let chart = chart();
        let svg = chart.to_svg();
        let y_of = |what: &str| -> Vec<f64> {
            let lines = svg.lines().filter(|line| line.contains(what) && line.contains("<text"));
            let of = |line: &str| line.rsplit_once(" y=\"")?.1.split('"').next()?.parse().ok();
            lines.filter_map(of).collect()
        };
        let legend = y_of(">Vegas<")[0].max(y_of(">Boston<")[0]);
        let moments = y_of("something happens");
        let least = moments.iter().copied().fold(f64::INFINITY, f64::min);
        let most = moments.iter().copied().fold(0.0, f64::max);
        assert!(legend + 2.0 <= least - FONT + 4.0, "{legend} {moments:?}");
        let highest = svg.lines().find(|line| line.contains("<polyline")).expect("a line");
        let points = highest.split('"').nth(1).expect("points").split([',', ' ']);
        let top = points
            .skip(1)
            .step_by(2)
            .filter_map(|it| it.parse().ok())
            .fold(f64::INFINITY, f64::min);
        assert!(most < top, "{most} {top}");
        let places = chart.named_moments(&chart.scale());
        assert_ne!(places[0].1.row, places[1].1.row, "two names at one place");
    }

    #[test]
    fn a_name_has_one_colour_in_all_charts() {
        let mut other = chart();
        other.lines.remove(0);
        let svg = stacked(&[chart(), other.clone()]);
        let colours: Vec<&str> = svg
            .lines()
            .filter(|line| line.contains(">Boston<"))
            .filter_map(|line| line.split("class=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(colours, ["f1", "f1"]);
        assert!(svg.contains("prefers-color-scheme:dark"));
        // Alone it would have the first colour.
        assert!(other.to_svg().contains("class=\"f0\""));
    }

    #[test]
    fn error_bars_are_within_the_axes() {
        let mut chart = chart();
        chart.lines[0].errors = vec![5.0, 0.0];
        let scale = chart.scale();
        assert_eq!(scale.y, (-4.0, 6.0));
        assert_eq!(chart.to_svg().matches("<path").count(), 1);
    }
}
