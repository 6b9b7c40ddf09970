//! The hands of the machine that watches a pair's segment: its frames, with a tag that only the
//! group's key makes, and what the kernel does with clients' frames for the other member.

use super::proven::{TAG_BYTES, is_tag, tag};
use crate::config::{Config, Mac, Member, Segment as Table};
use crate::key::{GroupKey, Keyring, Secrets};
use holdfast_cluster::Nanos;
use holdfast_linux::bpf;
use holdfast_linux::frame::{FrameSender, Hop};
use holdfast_linux::link::Link;
use holdfast_linux::way;
use holdfast_member::segment::{Fault, Relay, Segment, View};
use holdfast_wire::segment::{self, BYTES, Frame, Kind, Mode};

const EVERYBODY: [u8; 6] = [0xff; 6];
/// What a frame's tag is for: no datagram of the lease or the witness is taken for one.
const LABEL: &[u8] = b"segment";

/// See the module.
pub struct Watch {
    machine: Segment,
    programs: bpf::Speak,
    /// What the kernel was told last; `None`: an earlier daemon may have told it something.
    relay: Option<Relay>,
    sender: FrameSender,
    keyring: Keyring,
    /// The other member's name.
    other: String,
    interface: String,
    mode: Mode,
    mac: Mac,
    side: u8,
    number: u64,
    counters: Vec<(&'static str, u64)>,
    /// Number of frames of this kind that the other member's daemon has not made, or that are of
    /// another version.
    foreign: u64,
}

impl Watch {
    /// # Errors
    /// When the socket cannot be opened.
    pub fn new(
        config: &Config,
        (table, me): (&Table, &Member),
        key: &Keyring,
        programs: bpf::Speak,
    ) -> anyhow::Result<Self> {
        let side = config.members.iter().position(|it| it.name == me.name).unwrap_or(0) as u8;
        Ok(Self {
            machine: Segment::new(table.mode, side, Nanos(0)),
            programs,
            relay: None,
            sender: FrameSender::open()?,
            keyring: key.clone(),
            other: config.other(me).name.clone(),
            interface: me.interface.clone(),
            mode: table.mode,
            mac: table.mac,
            side,
            number: 0,
            counters: Vec::new(),
            foreign: 0,
        })
    }

    /// Takes the payload of a frame, if a member has made it; whether one has.
    pub fn hear(&mut self, now: Nanos, payload: &[u8]) -> bool {
        let frame = opened(payload, &self.keyring.with(&self.other));
        if let Some(frame) = &frame {
            self.machine.handle_frame(now, frame);
        }
        self.foreign += u64::from(frame.is_none() && segment::is_one(payload));
        frame.is_some()
    }

    /// When [`Watch::turn`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.machine.next_deadline()
    }

    /// Does what is due.
    pub fn turn(&mut self, now: Nanos, view: &View) {
        let (relay, kinds) = self.machine.turn(now, view);
        // Before the switch sends frames here, the kernel knows where they go on to.
        if self.relay != Some(relay) {
            match self.programs.set_relay(told(relay)) {
                Ok(()) => self.relay = Some(relay),
                // It is tried again, and nothing said that would bring frames here meanwhile.
                Err(error) => {
                    tracing::warn!(
                        "clients' frames do not reach the other member by this host: {error}"
                    );
                    return;
                }
            }
        }
        let link = (!kinds.is_empty()).then(|| Link::by_name(&self.interface).ok()).flatten();
        for kind in kinds {
            if let Some(link) = &link {
                self.send(kind, link);
            }
            if matches!(kind, Kind::Hello(_)) {
                self.counters = self.programs.counters();
                self.counters.push(("foreign_frames", self.foreign));
            }
        }
    }

    /// Tells the other member that nothing will be handed on from now on.
    pub fn part(&mut self, now: Nanos, view: &View) {
        self.machine.part();
        self.turn(now, view);
    }

