//! The demonstration: a real redis-server under load dies as it is, and all its clients are cut off;
//! then it dies three times behind Holdfast, in three ways and at random moments, and every byte of
//! every client is checked. With `--all` the connections of one load live through everything instead
//! (`whole`). It tells the story, draws it, and is successful only if all was right.

mod death;
mod lanes;
mod page;
mod screen;
mod story;
mod whole;
mod words;

use crate::bench::faults::FaultKind;
use anyhow::{Context as _, Result};
use death::{Death, names, protected, unprotected};
use holdfast_program::DemoArgs;
use screen::{Ink, Screen};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use words::{Headline, moment, pause, summary};

/// Number of columns of the line on which a death's moments stand.
const TIMELINE_COLUMNS: f64 = 24.0;

/// The deaths with Holdfast.
const DEATHS: [(FaultKind, &str); 3] = [
    (FaultKind::Kill9, "kill -9 of the server"),
    (FaultKind::Kill9All, "kill -9 of the server and of Holdfast beside it"),
    (FaultKind::LinkCut, "the primary's cable is cut"),
];

/// Runs the demonstration and tells its story on stdout.
///
/// # Errors
/// When a pair cannot be built or the plot not be written. A wrong byte is no
/// error but exit code 1.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    try_out(&args.output)?;
    let drawn = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |it| it.subsec_nanos());
    let seed = args.seed.unwrap_or_else(|| u64::from(drawn()));
    let screen = Screen::start();
    let (text, is_good) = match args.all {
        true => whole(args, seed, &screen)?,
        false => deaths(args, seed, &screen)?,
    };
    std::fs::write(&args.output, text)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    let verdict =
        if is_good { "Every byte of every client was right." } else { "NOT all was right." };
    screen.say(&format!("{verdict} The drawing: {}", args.output.display()));
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the drawing is to stand alone.
fn is_svg(args: &DemoArgs) -> bool {
    args.output.extension().is_some_and(|it| it == "svg")
}

/// All deaths; returns what is to be written, and whether all was right.
fn deaths(args: &DemoArgs, seed: u64, screen: &Screen) -> Result<(String, bool)> {
    screen.say(&format!(
        "{} clients count, upload, download, publish and wait at a redis-server that nobody changed.\n\
         It dies: first as it is, then three times behind Holdfast. (seed {seed})",
        names().len()
    ));
    let mut deaths = vec![bare(seed, screen)?];
    for (index, (kind, title)) in DEATHS.into_iter().enumerate() {
        let own_seed = seed.wrapping_add(index as u64);
        let death = || protected(kind, title, own_seed, screen);
        deaths.push(told(screen, index + 1, title, death)?);
    }
    let again = format!("holdfast demo --seed {seed}");
    let text = match is_svg(args) {
        true => lanes::document(&deaths),
        false => page::page(&deaths, &screen.journal(), &again),
    };
    screen.say(&result(screen, &Headline::of(&deaths)));
    Ok((text, deaths.iter().all(|death| death.failure.is_none())))
}

/// The death without Holdfast, and then all acts with the connections of one load; returns as
/// [`deaths`].
fn whole(args: &DemoArgs, seed: u64, screen: &Screen) -> Result<(String, bool)> {
    let names = whole::names();
    screen.say(&format!(
        "First a redis-server dies as it is. Then {} clients of another one live through everything that \
         Holdfast is for,\non one way and in one run. (seed {seed})",
        names.len()
    ));
    let bare = bare(seed, screen)?;
    screen.title("The run: one way, one load");
    screen.lanes(&names);
    let whole = whole::play(seed, screen, |act| screen.say(&numbers(screen, act)))?;
    screen.leave_lanes();
    let again = format!("holdfast demo --all --seed {seed}");
    let text = match is_svg(args) {
        true => whole::document(&whole),
        false => whole::page(&whole, &bare, &again),
    };
    screen.say(&result(screen, &whole.headline(&bare)));
    screen.say(&whole.summary());
    Ok((text, whole.failure().is_none()))
}

/// The death without Holdfast.
fn bare(seed: u64, screen: &Screen) -> Result<Death> {
    let title = DEATHS[0].1;
    told(screen, 0, title, || unprotected(title, seed, screen))
}

/// Runs one death and tells it.
fn told(
    screen: &Screen,
    number: usize,
    title: &str,
    death: impl FnOnce() -> Result<Death>,
) -> Result<Death> {
    let with = if number == 0 { "without Holdfast" } else { "with Holdfast" };
    screen.title(&format!("Death {number}, {with}: {title}"));
    screen.lanes(&names());
    let death = death()?;
    screen.over();
    screen.leave_lanes();
    screen.say(&story(screen, &death));
    Ok(death)
}

/// What happened when, and what came of it.
fn story(screen: &Screen, death: &Death) -> String {
    let last_ms = death.moments.last().map_or(1.0, |moment| moment.0).max(0.001);
    let line = |&(ms, what): &(f64, _)| {
        let column = (ms.max(0.0) / last_ms * TIMELINE_COLUMNS) as usize;
        let rest = TIMELINE_COLUMNS as usize - column;
        format!("  {ms:>7.2} ms {:>column$}*{:rest$} {}", "", "", moment(what).1)
    };
    let mut lines: Vec<String> = death.moments.iter().map(line).collect();
    let is_good = death.is_protected && death.failure.is_none();
    let ink = if is_good { Ink::Good } else { Ink::Bad };
    lines.push(format!("  {}", screen.paint(ink, &summary(death))));
    lines.join("\n")
}

