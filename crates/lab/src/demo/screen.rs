//! The demonstration in a terminal: a lane for each client that is drawn again ten times a second,
//! and sentences above it that stay. Where there is no terminal, or it is too small, plain lines.

use super::story::{Event, Kind};
use super::words;
use crate::load::Snapshot;
use rustix::termios::tcgetwinsize;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Longest silence where lines are plain.
const LINE_EVERY: Duration = Duration::from_millis(900);

/// Number of snapshots that a lane shows, and of which its rate is the mean of the last ones.
const SHOWN: usize = 26;
const RATE_OVER: usize = 5;

/// What a lane needs of a terminal, in characters.
const COLUMNS_MIN: u16 = 80;
const ROWS_MIN: u16 = 24;

/// Heights of the bars that show how many replies came between two snapshots.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A colour, or another way to stress a text.
#[derive(Clone, Copy, Debug)]
pub enum Ink {
    Bold,
    Dim,
    Good,
    Bad,
    Pause,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Pause => "33",
        }
    }
}

/// What is shown at the moment.
#[derive(Default)]
struct Scene {
    stage: String,
    stage_at: Option<Instant>,
    names: Vec<String>,
    lanes: Vec<Lane>,
    /// Rows that the last drawing took.
    drawn_rows: usize,
    said_at: Option<Instant>,
    is_over: bool,
    journal: Vec<Event>,
}

#[derive(Clone, Default)]
struct Lane {
    replies: u64,
    /// Replies between two snapshots, the last one last.
    steps: Vec<u64>,
    pause_ns: u64,
    has_ended: bool,
}

/// The terminal, or what stdout is in its place.
pub struct Screen {
    scene: Arc<Mutex<Scene>>,
    drawer: Option<JoinHandle<()>>,
    style: Style,
    started_ns: u64,
}

/// How stdout may be written to.
#[derive(Clone, Copy, Debug)]
struct Style {
    is_redrawn: bool,
    has_colour: bool,
}

impl Style {
    fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let is_terminal =
            stdout.is_terminal() && std::env::var_os("TERM").is_none_or(|it| it != "dumb");
        let size = tcgetwinsize(&stdout).ok();
        let is_large = size.is_some_and(|it| it.ws_col >= COLUMNS_MIN && it.ws_row >= ROWS_MIN);
        // https://no-color.org: any value but the empty one.
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        Self { is_redrawn: is_terminal && is_large, has_colour: is_terminal && !wants_none }
    }

    fn paint(self, ink: Ink, text: &str) -> String {
        if self.has_colour { format!("\x1b[{}m{text}\x1b[0m", ink.code()) } else { text.to_owned() }
    }
}

impl Screen {
    /// Takes stdout.
    pub fn start() -> Self {
        let style = Style::of_stdout();
        let scene = Arc::new(Mutex::new(Scene::default()));
        let shared = Arc::clone(&scene);
        let drawer = std::thread::spawn(move || {
            while !look(&shared).is_over {
                look(&shared).turn(style);
                std::thread::sleep(DRAW_EVERY);
            }
        });
        Self { scene, drawer: Some(drawer), style, started_ns: crate::monotonic_ns() }
    }

