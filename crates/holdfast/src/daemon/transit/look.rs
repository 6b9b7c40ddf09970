//! Whether an edge of strings still has what it has put into its host, and what it needs there.

use super::{STRINGS, TransitDaemon, wire};
use crate::check::link_trouble;
use crate::daemon::clients::{deaf, unreached};
use crate::daemon::intact::{Trouble, lost_address, note_mended};
use crate::poll::Interest;
use crate::status::State;
use anyhow::Result;
use holdfast_linux::link::{Link, carries};
use std::time::Instant;

impl TransitDaemon<'_> {
    /// Attaches programs again that somebody has removed, goes on through interfaces that were
    /// made anew, and looks whether packets still come.
    pub(super) fn look(&mut self, now: Instant) {
        if !self.intact.is_due(now) {
            return;
        }
        let torn = note_mended(self.wire.bpf.mend(), &mut self.wire.events);
        let outside = &self.wire.config.edge(self.wire.side).outside;
        let trouble = unreached("outside", outside, &deaf(outside))
            .map(|found| Trouble::of(State::Waiting, found))
            .or(torn);
        let strings = 0..self.wire.config.strings.len();
        // All are looked at, for all are mended.
        let lacking = strings.filter_map(|string| self.look_at(string)).collect::<Vec<_>>();
        let trouble = trouble.or(lacking.into_iter().next());
        self.intact.found(trouble, &mut self.wire.events);
    }

    /// What a string lacks at this edge.
    fn look_at(&mut self, string: usize) -> Option<Trouble> {
        let it = &self.wire.config.strings[string];
        let (name, end) = (&it.name, it.end(self.wire.side));
        let of_string = |(reason, remedy): (String, String)| {
            Trouble::of(State::Unprotected, (format!("string `{name}`: {reason}"), remedy))
        };
        let followed = self.follow(string);
        link_trouble(&end.interface, carries(&end.interface).ok())
            .map(of_string)
            .or_else(|| lost_address(name, end.address.ip(), Some(&end.interface)))
            .or_else(|| {
                let remedy = "look at the interface, and start this daemon again".to_owned();
                followed.err().map(|error| of_string((format!("{error:#}"), remedy)))
            })
    }

    /// Takes the new interface of a string, if it was made anew.
    fn follow(&mut self, string: usize) -> Result<()> {
        let end = self.wire.config.strings[string].end(self.wire.side);
        let ifindex = Link::by_name(&end.interface)?.index;
        if self.wire.lines.is_at(string, ifindex) {
            return Ok(());
        }
        let exit = wire::exit(&end.interface)?;
        let socket = self.wire.lines.follow(string, end, ifindex)?;
        self.poll.add(socket, STRINGS + string as u64, Interest::Read)?;
        self.wire.exits[string] = exit;
        let what = format!("{} was made anew: its string uses the new one", end.interface);
        self.wire.events.add("mended", what);
        Ok(())
    }
}