    /// Counts of the kernel's programs, some of them half a second old.
    #[must_use]
    pub fn counters(&self) -> &[(&'static str, u64)] {
        &self.counters
    }

    /// Whether clients' frames go to the other member alone.
    #[must_use]
    pub fn is_deaf(&self, now: Nanos) -> bool {
        self.machine.is_deaf(now)
    }

    /// What is wrong with the segment, and what to do.
    #[must_use]
    pub fn finding(&self, now: Nanos) -> Option<(String, &'static str)> {
        let mac = self.mac;
        let lost = format!(
            "frames that the other member sends to {mac}, the service's hardware address, do not \
             come to this host"
        );
        Some(match (self.machine.fault(now)?, self.mode) {
            (Fault::Helped, _) => (
                format!(
                    "{lost} by the switch: the other member brings them, and what clients send \
                     while a takeover lasts may be lost"
                ),
                LEARNT,
            ),
            (Fault::Lost, _) => (format!("{lost}, and those of clients may not"), LEARNT),
            (Fault::Elsewhere, Mode::Chain) => (format!("{lost}, which hands them on"), ELSEWHERE),
            (Fault::Elsewhere, _) => (format!("{lost}, which copies them"), ELSEWHERE),
            (Fault::Unheard, _) => (UNHEARD.to_owned(), BROADCASTS),
            (Fault::NotHandedOn, _) => (
                format!(
                    "frames to {mac}, the service's hardware address, were not handed on by the \
                     other member: it sees nothing of what clients send"
                ),
                ELSEWHERE,
            ),
            (Fault::NotCopied, _) => (
                format!(
                    "copies of frames to {mac}, the service's hardware address, do not come to \
                     this host: it sees nothing of what clients send"
                ),
                ELSEWHERE,
            ),
        })
    }

    fn send(&mut self, kind: Kind, link: &Link) {
        self.number += 1;
        let frame = Frame { kind, side: self.side, mac: link.mac, number: self.number };
        let (from, to) = match kind {
            Kind::Hello(_) => (link.mac, EVERYBODY),
            Kind::Probe => (link.mac, self.mac.0),
            Kind::Announcement => (self.mac.0, EVERYBODY),
        };
        let words = sealed(&frame, &self.keyring.with(&self.other));
        // One that cannot be sent is missed at the other end.
        let _ = way::send_words(&words, &Hop { ifindex: link.index, from, to }, &mut self.sender);
    }
}

fn sealed(frame: &Frame, secrets: &Secrets) -> Vec<u8> {
    let plain = frame.build();
    [&plain[..], &tag([LABEL, &plain], &secrets.first().arbiter_key())].concat()
}

/// The frame in a payload; cards pad short ones.
fn opened(payload: &[u8], secrets: &Secrets) -> Option<Frame> {
    let (plain, rest) = payload.split_first_chunk::<BYTES>()?;
    let claimed: &[u8; TAG_BYTES] = rest.first_chunk()?;
    let is_ours = || {
        let mut keys = secrets.iter().map(GroupKey::arbiter_key);
        keys.any(|key| is_tag(claimed, [LABEL, plain], &key))
    };
    Frame::parse(plain).filter(|_| is_ours())
}

/// As the kernel is told.
fn told(relay: Relay) -> bpf::Relay {
    match relay {
        Relay::Nothing => bpf::Relay::Nothing,
        Relay::HandOn(mac) => bpf::Relay::HandOn(mac),
        Relay::Copy(mac) => bpf::Relay::Copy(mac),
    }
}

const LEARNT: &str = "look at the switch: no port may have that address, and frames to unknown \
    addresses must go to all ports of this segment; where they cannot, write `mode = \"chain\"` in \
    [segment]";
const ELSEWHERE: &str = "look at the switch: members' ports must be allowed to use that address, \
    none may have it for good, and nobody else may send from it";
const UNHEARD: &str = "no frame of the other member comes to this host's interface in the segment";
const BROADCASTS: &str = "look at the switch: members' frames to everybody (Ethernet type 88b5) \
    must pass";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_padded_frame_carries_is_found_and_what_a_stranger_made_is_not() {
        let frame = Frame { kind: Kind::Probe, side: 1, mac: [2; 6], number: 7 };
        let [ours, theirs] = ["7", "8"].map(|digit| GroupKey::parse(&digit.repeat(64)).unwrap());
        let secrets = |lines: &[&GroupKey]| {
            Keyring::shared(lines.iter().map(|it| (*it).clone()).collect()).with("b")
        };
        let key = secrets(&[&ours]);
        let mut sealed = sealed(&frame, &key);
        sealed.resize(46, 0);
        assert_eq!(opened(&sealed, &key), Some(frame));
        assert_eq!(opened(&sealed, &secrets(&[&theirs, &ours])), Some(frame));
        assert_eq!(opened(&sealed, &secrets(&[&theirs])), None);
        for at in 0..BYTES + TAG_BYTES {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            assert_eq!(opened(&forged, &key), None, "{at}");
            assert_eq!(opened(&sealed[..at], &key), None);
        }
    }
}
