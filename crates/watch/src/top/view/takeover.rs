//! The last takeover: where its time went.

use super::super::app::Watched;
use super::super::theme::Theme;
use super::super::words::{clock, day, fill, short, width};
use super::Section;
use holdfast::status::{Phases, Takeover, counted, human_us};
use ratatui::text::{Line, Span};

/// What a bar is made of; two that touch differ without colours, too.
const INKS: [&str; 2] = ["█", "▒"];
const NAME: usize = 9;
const TIME: usize = 10;

/// One phase, in µs since the primary's last sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    name: &'static str,
    from: u64,
    to: u64,
}

/// The phases in the order in which they happen. Fence and drain go on at the same time, the rest
/// one after the other.
fn parts(phases: &Phases) -> Vec<Part> {
    let mut at = 0_u64;
    let mut parts = Vec::new();
    let mut both = 0;
    for (name, took) in phases.named() {
        if name == "probe" {
            at = at.saturating_add(both);
        }
        let to = at.saturating_add(took);
        parts.push(Part { name, from: at, to });
        match name {
            "fence" | "drain" => both = both.max(took),
            _ => at = to,
        }
    }
    parts
}

fn end(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.to).max().unwrap_or(0)
}

fn title(takeover: &Takeover) -> String {
    let pause = end(&parts(&takeover.phases_us));
    let Takeover { cause, connections, at, .. } = takeover;
    let (day, clock) = (day(at), clock(at));
    let connections = counted(*connections, "connection");
    format!("last takeover {day} {clock}, {}: {cause} ({connections})", human_us(pause))
}

/// One bar, and the times below it.
pub fn bar(group: &Watched, columns: u16, theme: Theme) -> Option<Section> {
    let takeover = group.status.as_ref()?.last_takeover.as_ref()?;
    let columns = usize::from(columns);
    let parts = parts(&takeover.phases_us);
    let mut lines = vec![stacked(&joined(&parts), columns, theme)];
    lines.extend(legend(&parts, columns, theme));
    Some(Section { title: title(takeover), lines })
}

/// The same with fence and drain as one part, named by the longer one.
fn joined(parts: &[Part]) -> Vec<(usize, Part)> {
    let of = |name| parts.iter().find(|part| part.name == name).map_or(0, |part| part.to);
    let shorter = if of("fence") > of("drain") { "drain" } else { "fence" };
    parts.iter().copied().enumerate().filter(|(_, part)| part.name != shorter).collect()
}

/// Parts beside each other, as long as they took; whatever took some time is seen.
fn stacked(parts: &[(usize, Part)], columns: usize, theme: Theme) -> Line<'static> {
    let all = parts.iter().map(|(_, part)| part.to).max().unwrap_or(0).max(1);
    let mut taken = 0;
    let spans = parts.iter().enumerate().filter(|(_, (_, part))| part.to > part.from).map(
        |(place, (number, part))| {
            let till = column(part.to, all, columns);
            let wide = till.saturating_sub(taken).max(1).min(columns.saturating_sub(taken));
            taken += wide;
            Span::styled(INKS[place % INKS.len()].repeat(wide), theme.phase(*number))
        },
    );
    Line::from(spans.collect::<Vec<_>>())
}

fn column(at: u64, all: u64, columns: usize) -> usize {
    let column = u128::from(at) * columns as u128 / u128::from(all.max(1));
    usize::try_from(column).unwrap_or(columns).min(columns)
}

fn legend(parts: &[Part], columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    let mut taken = 0;
    for (number, part) in parts.iter().enumerate() {
        let text = format!("{} {}   ", part.name, human_us(part.to - part.from));
        let wide = width(&text) + 2;
        if taken > 0 && taken + wide > columns + 3 {
            lines.push(Vec::new());
            taken = 0;
        }
        taken += wide;
        if let Some(line) = lines.last_mut() {
            line.push(Span::styled("■ ".to_owned(), theme.phase(number)));
            line.push(Span::raw(text));
        }
    }
    lines.into_iter().map(Line::from).collect()
}

/// A row for each phase, from when it began to when it ended.
pub fn rows(group: &Watched, columns: u16, theme: Theme) -> Option<Section> {
    let takeover = group.status.as_ref()?.last_takeover.as_ref()?;
    let parts = parts(&takeover.phases_us);
    let all = end(&parts);
    let room = usize::from(columns).saturating_sub(NAME + TIME);
    let row = |(number, part): (usize, &Part)| {
        let from = column(part.from, all, room).min(room.saturating_sub(1));
        let wide = column(part.to, all, room).saturating_sub(from);
        let wide = if part.to > part.from { wide.max(1) } else { 0 };
        let took = human_us(part.to - part.from);
        Line::from(vec![
            Span::raw(fill(part.name, NAME)),
            Span::raw(fill(&took, TIME)),
            Span::raw(" ".repeat(from)),
            Span::styled(INKS[0].repeat(wide), theme.phase(number)),
        ])
    };
    let lines = parts.iter().enumerate().map(row).collect();
    Some(Section { title: short(&title(takeover), usize::from(columns)), lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: Phases = Phases {
        detect: 3000,
        fence: 400,
        drain: 900,
        probe: 200,
        repair: 300,
        address: 100,
        kick: 50,
    };

    #[test]
    fn fence_and_drain_begin_together() {
        let parts = parts(&PHASES);
        let of = |name| parts.iter().find(|it| it.name == name).map(|it| (it.from, it.to));
        assert_eq!((of("detect"), of("fence")), (Some((0, 3000)), Some((3000, 3400))));
        assert_eq!((of("drain"), of("probe")), (Some((3000, 3900)), Some((3900, 4100))));
        assert_eq!((of("kick"), end(&parts)), (Some((4500, 4550)), 4550));
        assert_eq!(joined(&parts).len(), 6);
        assert!(joined(&parts).iter().all(|(_, part)| part.name != "fence"));
    }

    #[test]
    fn a_bar_has_exactly_its_length_and_every_phase_is_seen() {
        let theme = Theme { has_colour: false };
        let tiny = Phases { detect: 1_000_000, kick: 1, repair: 1, ..Phases::default() };
        let longest = Phases { detect: u64::MAX, fence: u64::MAX, ..Phases::default() };
        for (phases, seen) in [(PHASES, 6), (tiny, 3), (longest, 1), (Phases::default(), 0)] {
            for columns in [80, 20] {
                let bar = stacked(&joined(&parts(&phases)), columns, theme);
                assert_eq!(bar.spans.len(), seen, "{phases:?}");
                assert!(bar.width() <= columns, "{}", bar.width());
            }
        }
    }
}
