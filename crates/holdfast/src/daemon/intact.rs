//! What the daemons of spread and transit groups have put into their host, or need of it: programs,
//! addresses, interfaces. It is looked at whenever the kernel reports a change; what was removed is
//! put back, and what cannot be is shown in the status, for nobody is protected by it. Members and
//! edges of pairs look for themselves, and note here what they have put back or lack.

use crate::admin::Events;
use crate::leavings::Removed;
use crate::status::{State, Status};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{Detached, Mended};
use holdfast_linux::changes::Changes;
use holdfast_linux::link::{self, Link};
use holdfast_wire::packet::mapped;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Something that the host lacks and the daemon cannot put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// State of a daemon that shows nothing worse.
    pub state: State,
    pub reason: String,
    pub remedy: String,
}

impl Trouble {
    pub fn new(state: State, reason: String, remedy: &str) -> Self {
        Self::of(state, (reason, remedy.to_owned()))
    }

    /// Of a reason and its remedy.
    pub fn of(state: State, (reason, remedy): (String, String)) -> Self {
        Self { state, reason, remedy }
    }
}

/// When to look, and what the last look found.
pub struct Intact {
    changes: Changes,
    look_at: Instant,
    trouble: Option<Trouble>,
}

/// Numbers of the interfaces that were there, by the names in the file.
#[derive(Default)]
pub struct Names(BTreeMap<String, u32>);

impl Intact {
    /// # Errors
    /// As socket(2).
    pub fn open(now: Instant) -> io::Result<Self> {
        Ok(Self { changes: Changes::open()?, look_at: now, trouble: None })
    }

    /// When [`Intact::is_due`] may say so.
    pub fn deadline(&self) -> Instant {
        self.look_at
    }

    /// Whether to look now: something has changed, or was missing. [`Intact::found`] takes the
    /// result.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        self.changes.take() || self.trouble.is_some()
    }

    /// Takes what a look has found.
    pub fn found(&mut self, trouble: Option<Trouble>, events: &mut Events) {
        note_torn(&mut self.trouble, trouble, events);
    }

    /// Lowers a status by what the host lacks. A reason that the status has already may be a
    /// consequence of that, and stands behind it.
    pub fn show(&self, status: &mut Status) {
        let Some(Trouble { state, reason, remedy }) = &self.trouble else { return };
        match status.state {
            State::Protected => status.state = *state,
            State::Unprotected if *state == State::Waiting => status.state = State::Waiting,
            // Closed by hand, whatever is missing.
            State::Fenced => return,
            _ => {}
        }
        let behind = std::mem::take(&mut status.reason);
        let both = [reason.as_str(), &behind];
        status.reason = both.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("; ");
        status.remedy.clone_from(remedy);
    }
}

impl Names {
    /// The trouble if somebody has given one of these interfaces another name. Programs and sockets
    /// stay with it, so that packets pass as before; but nothing could be put back there, and no
    /// later daemon would find it.
    pub fn renamed<'n>(&mut self, names: impl IntoIterator<Item = &'n String>) -> Option<Trouble> {
        let mut found = None;
        for name in names {
            match Link::by_name(name) {
                Ok(link) => drop(self.0.insert(name.clone(), link.index)),
                Err(_) => {
                    found = found.or(self.0.get(name).and_then(|index| renamed(name, *index)));
                }
            }
        }
        found
    }
}

/// Notes what an earlier life had left, and is gone.
pub fn note_removed(removed: &[Removed], events: &mut Events) {
    for one in removed {
        events.add("removed", one.to_string());
    }
}

/// Takes what was `found` that the host lacks, or that nothing is lacking any more; true, and an event,
/// if that is news.
pub fn note_torn(known: &mut Option<Trouble>, found: Option<Trouble>, events: &mut Events) -> bool {
    if found == *known {
        return false;
    }
    let words = found.as_ref().map_or("everything is in its place again", |it| &it.reason);
    events.add("torn", words);
    *known = found;
    true
}

/// Notes programs that were attached again.
pub fn note_missing(missing: &[Detached], events: &mut Events) {
    for one in missing {
        events.add("mended", format!("tc filter {one} {}", one.fate()));
    }
}

/// As [`note_missing`]; returns why another one could not be attached.
pub fn note_mended(mended: Mended, events: &mut Events) -> Option<Trouble> {
    note_missing(&mended.missing, events);
    let remedy = "look at the interface; if it is there, start this daemon again";
    let torn =
        |error| Trouble::new(State::Unprotected, format!("a program is gone: {error}"), remedy);
    mended.failed.map(torn)
}

/// The trouble if the interface with the number `index`, which the file calls `name`, has another
/// name now.
pub fn renamed(name: &str, index: u32) -> Option<Trouble> {
    let now = link::name_of(index)?;
    let reason = format!(
        "the interface {name} is called {now} now: packets pass, and a daemon that is started again \
         will not find it"
    );
    let remedy = format!(
        "ip link set {now} name {name}, which older kernels allow only while it is down; or write \
         {now} into the file of every host, and start this daemon again"
    );
    Some(Trouble::new(State::Unprotected, reason, &remedy))
}

