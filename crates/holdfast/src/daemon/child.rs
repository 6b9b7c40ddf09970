//! A program beside the daemon's own, as its child. A thread starts it, and starts it again when it
//! has ended; nothing of it can harm the daemon.

use crate::daemon::placement;
use crate::poll::Signals;
use holdfast_linux::process::queue_signal;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStderr, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at whether it has ended, or may begin.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Pause before it is started again, which doubles up to [`Care::PAUSE_MAX`]; one that has lived for
/// as long as that begins anew.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Time in which it ends by itself, once it was told to.
const END_WITHIN: Duration = Duration::from_millis(300);
/// Most that is kept of its last words, in bytes.
const WORDS_BYTES_MAX: usize = 4096;
/// Stack of the thread, in bytes: all of it is locked in memory where the daemon's is.
const STACK_BYTES: usize = 128 << 10;

/// What is to be done for one child, by its thread.
pub trait Care: Send + 'static {
    /// The name of its program, which lies beside the daemon's.
    const PROGRAM: &'static str;
    /// What is missing without it, for the log.
    const WITHOUT: &'static str;
    /// Longest pause before it is started again.
    const PAUSE_MAX: Duration = Duration::from_secs(60);
    /// What ends it. It inherits that the signals which end the daemon are blocked.
    const END: libc::c_int = libc::SIGKILL;

    /// Whether it can be started now.
    fn is_due(&mut self) -> bool;

    /// Starts it, with its standard error piped.
    ///
    /// # Errors
    /// What keeps it from starting.
    fn spawn(&mut self) -> io::Result<Process>;

    /// Looks at it while it runs; false: it is to be ended, and started anew.
    fn look(&mut self) -> bool {
        true
    }

    /// Removes what it needed, once it has ended for good.
    fn clear(&mut self) {}
}

