//! The terminal: taken over for as long as [`Screen`] lives, and given back whatever ends it.

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;
use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Signals that end a program, and would leave the terminal as it is.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// The terminal in raw mode, on its other screen. A panic gives it back before it says anything
/// (`ratatui::init` sees to that), and so does the end of this value.
pub struct Screen {
    pub terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// If there is none.
    pub fn take() -> Result<Self> {
        anyhow::ensure!(
            stdin().is_terminal() && stdout().is_terminal(),
            "this is no terminal\n  remedy: `--once` prints one frame as plain text"
        );
        let terminal = ratatui::try_init().context("the terminal cannot be used")?;
        Ok(Self { terminal })
    }

    /// Stands still as a job of the shell, and goes on when the shell says so.
    ///
    /// # Errors
    /// If the terminal is gone afterwards.
    pub fn suspend(&mut self) -> Result<()> {
        give_back();
        emulate_default_handler(SIGTSTP)?;
        self.terminal = ratatui::try_init().context("the terminal cannot be used any more")?;
        self.terminal.clear()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    ratatui::restore();
    let _gone = execute!(stdout(), Show);
}

/// The signal that has come to end this program.
#[derive(Clone, Debug)]
pub struct Ending {
    signal: Arc<AtomicUsize>,
}

impl Ending {
    /// Watches for signals from now on.
    ///
    /// # Errors
    /// If they cannot be caught.
    pub fn watch() -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in ENDING {
            let value = usize::try_from(number)?;
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        Ok(Self { signal })
    }

    /// Whether one has come.
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Ends this process by the signal that has come, so that a shell sees which; does nothing if
    /// none has.
    pub fn obey(&self) {
        if let Ok(number) = i32::try_from(self.signal.load(Ordering::Relaxed)) {
            let _lives = emulate_default_handler(number);
        }
    }
}
