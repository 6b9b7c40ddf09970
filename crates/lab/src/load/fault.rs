//! The moment at which something breaks, and what breaks.

use super::{Action, Fault};
use holdfast_chance::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// A fault that waits for its moment.
pub(super) struct Trigger {
    fault: Fault,
    rng: Rng,
    at_ns: Option<u64>,
    pub(super) redraws: u64,
    pub(super) fired_ns: Option<u64>,
    pub(super) outstanding: u64,
    rest: Option<JoinHandle<()>>,
}

impl Trigger {
    pub(super) fn new(fault: Fault, seed: u64) -> Self {
        Self {
            fault,
            rng: Rng::of_state(seed),
            at_ns: None,
            redraws: 0,
            fired_ns: None,
            outstanding: 0,
            rest: None,
        }
    }

    /// Starts the clock of the fault, at `now_ns`.
    pub(super) fn arm(&mut self, now_ns: u64) {
        self.at_ns = Some(now_ns + self.fault.after_us * 1000);
    }

    /// When the load must look at the fault again, in ns.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.at_ns.filter(|_| self.fired_ns.is_none())
    }

    /// Breaks the service if the moment has come and `outstanding`
    /// connections, at least one, wait for something.
    pub(super) fn poll(&mut self, now_ns: u64, outstanding: impl FnOnce() -> u64) {
        if self.due_ns().is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        self.outstanding = outstanding();
        if self.outstanding == 0 {
            self.redraws += 1;
            let later_us = self.rng.below(self.fault.redraw_us.max(1)) + 1;
            self.at_ns = Some(now_ns + later_us * 1000);
            return;
        }
        let mut steps = self.fault.steps.iter().cloned().peekable();
        self.fired_ns = Some(crate::monotonic_ns());
        // Signals cost a microsecond and are sent from here; whatever may take longer must not stop
        // the load.
        while let Some(step) = steps.next_if(|step| step.0 == 0 && is_signal(&step.1)) {
            perform(step);
        }
        let rest: Vec<_> = steps.collect();
        if !rest.is_empty() {
            self.rest = Some(std::thread::spawn(move || rest.into_iter().for_each(perform)));
        }
    }

    /// Waits for steps that are still under way.
    pub(super) fn finish(&mut self) {
        if let Some(rest) = self.rest.take() {
            // A step that panicked shows in the results, since nothing broke.
            let _ = rest.join();
        }
    }
}

fn is_signal(action: &Action) -> bool {
    matches!(action, Action::Kill(_) | Action::Stop(_) | Action::Continue(_))
}

fn send(signal: Signal, pids: &[u32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        // A process that has ended already is as good as killed.
        let _ = kill_process(pid, signal);
    }
}

/// Performs a step of a fault, with the time since the step before.
pub(super) fn perform((delay_us, action): (u64, Action)) {
    if delay_us > 0 {
        std::thread::sleep(Duration::from_micros(delay_us));
    }
    match action {
        Action::Kill(pid) => send(Signal::KILL, &[pid]),
        Action::Stop(pids) => send(Signal::STOP, &pids),
        Action::Continue(pids) => send(Signal::CONT, &pids),
        Action::Write(path, text) => {
            if let Err(error) = std::fs::write(&path, text) {
                eprintln!("the fault could not write {}: {error}", path.display());
            }
        }
        Action::Run(words) => {
            let [program, arguments @ ..] = words.as_slice() else { return };
            let status = Command::new(program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status();
            if !status.as_ref().is_ok_and(|status| status.success()) {
                eprintln!("the fault could not run {program}: {status:?}");
            }
        }
    }
}
