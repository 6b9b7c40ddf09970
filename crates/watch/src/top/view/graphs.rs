//! Connections, lag and what passes, now and in the last minutes.

use super::super::app::Watched;
use super::super::history::{Sample, Unit};
use super::super::theme::{Curve, Theme};
use super::super::words::{count, fill, width};
use super::{Section, heading};
use holdfast::status::{Role, Status, human_bytes};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span};
use ratatui::widgets::Sparkline;

const LABEL: usize = 14;
const VALUE: usize = 13;
/// The eight heights of a cell, lowest first; nothing is a line, and not an empty place, which
/// stands where nobody answered.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One number with its past.
struct Graph {
    label: String,
    value: String,
    curve: Curve,
    of: fn(&Sample) -> Option<u64>,
    unit: Unit,
    is_rate: bool,
}

impl Graph {
    fn text(&self, number: u64) -> String {
        let per = if self.is_rate { "/s" } else { "" };
        match self.unit {
            Unit::Bytes => format!("{}{per}", human_bytes(number)),
            Unit::Packets => format!("{}{per}", count(number)),
        }
    }

    /// How many of the samples there are, and what they go up to.
    fn scale(&self, group: &Watched, columns: usize) -> (usize, u64) {
        let samples: Vec<_> = group.history.newest(columns, self.of).collect();
        (samples.len(), samples.into_iter().flatten().max().unwrap_or(0))
    }
}

fn graphs(group: &Watched, status: &Status) -> Vec<Graph> {
    let mut graphs = Vec::new();
    // No client passes a witness.
    if status.role != Role::Witness {
        graphs.push(Graph {
            label: if status.role == Role::Edge { "flows" } else { "connections" }.to_owned(),
            value: String::new(),
            curve: Curve::Connections,
            of: |it| it.connections,
            unit: Unit::Packets,
            is_rate: false,
        });
    }
    if matches!(status.role, Role::Primary | Role::Backup) {
        graphs.push(Graph {
            label: "lag".to_owned(),
            value: String::new(),
            curve: Curve::Lag,
            of: |it| it.lag_bytes,
            unit: Unit::Bytes,
            is_rate: false,
        });
    }
    if let Some(rate) = group.history.rate() {
        graphs.push(Graph {
            label: rate.title.to_owned(),
            value: String::new(),
            curve: Curve::Passing,
            of: |it| it.per_second,
            unit: rate.unit,
            is_rate: true,
        });
    }
    let last = group.history.last();
    for graph in &mut graphs {
        graph.value = (graph.of)(&last).map_or("–".to_owned(), |number| graph.text(number));
    }
    graphs
}

/// One line each.
pub fn section(group: &Watched, columns: u16, theme: Theme) -> Section {
    let graphs = group.status.as_ref().map_or(Vec::new(), |status| graphs(group, status));
    let room = usize::from(columns).saturating_sub(LABEL + VALUE);
    let line = |graph: &Graph| {
        Line::from(vec![
            Span::raw(fill(&graph.label, LABEL)),
            Span::styled(fill(&graph.value, VALUE), theme.title()),
            Span::styled(curve(group, graph, room), theme.curve(graph.curve)),
        ])
    };
    Section {
        title: "now, and in the last minutes".to_owned(),
        lines: graphs.iter().map(line).collect(),
    }
}

/// A curve of one line, with its newest end at the right.
fn curve(group: &Watched, graph: &Graph, columns: usize) -> String {
    let (there, most) = graph.scale(group, columns);
    let height = |number: u64| {
        let top = HEIGHTS.len() as u64 - 1;
        // Whatever is not nothing is seen.
        let at = (u128::from(number) * u128::from(top)).div_ceil(u128::from(most.max(1)));
        HEIGHTS.get(usize::try_from(at).unwrap_or(0)).copied().unwrap_or(' ')
    };
    let curve = group.history.newest(columns, graph.of).map(|it| it.map_or(' ', height));
    " ".repeat(columns - there) + &curve.collect::<String>()
}

/// Curves of several lines, below each other.
pub fn draw_tall(frame: &mut Frame<'_>, area: Rect, group: &Watched, theme: Theme) {
    let Some(status) = &group.status else { return };
    let graphs = graphs(group, status);
    let areas = Layout::vertical(graphs.iter().map(|_| Constraint::Fill(1))).split(area);
    for (graph, area) in graphs.iter().zip(areas.iter()) {
        let [head, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(*area);
        let columns = usize::from(body.width);
        let (there, most) = graph.scale(group, columns);
        let title = format!("{}  {}", graph.label, graph.value);
        let top = format!("up to {}", graph.text(most));
        let title = match columns.checked_sub(width(&title) + width(&top) + 6) {
            Some(_) => format!("{title}  ({top})"),
            None => title,
        };
        frame.render_widget(heading(&title, area.width, theme), head);
        let absent = std::iter::repeat_n(None, columns - there);
        let data = absent.chain(group.history.newest(columns, graph.of));
        let curve = Sparkline::default()
            .data(data)
            .max(most.max(1))
            .bar_set(bar::NINE_LEVELS)
            .absent_value_symbol(" ")
            .style(theme.curve(graph.curve));
        frame.render_widget(curve, body);
    }
}