    /// A text in an ink, if there is colour.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        self.style.paint(ink, text)
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        let mut scene = look(&self.scene);
        scene.wipe();
        println!("{text}");
        scene.said_at = Some(Instant::now());
        scene.turn(self.style);
    }

    /// Everything that began, was done and broke so far, on one time axis.
    pub fn journal(&self) -> Vec<Event> {
        look(&self.scene).journal.clone()
    }

    /// When the axis begins, by CLOCK_MONOTONIC, in ns.
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    fn note(&self, kind: Kind, what: &str) -> f64 {
        let at_s = crate::monotonic_ns().saturating_sub(self.started_ns) as f64 / 1e9;
        look(&self.scene).journal.push(Event { at_s, kind, what: what.to_owned() });
        at_s
    }

    /// Says what begins, above all that comes of it.
    pub fn title(&self, what: &str) {
        let at_s = self.note(Kind::Act, what);
        self.say(&self.paint(Ink::Bold, &format!("\n{what} (second {at_s:.1})")));
    }

    /// Notes that what began last is over.
    pub fn over(&self) {
        self.note(Kind::Over, "");
    }

    /// Says what is being done; how long it takes is shown until something else is.
    pub fn stage(&self, what: &str) {
        self.show_stage(Kind::Step, what);
    }

    /// Says what breaks.
    pub fn blow(&self, what: &str) {
        self.show_stage(Kind::Blow, what);
    }

    fn show_stage(&self, kind: Kind, what: &str) {
        let at_s = self.note(kind, what);
        let mut scene = look(&self.scene);
        what.clone_into(&mut scene.stage);
        scene.stage_at = Some(Instant::now());
        if !self.style.is_redrawn {
            println!("  {at_s:>6.1} s  {what}");
            scene.said_at = Some(Instant::now());
        }
    }

    /// Begins with lanes of these names, which have seen nothing.
    pub fn lanes(&self, names: &[String]) {
        let mut scene = look(&self.scene);
        scene.lanes = vec![Lane::default(); names.len()];
        scene.names = names.to_vec();
    }

    /// Shows what the load says.
    pub fn snapshot(&self, snapshot: &Snapshot) {
        let mut scene = look(&self.scene);
        for (lane, now) in scene.lanes.iter_mut().zip(&snapshot.lanes) {
            lane.steps.push(now.replies.saturating_sub(lane.replies));
            if lane.steps.len() > SHOWN {
                lane.steps.remove(0);
            }
            lane.replies = now.replies;
            lane.pause_ns = now.pause_ns;
            lane.has_ended = now.has_ended;
        }
    }

    /// Leaves the lanes as they are, above what is said next.
    pub fn leave_lanes(&self) {
        let mut scene = look(&self.scene);
        scene.stage.clear();
        scene.wipe();
        let lines = scene.lines(self.style);
        println!("{}", lines.join("\n"));
        scene.lanes.clear();
        scene.said_at = Some(Instant::now());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        {
            let mut scene = look(&self.scene);
            scene.wipe();
            scene.is_over = true;
        }
        if let Some(drawer) = self.drawer.take() {
            // A drawer that panicked has drawn its last.
            let _ = drawer.join();
        }
    }
}

/// A drawer that has panicked leaves a scene that can still be shown.
fn look(scene: &Mutex<Scene>) -> MutexGuard<'_, Scene> {
    scene.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scene {
    /// Draws again or, where lines stay, says how things are if nothing has been said for a while.
    fn turn(&mut self, style: Style) {
        if style.is_redrawn {
            return self.draw(style);
        }
        if self.stage.is_empty() || self.said_at.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.said_at = Some(Instant::now());
        println!("  ... {}", self.brief());
    }

    fn draw(&mut self, style: Style) {
        let lines = self.lines(style);
        let mut text = String::new();
        if self.drawn_rows > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "\x1b[{}A\r", self.drawn_rows);
        }
        lines.iter().for_each(|line| {
            let _ = writeln!(text, "{line}\x1b[K");
        });
        text.push_str("\x1b[J");
        self.drawn_rows = lines.len();
        // A terminal that has gone away shows nothing.
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }

    /// Removes the last drawing.
    fn wipe(&mut self) {
        if self.drawn_rows > 0 {
            print!("\x1b[{}A\r\x1b[J", self.drawn_rows);
            self.drawn_rows = 0;
        }
    }

    fn stage_s(&self) -> f64 {
        self.stage_at.map_or(0.0, |at| at.elapsed().as_secs_f64())
    }

    /// How things are, in a line.
    fn brief(&self) -> String {
        let mut text = format!("{} ({:.0} s)", self.stage, self.stage_s());
        if self.lanes.iter().any(|lane| lane.replies > 0) {
            let ended = self.lanes.iter().filter(|lane| lane.has_ended).count();
            let rate: f64 = self.lanes.iter().map(Lane::rate).sum();
            let lives = self.lanes.len() - ended;
            let pause_ns = self.lanes.iter().map(|lane| lane.pause_ns).max().unwrap_or(0);
            let _ = write!(
                text,
                "; {lives} of {} connections live, {rate:.0} replies/s",
                self.lanes.len()
            );
            let _ = write!(text, ", worst pause {}", words::pause(pause_ns as f64 / 1e6));
        }
        text
    }

    fn lines(&self, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.lanes.is_empty() {
            let head = format!(
                "  {:<24} {:<SHOWN$} {:>9} {:>9}",
                "client", "replies, each 0.1 s", "a second", "pause"
            );
            lines.push(style.paint(Ink::Dim, &head));
            let lanes = self.names.iter().zip(&self.lanes);
            lines.extend(lanes.map(|(name, lane)| lane.line(name, style)));
        }
        if !self.stage.is_empty() {
            let wheel = ['|', '/', '-', '\\'][(self.stage_s() * 10.0) as usize % 4];
            let line = format!("  {wheel} {} ({:.1} s)", self.stage, self.stage_s());
            // A line that wraps would take two rows, of which only one is drawn again.
            lines.push(line.chars().take(usize::from(COLUMNS_MIN) - 1).collect());
        }
        lines
    }
}

