//! Whether an edge of strings still has what it has put into its host, and what it needs there. A
//! thread looks, since heartbeats must not wait for the kernel's answers; the loop takes what it
//! has found, and goes on through interfaces that were made anew.

use super::{STRINGS, TransitDaemon, wire};
use crate::check::link_trouble;
use crate::config::transit::{Side, TransitConfig};
use crate::daemon::clients::{deaf, unreached};
use crate::daemon::intact::{Names, Trouble, lost_address, note_mended};
use crate::daemon::looker::Looker;
use crate::poll::Interest;
use crate::status::State;
use anyhow::Result;
use holdfast_linux::bpf::{Mended, TransitPrograms};
use holdfast_linux::link::{Link, carries};
use std::net::IpAddr;
use std::time::Instant;

/// What the thread looks at.
struct Places {
    names: Names,
    programs: TransitPrograms,
    outside: Vec<String>,
    strings: Vec<Place>,
}

/// A string's end at this edge.
struct Place {
    name: String,
    interface: String,
    address: IpAddr,
}

/// What a look has found.
pub(super) struct Found {
    mended: Mended,
    renamed: Option<Trouble>,
    unreached: Option<Trouble>,
    /// Of each string the number of its interface, and what it lacks.
    strings: Vec<(Option<u32>, Option<Trouble>)>,
}

/// Begins to look, whenever it is asked for.
pub(super) fn looker(
    config: &TransitConfig,
    side: Side,
    programs: TransitPrograms,
) -> Result<Looker<Found>> {
    let place = |string: &crate::config::transit::TransitString| {
        let end = string.end(side);
        let (interface, address) = (end.interface.clone(), end.address.ip());
        Place { name: string.name.clone(), interface, address }
    };
    let mut places = Places {
        names: Names::default(),
        programs,
        outside: config.edge(side).outside.clone(),
        strings: config.strings.iter().map(place).collect(),
    };
    Ok(Looker::start(move || places.look())?)
}

impl Places {
    /// Attaches programs again that somebody has removed, and looks whether packets still come.
    fn look(&mut self) -> Found {
        let strings = self.strings.iter().map(|string| &string.interface);
        let renamed = self.names.renamed(self.outside.iter().chain(strings));
        let unreached = unreached("outside", &self.outside, &deaf(&self.outside));
        Found {
            mended: self.programs.mend(),
            renamed,
            unreached: unreached.map(|found| Trouble::of(State::Waiting, found)),
            strings: self.strings.iter().map(Place::look).collect(),
        }
    }
}

impl Place {
    fn look(&self) -> (Option<u32>, Option<Trouble>) {
        let Self { name, interface, address } = self;
        let index = Link::by_name(interface).ok().map(|link| link.index);
        let lacks = link_trouble(interface, carries(interface).ok())
            .map(|found| of_string(name, found))
            .or_else(|| lost_address(name, *address, Some(interface)));
        (index, lacks)
    }
}

fn of_string(name: &str, (reason, remedy): (String, String)) -> Trouble {
    Trouble::of(State::Unprotected, (format!("string `{name}`: {reason}"), remedy))
}

impl TransitDaemon<'_> {
    /// Has the thread look when something has changed, and takes what it has found. Heartbeats make
    /// the loop turn often enough for that.
    pub(super) fn look(&mut self, now: Instant) {
        if self.intact.is_due(now) {
            self.looker.ask();
        }
        if let Some(found) = self.looker.take() {
            self.take_found(found);
        }
    }

    fn take_found(&mut self, found: Found) {
        let Found { mut mended, renamed, unreached, strings } = found;
        if let Err(error) = self.wire.bpf.follow(strings.iter().map(|(index, _)| *index)) {
            mended.failed = Some(error);
        }
        let torn = note_mended(mended, &mut self.wire.events);
        // All are looked at, for all are followed.
        let lacking: Vec<Trouble> = strings
            .into_iter()
            .enumerate()
            .filter_map(|(string, (index, lacks))| {
                let followed = index.map_or(Ok(()), |index| self.follow(string, index));
                lacks.or_else(|| followed.err().map(|error| self.unfollowed(string, &error)))
            })
            .collect();
        let trouble = renamed.or(unreached).or(torn).or(lacking.into_iter().next());
        self.intact.found(trouble, &mut self.wire.events);
    }

    fn unfollowed(&self, string: usize, error: &anyhow::Error) -> Trouble {
        let remedy = "look at the interface, and start this daemon again".to_owned();
        of_string(&self.wire.config.strings[string].name, (format!("{error:#}"), remedy))
    }

    /// Takes the new interface of a string, if it was made anew.
    fn follow(&mut self, string: usize, ifindex: u32) -> Result<()> {
        let end = self.wire.config.strings[string].end(self.wire.side);
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