/// The child, for as long as this lives.
#[derive(Debug)]
pub struct Child {
    /// The thread ends when this is dropped.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where the program of this name is: beside the daemon's own.
pub fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

impl Child {
    /// Starts it, or says in the log why not, with the remedy: nothing that fails here keeps a
    /// daemon from its work.
    pub fn start<C: Care>(care: C) -> Option<Self> {
        let (program, without) = (beside(C::PROGRAM), C::WITHOUT);
        if !program.exists() {
            tracing::warn!(
                "{} is missing: {without}; remedy: install it beside this program (`cargo build \
                 --release --bin {}` makes it)",
                program.display(),
                C::PROGRAM
            );
            return None;
        }
        // The signals that end a daemon are for its loop: a thread inherits that they are blocked.
        let begun = Signals::block().and_then(|_blocked| {
            let (alive, over) = channel();
            let thread = std::thread::Builder::new().name(C::PROGRAM.to_owned());
            let thread = thread.stack_size(STACK_BYTES).spawn(move || {
                placement::leave();
                keep(care, &over);
            })?;
            Ok(Self { alive: Some(alive), thread: Some(thread) })
        });
        begun.inspect_err(|error| tracing::warn!("{without}: {error}")).ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Keeps the child alive until the daemon ends.
fn keep<C: Care>(mut care: C, over: &Receiver<()>) {
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    loop {
        while !care.is_due() {
            if is_over(over, LOOK_EVERY) {
                return care.clear();
            }
        }
        let begun = Instant::now();
        let words = match care.spawn() {
            Err(error) => format!("cannot start {}: {error}", C::PROGRAM),
            Ok(mut child) => {
                let said = child.stderr.take().and_then(listen);
                match wait(&mut care, &mut child, over) {
                    Left::Over => return care.clear(),
                    Left::Anew => continue,
                    Left::Ended(status) => last_words(C::PROGRAM, said, status),
                }
            }
        };
        if begun.elapsed() > C::PAUSE_MAX {
            (pause, said) = (PAUSE_MIN, String::new());
        }
        if words == said {
            tracing::debug!("{words}");
        } else {
            tracing::warn!("{}: {words}", C::WITHOUT);
            said = words;
        }
        if is_over(over, pause) {
            return care.clear();
        }
        pause = C::PAUSE_MAX.min(pause * 2);
    }
}

/// How a child was left.
enum Left {
    /// It has ended by itself.
    Ended(ExitStatus),
    /// It was ended, and is to be started anew.
    Anew,
    /// It was ended, for the daemon ends.
    Over,
}

fn wait<C: Care>(care: &mut C, child: &mut Process, over: &Receiver<()>) -> Left {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Left::Ended(status);
        }
        let is_over = is_over(over, LOOK_EVERY);
        if is_over || !care.look() {
            end(child, C::END);
            return if is_over { Left::Over } else { Left::Anew };
        }
    }
}

/// Ends it, and by force if it does not.
fn end(child: &mut Process, signal: libc::c_int) {
    let told = Instant::now();
    let _gone = queue_signal(child.id(), signal);
    while told.elapsed() < END_WITHIN && !matches!(child.try_wait(), Ok(Some(_))) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _gone = child.kill();
    let _reaped = child.wait();
}

/// Reads what it says to the end, so that it never waits for a reader, and keeps the last of it.
fn listen(mut stderr: ChildStderr) -> Option<JoinHandle<Vec<u8>>> {
    let thread = std::thread::Builder::new().name("words".to_owned()).stack_size(STACK_BYTES);
    let reads = move || {
        let (mut kept, mut bytes) = (Vec::new(), [0; 1024]);
        while let Ok(count @ 1..) = stderr.read(&mut bytes) {
            kept.extend_from_slice(&bytes[..count]);
            let old = kept.len().saturating_sub(WORDS_BYTES_MAX);
            kept.drain(..old);
        }
        kept
    };
    thread.spawn(reads).ok()
}

fn last_words(program: &str, said: Option<JoinHandle<Vec<u8>>>, status: ExitStatus) -> String {
    let words = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let words = words.trim().lines().last().unwrap_or_default();
    match words {
        "" => format!("{program} has ended ({status}); it is started again"),
        words => format!("{words} ({status})"),
    }
}

fn is_over(over: &Receiver<()>, after: Duration) -> bool {
    over.recv_timeout(after) != Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Looks so many times before it wants another one.
    struct Patience(u32);

    impl Care for Patience {
        const PROGRAM: &'static str = "some-program";
        const WITHOUT: &'static str = "nothing is done";

        fn is_due(&mut self) -> bool {
            true
        }

        fn spawn(&mut self) -> io::Result<Process> {
            Ok(run(&["sleep", "1000"]))
        }

        fn look(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 > 0
        }
    }

    fn run(words: &[&str]) -> Process {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stderr(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_child_ends_with_its_daemon_and_its_last_words_are_kept() {
        let (alive, over) = channel();
        let mut care = Patience(u32::MAX);
        let mut brief = run(&["sh", "-c", "echo no room >&2; exit 3"]);
        let Left::Ended(status) = wait(&mut care, &mut brief, &over) else { panic!("it ended") };
        let said = brief.stderr.take().and_then(listen);
        assert_eq!(last_words("it", said, status), "no room (exit status: 3)");
        let mut silent = run(&["true"]);
        let Left::Ended(status) = wait(&mut care, &mut silent, &over) else { panic!("it ended") };
        assert!(last_words("it", None, status).contains("it is started again"));
        let mut long = run(&["sleep", "1000"]);
        drop(alive);
        assert!(matches!(wait(&mut care, &mut long, &over), Left::Over));
        assert!(long.try_wait().unwrap().is_some());
    }

    #[test]
    fn one_that_talks_without_end_is_not_held_up() {
        let mut child = run(&[
            "sh",
            "-c",
            "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2",
        ]);
        let said = child.stderr.take().and_then(listen);
        let status = child.wait().unwrap();
        let words = last_words("it", said, status);
        assert!(words.starts_with("end") && words.len() < 100, "{words}");
    }

    #[test]
    fn one_that_does_not_listen_is_ended_by_force() {
        let mut child = run(&["sh", "-c", "trap '' INT; exec sleep 1000"]);
        std::thread::sleep(Duration::from_millis(100));
        end(&mut child, libc::SIGINT);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn one_that_is_not_as_it_should_be_is_started_anew() {
        let (_alive, over) = channel();
        let mut child = run(&["sleep", "1000"]);
        assert!(matches!(wait(&mut Patience(2), &mut child, &over), Left::Anew));
        assert!(child.try_wait().unwrap().is_some());
    }
}