/// An act in numbers, without Holdfast's part and with it.
fn numbers(screen: &Screen, act: &whole::Act) -> String {
    let pause = format!("  Longest wait of any connection: {}.", pause(act.pause_ms));
    let mut lines = vec![format!("  {}", act.story), screen.paint(Ink::Good, &pause)];
    if !act.rows.is_empty() {
        lines.push(format!("  {:<72} {:>10} {:>10}", "", "without", "with"));
    }
    for (what, without, with) in &act.rows {
        let (without, with) = (format!("{without:>10}"), format!("{with:>10}"));
        let (without, with) = (screen.paint(Ink::Bad, &without), screen.paint(Ink::Good, &with));
        lines.push(format!("  {what:<72} {without} {with}"));
    }
    if let Some(failure) = &act.failure {
        lines.push(format!("  {}", screen.paint(Ink::Bad, &format!("WRONG: {failure}"))));
    }
    lines.join("\n")
}

/// The result of all deaths, in large figures, and in words.
fn result(screen: &Screen, it: &Headline) -> String {
    let (with, without) = (large(it.with), large(it.without));
    let width = with[0].chars().count().max(14) + 6;
    let mut lines = vec![String::new(), format!("  {:<width$}{}", "with Holdfast", "without")];
    for (left, right) in with.iter().zip(&without) {
        let pad = width - left.chars().count();
        let (left, right) = (screen.paint(Ink::Good, left), screen.paint(Ink::Bad, right));
        lines.push(format!("  {left}{:pad$}{right}", ""));
    }
    let ((lived, all), (lived_without, all_without)) = (it.with, it.without);
    let first = format!("With Holdfast: {lived} of {all} {}", it.words);
    let second = format!("Without: {lived_without} of {all_without} connections lived");
    lines.push(String::new());
    lines.push(format!("  {}", screen.paint(Ink::Bold, &first)));
    lines.push(format!("  {}", screen.paint(Ink::Bold, &second)));
    lines.push(String::new());
    lines.join("\n")
}

/// `14 of 14` in figures of three rows.
fn large((lived, all): (usize, usize)) -> [String; 3] {
    let text = format!("{lived} of {all}");
    [0, 1, 2].map(|row| text.chars().map(|it| glyph(it)[row]).collect::<Vec<_>>().join(""))
}

fn glyph(of: char) -> [&'static str; 3] {
    match of {
        '0' => ["┏━┓", "┃ ┃", "┗━┛"],
        '1' => [" ╺┓", "  ┃", "  ╹"],
        '2' => ["╺━┓", "┏━┛", "┗━╸"],
        '3' => ["╺━┓", " ━┫", "╺━┛"],
        '4' => ["╻ ╻", "┗━┫", "  ╹"],
        '5' => ["┏━╸", "┗━┓", "╺━┛"],
        '6' => ["┏━╸", "┣━┓", "┗━┛"],
        '7' => ["╺━┓", "  ┃", "  ╹"],
        '8' => ["┏━┓", "┣━┫", "┗━┛"],
        '9' => ["┏━┓", "┗━┫", "╺━┛"],
        'o' => ["   ", "┏┓ ", "┗┛ "],
        'f' => ["┏╸ ", "┣╸ ", "╹  "],
        _ => ["  ", "  ", "  "],
    }
}

/// Looks whether the plot could be written, before anybody waits for it. What is there stays.
fn try_out(plot: &Path) -> Result<()> {
    let is_there = plot.exists();
    let made = OpenOptions::new().append(true).create(true).open(plot);
    made.with_context(|| format!("cannot write {}", plot.display()))?;
    if !is_there {
        std::fs::remove_file(plot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::takeover::second_of_day;
    use death::tests::death;

    #[test]
    fn the_story_has_the_moments_in_order_and_the_end() {
        let told = story(&Screen::start(), &death(true));
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with("     0.00 ms *") && lines[0].ends_with("The primary dies."));
        assert!(lines[5].contains("4.00 ms") && lines[5].contains('*'), "{told}");
        assert!(lines[6].contains("14 of 14 connections lived"), "{told}");
    }

    #[test]
    fn the_result_is_in_words_too() {
        let all = [death(false), death(true), death(true)];
        let told = result(&Screen::start(), &Headline::of(&all));
        let with =
            "With Holdfast: 14 of 14 connections lived in each of 2 deaths; worst pause 4.3 ms";
        assert!(told.contains(with), "{told}");
        assert!(told.contains("Without: 0 of 14 connections lived"), "{told}");
    }

    #[test]
    fn times_of_day_are_read() {
        assert_eq!(second_of_day("2026-11-21T01:02:03.500000Z"), Some(3723.5));
        for text in ["", "2026-11-21", "2026-11-21T01:02Z", "2026-11-21Tone:02:03Z"] {
            assert_eq!(second_of_day(text), None, "{text}");
        }
    }

    #[test]
    fn a_plot_that_could_not_be_written_is_refused_at_once() {
        let error = try_out(Path::new("/nosuch/x.html")).expect_err("there is no folder");
        assert_eq!(error.to_string(), "cannot write /nosuch/x.html");
        let plot = std::env::temp_dir().join(format!("holdfast-plot-{}.svg", std::process::id()));
        try_out(&plot).expect("it can be written");
        assert!(!plot.exists(), "nothing is left");
        std::fs::write(&plot, "old").expect("a file");
        try_out(&plot).expect("it can be written");
        assert_eq!(std::fs::read_to_string(&plot).expect("a file"), "old");
        std::fs::remove_file(plot).expect("a file");
    }
}
