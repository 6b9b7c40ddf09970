//! Colours, on terminals of any background and on those without colours.
//!
//! Only the terminal's own sixteen colours are used, text stands in its own foreground or in black
//! and white on a coloured ground, and nothing is told by colour alone.

use holdfast::status::State;
use ratatui::style::{Color, Modifier, Style};

/// How things look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Whether colours may be used.
    pub has_colour: bool,
}

/// What a curve shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    Connections,
    Lag,
    Passing,
}

/// Colours of a takeover's phases, so that no two that touch are alike.
const PHASES: [Color; 7] = [
    Color::Yellow,
    Color::Magenta,
    Color::LightBlue,
    Color::Cyan,
    Color::Green,
    Color::LightRed,
    Color::LightMagenta,
];

impl Theme {
    /// A state's word on its ground.
    #[must_use]
    pub fn state(self, state: State) -> Style {
        match state {
            State::Protected => self.ground(Color::Black, Color::Green),
            State::Waiting | State::Ended => self.ground(Color::Black, Color::Yellow),
            State::Unprotected | State::Diverged | State::Hung | State::Fenced => {
                self.ground(Color::White, Color::Red)
            }
        }
    }

    /// The word that a daemon is away, and other alarms.
    #[must_use]
    pub fn alarm(self) -> Style {
        self.ground(Color::White, Color::Red)
    }

    /// Something that is not as it should be, in running text.
    #[must_use]
    pub fn bad(self) -> Style {
        self.ink(Color::Red).add_modifier(Modifier::BOLD)
    }

    #[must_use]
    pub fn curve(self, curve: Curve) -> Style {
        self.ink(match curve {
            Curve::Connections => Color::Green,
            Curve::Lag => Color::Magenta,
            Curve::Passing => Color::LightBlue,
        })
    }

    /// A phase of a takeover, by its place in the order.
    #[must_use]
    pub fn phase(self, number: usize) -> Style {
        self.ink(PHASES[number % PHASES.len()])
    }

    /// Headings.
    #[must_use]
    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What is less important than the rest.
    #[must_use]
    pub fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The group that is chosen, and keys.
    #[must_use]
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn ink(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn ground(self, text: Color, ground: Color) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        match self.has_colour {
            true => style.fg(text).bg(ground),
            false => style.add_modifier(Modifier::REVERSED),
        }
    }
}
