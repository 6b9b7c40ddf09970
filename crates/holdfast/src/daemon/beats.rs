//! Heartbeats between the members, as both their loops send and judge them.

use holdfast_cluster::detector::DetectorOutput;
use holdfast_wire::message::Message;

/// Heartbeats go out through the channel; verdicts are kept for the loop.
pub struct Beats<'a> {
    pub peer: &'a mut dyn FnMut(&Message<'_>),
    pub executed: u64,
    pub declared: &'a mut bool,
}

impl DetectorOutput for Beats<'_> {
    fn beat(&mut self, number: u64, echo: u64) {
        (self.peer)(&Message::Beat { number, echo, executed: self.executed });
    }
    fn suspected(&mut self) {}
    fn trusted(&mut self) {}
    fn declared(&mut self) {
        *self.declared = true;
    }
}
