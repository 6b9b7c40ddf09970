//! A member's request to be current: repeated until the edge has decided, because
//! the edge may be away, start anew, or have a disk that fails.

use crate::nanos;
use holdfast_cluster::Nanos;
use holdfast_wire::message::{FlowBounds, Message};
use std::time::Duration;

/// A member's request to be current in the next epoch, repeated until the edge has decided.
///
/// # Contract
/// Call [`EpochRequest::settle`] after the messages of each turn.
#[derive(Clone, Debug)]
pub struct EpochRequest {
    /// The epoch that is asked for.
    wanted: u64,
    every: Nanos,
    /// Whether the member follows the current one; else it is that, and its server
    /// lives.
    in_step: bool,
    asked_at: Option<Nanos>,
    granted: bool,
    refused: Option<String>,
    waits: Option<String>,
    bounds: Vec<FlowBounds>,
    bounds_last: bool,
}

impl EpochRequest {
    /// A request for the epoch after `ours`.
    #[must_use]
    pub fn new(ours: u64, every: Duration, in_step: bool) -> Self {
        Self {
            wanted: ours + 1,
            every: nanos(every),
            in_step,
            asked_at: None,
            granted: false,
            refused: None,
            waits: None,
            bounds: Vec::new(),
            bounds_last: false,
        }
    }

    /// Takes a message from the edge.
    pub fn handle_message(&mut self, message: &Message<'_>) {
        match message {
            // A grant for the old epoch only opens an edge that has restarted.
            Message::Granted { epoch } => self.granted |= *epoch == self.wanted,
            // The reason may be a full disk, say; nobody else becomes current meanwhile, so nothing
            // is lost.
            Message::Refused { reason, again: true } => self.waits = Some((*reason).to_owned()),
            Message::Refused { reason, .. } => self.refused = Some((*reason).to_owned()),
            Message::Bounds { flows, last } => {
                self.bounds.extend(flows);
                self.bounds_last |= *last;
            }
            _ => {}
        }
    }

    /// Asks if it is time and there is a channel, or at once if the channel has just `opened`.
    pub fn settle(
        &mut self,
        now: Nanos,
        (is_open, opened): (bool, bool),
        say: &mut dyn FnMut(&Message<'_>),
    ) {
        let due = opened || self.next_deadline().is_none_or(|at| now >= at);
        if self.granted || !is_open || !due {
            return;
        }
        let epoch = self.wanted;
        if self.in_step {
            // An edge that was restarted does not know who is in step.
            say(&Message::InStep { epoch: epoch - 1, yes: true });
            say(&Message::Promote { epoch });
        } else {
            say(&Message::GoAlone { epoch });
        }
        self.asked_at = Some(now);
    }

    /// When to ask again; `None`: as soon as there is a channel.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.asked_at.map(|at| at.plus(self.every))
    }

    /// The epoch, once it is this member's.
    #[must_use]
    pub fn granted(&self) -> Option<u64> {
        self.granted.then_some(self.wanted)
    }

    /// Why the epoch will never be this member's.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }

    /// Why the epoch is not this member's yet.
    pub fn take_waits(&mut self) -> Option<String> {
        self.waits.take()
    }

    /// The flows' bounds that the edge has sent so far, and whether they are
    /// complete.
    pub fn take_bounds(&mut self) -> Option<(Vec<FlowBounds>, bool)> {
        let any = self.bounds_last || !self.bounds.is_empty();
        any.then(|| (std::mem::take(&mut self.bounds), std::mem::take(&mut self.bounds_last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(50);

    fn said(request: &mut EpochRequest, ms: u64, channel: (bool, bool)) -> Vec<String> {
        let mut lines = Vec::new();
        request.settle(Nanos::from_ms(ms), channel, &mut |message| {
            lines.push(format!("{message:?}"));
        });
        lines
    }

    #[test]
    fn it_is_said_again_until_it_is_granted() {
        let mut request = EpochRequest::new(3, EVERY, true);
        let both = ["InStep { epoch: 3, yes: true }", "Promote { epoch: 4 }"];
        assert!(said(&mut request, 0, (false, false)).is_empty(), "no channel");
        assert_eq!(said(&mut request, 1, (true, false)), both);
        assert!(said(&mut request, 50, (true, false)).is_empty());
        assert_eq!(said(&mut request, 51, (true, false)), both);
        assert_eq!(said(&mut request, 52, (true, true)), both, "another life of the edge");
        request.handle_message(&Message::Granted { epoch: 3 });
        assert_eq!(request.granted(), None, "the old one");
        request.handle_message(&Message::Granted { epoch: 4 });
        assert_eq!(request.granted(), Some(4));
        assert!(said(&mut request, 500, (true, true)).is_empty());
    }

    #[test]
    fn who_goes_on_alone_is_not_in_step_with_anybody() {
        let mut request = EpochRequest::new(3, EVERY, false);
        assert_eq!(said(&mut request, 0, (true, false)), ["GoAlone { epoch: 4 }"]);
    }

    #[test]
    fn what_may_pass_is_no_refusal() {
        let mut request = EpochRequest::new(3, EVERY, true);
        request.handle_message(&Message::Refused { reason: "disk", again: true });
        assert_eq!(request.take_refused(), None);
        assert_eq!(request.take_waits().as_deref(), Some("disk"));
        request.handle_message(&Message::Refused { reason: "stale", again: false });
        assert_eq!(request.take_refused().as_deref(), Some("stale"));
        assert!(request.take_bounds().is_none());
        request.handle_message(&Message::Bounds { flows: Vec::new(), last: true });
        assert_eq!(request.take_bounds(), Some((Vec::new(), true)));
        assert!(request.take_bounds().is_none(), "once");
    }
}