/// The trouble if an address that the file gives this host, as the value of `key`, is not there.
/// It is not put back: only the host's own configuration knows its network and its routes.
pub fn lost_address(key: &str, address: IpAddr, interface: Option<&str>) -> Option<Trouble> {
    if address.is_unspecified() {
        return None;
    }
    // If the kernel does not tell, what is missing is noticed by its consequences.
    let is_there = AddressSocket::open().ok()?.is_local(&mapped(address)).ok()?;
    let reason = format!("this host has lost its address {address} ({key})");
    let remedy = match interface {
        Some(name) => format!("ip address add {address}/LENGTH dev {name}, and its routes again"),
        None => format!("give this host the address {address} again, and its routes"),
    };
    (!is_there).then_some(Trouble { state: State::Unprotected, reason, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: State, reason: &str) -> Status {
        let mut status = Status::new("g", "edge");
        (status.state, status.reason) = (state, reason.to_owned());
        status
    }

    fn lacking(state: State) -> Intact {
        let mut intact = Intact::open(Instant::now()).unwrap();
        intact.found(
            Some(Trouble::new(state, "ec is gone".into(), "ip link")),
            &mut Events::default(),
        );
        intact
    }

    #[test]
    fn what_is_missing_lowers_the_state_and_explains_what_follows_from_it() {
        let cases = [
            (State::Protected, "", State::Unprotected, "ec is gone"),
            (
                State::Unprotected,
                "one string is left",
                State::Unprotected,
                "ec is gone; one string is left",
            ),
            (State::Waiting, "no string is left", State::Waiting, "ec is gone; no string is left"),
            (State::Fenced, "closed by hand", State::Fenced, "closed by hand"),
        ];
        for (before, behind, state, reason) in cases {
            let mut status = status(before, behind);
            lacking(State::Unprotected).show(&mut status);
            assert_eq!((status.state, status.reason.as_str()), (state, reason));
        }
        let mut alone = status(State::Unprotected, "one host server");
        lacking(State::Waiting).show(&mut alone);
        assert_eq!((alone.state, alone.remedy.as_str()), (State::Waiting, "ip link"));
    }

    #[test]
    fn it_looks_at_first_and_again_while_something_is_missing() {
        let begun = Instant::now();
        let (mut intact, mut events) = (Intact::open(begun).unwrap(), Events::default());
        assert!(intact.is_due(begun) && !intact.is_due(begun));
        let gone = Trouble::new(State::Waiting, "ec is gone".into(), "ip link");
        intact.found(Some(gone.clone()), &mut events);
        intact.found(Some(gone), &mut events);
        assert!(intact.is_due(begun + LOOK_EVERY));
        intact.found(None, &mut events);
        assert_eq!(events.answer(0)["events"].as_array().map(Vec::len), Some(2));
    }

    fn ip(words: &str) {
        let done = std::process::Command::new("ip").args(words.split(' ')).status();
        assert!(done.is_ok_and(|done| done.success()), "ip {words}: it needs root");
    }

    #[test]
    fn an_interface_of_another_name_is_not_called_lost() {
        let space = format!("hfi{}", std::process::id());
        ip(&format!("netns add {space}"));
        let result = std::thread::scope(|scope| {
            let test = scope.spawn(|| {
                let place = std::path::Path::new("/run/netns").join(&space);
                holdfast_linux::netns::enter(&place).unwrap();
                ip("link add ea type veth peer name eb");
                let names = ["ea", "eb"].map(str::to_owned);
                let mut known = Names::default();
                assert_eq!(known.renamed(&names), None);
                ip("link set eb name ec");
                let told = known.renamed(&names).unwrap();
                assert!(told.reason.contains("eb is called ec now"), "{told:?}");
                assert!(told.remedy.starts_with("ip link set ec name eb"), "{told:?}");
                ip("link set ec name eb");
                assert_eq!(known.renamed(&names), None);
                ip("link del ea");
                assert_eq!(known.renamed(&names), None, "it is gone");
            });
            test.join()
        });
        ip(&format!("netns del {space}"));
        assert!(result.is_ok(), "see above");
    }

    #[test]
    fn an_address_of_another_host_is_lost_and_ones_own_is_not() {
        let lost = |ip: &str| lost_address("edge.listen", ip.parse().unwrap(), Some("e0"));
        assert_eq!(lost("127.0.0.1"), None);
        assert_eq!(lost("0.0.0.0"), None);
        let trouble = lost("192.0.2.77").unwrap();
        assert!(trouble.reason.contains("192.0.2.77 (edge.listen)"), "{trouble:?}");
        assert!(trouble.remedy.contains("dev e0"), "{trouble:?}");
    }
}