impl Lane {
    /// Replies per second, over the last snapshots.
    fn rate(&self) -> f64 {
        let last = &self.steps[self.steps.len().saturating_sub(RATE_OVER)..];
        let seconds = last.len() as f64 * DRAW_EVERY.as_secs_f64();
        if last.is_empty() { 0.0 } else { last.iter().sum::<u64>() as f64 / seconds }
    }

    fn line(&self, name: &str, style: Style) -> String {
        let most = self.steps.iter().copied().max().unwrap_or(0).max(1);
        let bar = |step: &u64| match step {
            0 => ' ',
            step => BARS[((step * 7).div_ceil(most) as usize).min(7)],
        };
        let bars: String = self.steps.iter().map(bar).collect();
        let pause = match self.pause_ns > 0 {
            true => words::pause(self.pause_ns as f64 / 1e6),
            false => "-".to_owned(),
        };
        let (ink, state) = if self.has_ended { (Ink::Bad, "RESET") } else { (Ink::Good, "alive") };
        format!(
            "  {name:<24} {} {:>9.0} {} {}",
            style.paint(ink, &format!("{bars:<SHOWN$}")),
            self.rate(),
            style.paint(Ink::Pause, &format!("{pause:>9}")),
            style.paint(ink, state)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { is_redrawn: false, has_colour: false };

    fn scene() -> Scene {
        let lane =
            Lane { replies: 90, steps: vec![10, 0, 40], pause_ns: 4_200_000, has_ended: false };
        let ended = Lane { has_ended: true, ..lane.clone() };
        let names = vec!["counts".to_owned(), "uploads".to_owned()];
        let stage = "It is dead".to_owned();
        Scene { lanes: vec![lane, ended], names, stage, ..Scene::default() }
    }

    #[test]
    fn lines_fit_and_have_colour_only_where_it_is_wanted() {
        let plain = Scene { stage: "long ".repeat(40), ..scene() }.lines(PLAIN);
        assert_eq!(plain.len(), 4);
        assert!(
            plain.iter().all(|line| line.chars().count() < usize::from(COLUMNS_MIN)),
            "{plain:?}"
        );
        assert!(plain.iter().all(|line| !line.contains('\x1b')));
        assert!(plain[1].contains("4.2 ms") && plain[1].ends_with("alive"), "{plain:?}");
        assert!(plain[2].ends_with("RESET"), "{plain:?}");
        let coloured = scene().lines(Style { has_colour: true, ..PLAIN });
        assert!(coloured[2].contains("\x1b[1;31mRESET\x1b[0m"), "{coloured:?}");
    }

    #[test]
    fn a_line_tells_what_the_lanes_would() {
        let brief = scene().brief();
        let wanted = "; 1 of 2 connections live, 333 replies/s, worst pause 4.2 ms";
        assert!(brief.starts_with("It is dead (0 s)") && brief.ends_with(wanted), "{brief}");
    }
}
