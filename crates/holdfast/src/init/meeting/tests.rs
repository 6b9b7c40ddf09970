//! Meetings in virtual time: guests that do as they should, and strangers that do not.

use super::host::WRONG_CODES_MAX;
use super::*;
use crate::init::facts::Facts;
use crate::key::{GroupKey, PublicKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A host and the other ends of its connections.
pub(in crate::init) struct Room {
    pub(in crate::init) host: Host,
    code: Code,
    now: Instant,
    /// What the host has sent to each connection, and whether it has closed it.
    sent: BTreeMap<u64, (Vec<u8>, bool)>,
    pub(in crate::init) events: Vec<Event>,
}

/// A guest on a connection.
pub(in crate::init) struct Guest {
    pub(in crate::init) id: u64,
    link: Link,
}

impl Room {
    pub(in crate::init) fn new() -> Self {
        let (code, now) = (Code::generate().unwrap(), Instant::now());
        let host = Host::new(code.clone(), now);
        Self { host, code, now, sent: BTreeMap::new(), events: Vec::new() }
    }

    fn came(&mut self, from: &str) -> u64 {
        let id = self.host.came(from.parse().unwrap(), self.now);
        self.settle();
        id
    }

    fn take(&mut self, id: u64, bytes: &[u8]) {
        self.host.take(id, bytes, self.now);
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.host.deadline().clamp(self.now, until);
            self.host.tick(self.now);
            self.settle();
        }
    }

    pub(in crate::init) fn settle(&mut self) {
        while let Some(output) = self.host.output() {
            match output {
                Output::Send(id, bytes) => self.sent.entry(id).or_default().0.extend(bytes),
                Output::Close(id) => self.sent.entry(id).or_default().1 = true,
            }
        }
        while let Some(event) = self.host.event() {
            self.events.push(event);
        }
    }

    /// Everything that the host has said to a connection since the last call.
    fn heard(&mut self, id: u64) -> Vec<u8> {
        self.sent.get_mut(&id).map(|it| std::mem::take(&mut it.0)).unwrap_or_default()
    }

    fn has_closed(&self, id: u64) -> bool {
        self.sent.get(&id).is_some_and(|it| it.1)
    }

    /// A guest with the code who has said who he is, and has been let in.
    fn guest(&mut self, from: &str) -> Guest {
        let mut guest = self.open(from);
        let facts = facts(from);
        guest.say(self, &ToHost::Hello { build: "1".to_owned(), facts: facts.clone() });
        let met = Event::Met { id: guest.id, build: "1".to_owned(), facts };
        assert_eq!(self.events.pop(), Some(met));
        self.host.welcome(guest.id, "demo", "outline");
        self.settle();
        assert!(
            guest.hear(self) == [ToGuest::Wanted { group: "demo".into(), text: "outline".into() }]
        );
        guest
    }

    /// A connection on which the keys are agreed.
    pub(in crate::init) fn open(&mut self, from: &str) -> Guest {
        let mut out = Vec::new();
        let link = Link::guest(&self.code, &mut out).unwrap();
        let mut guest = Guest { id: self.came(from), link };
        self.take(guest.id, &out);
        assert!(guest.hear(self).is_empty());
        assert!(guest.link.is_open());
        guest
    }

    fn seated(&mut self, from: &str) -> Guest {
        let mut guest = self.guest(from);
        let (taken, public) = (BTreeSet::new(), public());
        guest.say(self, &ToHost::Able { lacks: Vec::new(), taken: taken.clone(), public });
        assert!(self.events.contains(&Event::Seated { id: guest.id, taken, public }));
        guest
    }

    /// Offers to all; `offer` has to be the number of it for each.
    fn offer(&mut self, guests: &mut [(&mut Guest, u64)]) {
        for (guest, offer) in guests {
            self.host.offer(guest.id, "a", "text", Some("key"));
            self.settle();
            let [role, text, key] = ["a", "text", "key"].map(str::to_owned);
            let key = Some(key);
            assert!(guest.hear(self) == [ToGuest::Offer { offer: *offer, role, text, key }]);
        }
    }
}

impl Guest {
    pub(in crate::init) fn say(&mut self, room: &mut Room, message: &ToHost) {
        let mut out = Vec::new();
        self.link.say(message, &mut out).unwrap();
        room.take(self.id, &out);
    }

    pub(in crate::init) fn hear(&mut self, room: &mut Room) -> Vec<ToGuest> {
        let heard = room.heard(self.id);
        let messages = self.link.take(&heard, &mut Vec::new()).unwrap();
        messages.iter().map(|it| parse(it).unwrap()).collect()
    }
}

fn public() -> PublicKey {
    GroupKey::generate().unwrap().public()
}

fn facts(address: &str) -> Facts {
    Facts {
        host: "alpha".to_owned(),
        address: address.parse().unwrap(),
        links: Vec::new(),
        chosen: None,
        taken: BTreeSet::new(),
    }
}

const A: &str = "10.9.0.2";
const B: &str = "10.9.0.3";
const X: &str = "192.0.2.66";

#[test]
fn two_guests_write_when_both_can() {
    let mut room = Room::new();
    let (mut a, mut b) = (room.seated(A), room.seated(B));
    assert_eq!(room.events.pop(), Some(Event::Complete));
    room.offer(&mut [(&mut a, 1), (&mut b, 1)]);
    a.say(&mut room, &ToHost::Ready { offer: 1 });
    room.events.clear();
    b.say(&mut room, &ToHost::Ready { offer: 1 });
    assert_eq!(room.events, [Event::Ready]);
    room.host.commit();
    room.settle();
    for guest in [&mut a, &mut b] {
        assert!(guest.hear(&mut room) == [ToGuest::Commit]);
        guest.say(&mut room, &ToHost::Done);
        assert_eq!(room.events.pop(), Some(Event::Done { id: guest.id }));
    }
}

#[test]
fn one_who_leaves_before_that_has_nobody_write() {
    let mut room = Room::new();
    let (mut a, mut b) = (room.seated(A), room.seated(B));
    room.offer(&mut [(&mut a, 1), (&mut b, 1)]);
    a.say(&mut room, &ToHost::Ready { offer: 1 });
    room.events.clear();
    room.host.gone(b.id);
    room.settle();
    let why = Left::Broken(LinkError::Closed);
    assert_eq!(room.events, [Event::Left { id: b.id, why }]);
    room.host.commit();
    room.settle();
    assert!(a.hear(&mut room).is_empty(), "nobody has said so");
    // Another one takes its place, and both are asked again.
    let mut c = room.seated("10.9.0.4");
    assert_eq!(room.events.pop(), Some(Event::Complete));
    room.offer(&mut [(&mut a, 2), (&mut c, 1)]);
}

#[test]
fn what_a_guest_lacks_is_told_and_its_place_is_free() {
    let mut room = Room::new();
    let mut a = room.guest(A);
    let lacks = vec![Lack::new("no redis-server", "install it")];
    a.say(
        &mut room,
        &ToHost::Able { lacks: lacks.clone(), taken: BTreeSet::new(), public: public() },
    );
    assert_eq!(room.events, [Event::Left { id: a.id, why: Left::Lacks(lacks) }]);
    assert!(room.has_closed(a.id));
    let mut b = room.seated(B);
    let mut c = room.seated(A);
    room.offer(&mut [(&mut b, 1), (&mut c, 1)]);
    room.events.clear();
    let why = Lack::new("the disk is full", "make room");
    b.say(&mut room, &ToHost::Unable { offer: 1, why: why.clone() });
    assert_eq!(room.events, [Event::Left { id: b.id, why: Left::Unable(why) }]);
}

/// The other one leaves while a guest's word is on its way: that guest has done nothing wrong.
#[test]
fn an_answer_to_an_offer_that_was_withdrawn_ends_nobody() {
    let mut room = Room::new();
    let (mut a, mut b) = (room.seated(A), room.seated(B));
    room.offer(&mut [(&mut a, 1), (&mut b, 1)]);
    let why = Lack::new("the disk is full", "make room");
    a.say(&mut room, &ToHost::Unable { offer: 1, why: why.clone() });
    room.events.clear();
    b.say(&mut room, &ToHost::Ready { offer: 1 });
    assert!(room.events.is_empty() && !room.has_closed(b.id));
    // Nor does the same word, later still, count for the next offer.
    let mut c = room.seated("10.9.0.4");
    assert_eq!(room.events.pop(), Some(Event::Complete));
    room.offer(&mut [(&mut b, 2), (&mut c, 1)]);
    c.say(&mut room, &ToHost::Ready { offer: 1 });
    room.events.clear();
    b.say(&mut room, &ToHost::Ready { offer: 1 });
    assert!(room.events.is_empty() && !room.has_closed(b.id));
    b.say(&mut room, &ToHost::Ready { offer: 2 });
    assert_eq!(room.events, [Event::Ready]);
    // That a guest cannot write is told, whichever offer it was.
    let mut room = Room::new();
    let (mut a, mut b) = (room.seated(A), room.seated(B));
    room.offer(&mut [(&mut a, 1), (&mut b, 1)]);
    room.host.gone(a.id);
    room.settle();
    b.say(&mut room, &ToHost::Unable { offer: 1, why: why.clone() });
    assert_eq!(room.events.pop(), Some(Event::Left { id: b.id, why: Left::Unable(why) }));
    // An offer that nobody has made is no offer.
    let mut c = room.seated(A);
    c.say(&mut room, &ToHost::Ready { offer: 1 });
    assert!(room.has_closed(c.id));
}

#[test]
fn a_guest_is_alive_or_gone() {
    let mut room = Room::new();
    let mut a = room.seated(A);
    room.events.clear();
    for _ in 0..20 {
        room.pass(Duration::from_secs(5));
        for said in a.hear(&mut room) {
            assert!(said == ToGuest::Here);
            a.say(&mut room, &ToHost::Here);
        }
    }
    assert!(room.events.is_empty());
    room.pass(SILENCE);
    assert_eq!(room.events, [Event::Left { id: a.id, why: Left::Silent }]);
}

/// Whoever tries it three times in a moment is said to have done so, and to be shut out.
#[test]
fn wrong_codes_of_a_moment_are_told_in_the_next() {
    let mut room = Room::new();
    let from: IpAddr = X.parse().unwrap();
    for _ in 1..=WRONG_CODES_MAX {
        let mut out = Vec::new();
        Link::guest(&Code::generate().unwrap(), &mut out).unwrap();
        let id = room.came(X);
        room.take(id, &out);
    }
    let told = |count, shut_out| Event::WrongCode { from, count, shut_out };
    assert_eq!(std::mem::take(&mut room.events), [told(1, false)]);
    room.pass(Duration::from_secs(1));
    assert_eq!(std::mem::take(&mut room.events), [told(WRONG_CODES_MAX, true)]);
    room.pass(Duration::from_secs(5));
    assert!(room.events.is_empty(), "each is told once");
}

#[test]
fn a_wrong_code_is_told_at_both_ends_and_the_third_is_the_last() {
    let mut room = Room::new();
    let from: IpAddr = X.parse().unwrap();
    for count in 1..=WRONG_CODES_MAX {
        let mut out = Vec::new();
        let mut link = Link::guest(&Code::generate().unwrap(), &mut out).unwrap();
        let id = room.came(X);
        room.take(id, &out);
        let heard = room.heard(id);
        assert_eq!(link.take(&heard, &mut Vec::new()), Err(LinkError::WrongCode));
        let shut_out = count == WRONG_CODES_MAX;
        assert_eq!(room.events.pop(), Some(Event::WrongCode { from, count, shut_out }));
        assert!(room.has_closed(id));
        room.pass(Duration::from_secs(1));
    }
    // Now even the right one is not heard from there, and from elsewhere it is.
    let mut out = Vec::new();
    let mut link = Link::guest(&room.code, &mut out).unwrap();
    let id = room.came(X);
    room.take(id, &out);
    let heard = room.heard(id);
    assert_eq!(link.take(&heard, &mut Vec::new()), Err(LinkError::ShutOut));
    assert!(room.has_closed(id) && room.events.is_empty());
    room.seated(A);
}

#[test]
fn whoever_has_a_network_of_addresses_is_one_stranger() {
    let mut room = Room::new();
    for last in 1..=WRONG_CODES_MAX {
        let mut out = Vec::new();
        Link::guest(&Code::generate().unwrap(), &mut out).unwrap();
        let id = room.came(&format!("2001:db8::{last}"));
        room.take(id, &out);
    }
    let id = room.came("2001:db8::77");
    assert!(room.has_closed(id));
    let other = room.came("2001:db8:0:1::77");
    assert!(!room.has_closed(other));
}

/// What a guest has said, said again by somebody who has overheard it, opens nothing.
#[test]
fn what_was_overheard_is_worth_nothing() {
    let mut room = Room::new();
    let mut first = Vec::new();
    let link = Link::guest(&room.code, &mut first).unwrap();
    let mut guest = Guest { id: room.came(A), link };
    room.take(guest.id, &first);
    guest.hear(&mut room);
    let mut hello = Vec::new();
    let words = ToHost::Hello { build: "1".to_owned(), facts: facts(A) };
    guest.link.say(&words, &mut hello).unwrap();
    room.take(guest.id, &hello);
    assert_eq!(room.events.len(), 1, "the guest itself is met");
    let id = room.came(X);
    room.take(id, &first);
    room.take(id, &hello);
    let told = Event::Stranger { from: X.parse().unwrap(), why: LinkError::Tampered };
    assert_eq!(room.events.pop(), Some(told));
    assert!(room.has_closed(id));
    // Nor does the guest's own message count twice on its own connection.
    room.take(guest.id, &hello);
    let why = Left::Broken(LinkError::Tampered);
    assert_eq!(room.events.pop(), Some(Event::Left { id: guest.id, why }));
}

#[test]
fn strangers_make_room_for_each_other_and_for_guests() {
    let mut room = Room::new();
    let mut a = room.seated(A);
    let flood: Vec<u64> = (0..200).map(|n| room.came(&format!("10.66.{}.1", n % 100))).collect();
    let open = flood.iter().filter(|id| !room.has_closed(**id)).count();
    assert_eq!(open, 32);
    let of_one: Vec<u64> = (0..50).map(|_| room.came(X)).collect();
    assert_eq!(of_one.iter().filter(|id| !room.has_closed(**id)).count(), 4);
    let mut b = room.seated(B);
    room.offer(&mut [(&mut a, 1), (&mut b, 1)]);
    // Whoever says nothing is closed after five seconds, however slowly he says it.
    let slow = room.came("10.67.0.1");
    for byte in b"HFMT" {
        room.take(slow, &[*byte]);
        room.pass(Duration::from_millis(1300));
    }
    assert!(room.has_closed(slow));
    assert!(flood.iter().all(|id| room.has_closed(*id)));
    assert!(!room.has_closed(a.id) && !room.has_closed(b.id));
}

#[test]
fn who_has_the_code_may_not_take_all_the_room() {
    let mut room = Room::new();
    let ids: Vec<u64> =
        (0..12).map(|n| room.guest(&format!("10.9.1.{n}"))).map(|it| it.id).take(8).collect();
    let mut extra = room.open("10.9.2.1");
    extra.say(&mut room, &ToHost::Hello { build: "1".to_owned(), facts: facts(A) });
    assert!(matches!(&extra.hear(&mut room)[..], [ToGuest::Refused { .. }]));
    assert!(room.has_closed(extra.id) && room.events.is_empty());
    assert!(ids.iter().all(|id| !room.has_closed(*id)));
}

#[test]
fn words_out_of_turn_end_only_who_says_them() {
    let mut room = Room::new();
    let mut a = room.seated(A);
    let public = public();
    let able = |taken| ToHost::Able { lacks: Vec::new(), taken, public };
    let out_of_turn = [
        ToHost::Ready { offer: 0 },
        ToHost::Ready { offer: 1 },
        ToHost::Done,
        able([22].into()),
        able(BTreeSet::new()),
    ];
    for said in out_of_turn {
        let mut b = room.guest(B);
        b.say(&mut room, &said);
        if said != able(BTreeSet::new()) {
            assert!(room.has_closed(b.id), "{said:?}");
        }
        room.host.gone(b.id);
        room.settle();
    }
    let mut c = room.open(X);
    c.say(&mut room, &ToHost::Here);
    assert!(room.has_closed(c.id), "it has not said who it is");
    let mut d = room.open(X);
    let long = Facts { host: "x".repeat(254), ..facts(X) };
    d.say(&mut room, &ToHost::Hello { build: "1".to_owned(), facts: long });
    assert!(room.has_closed(d.id));
    assert!(!room.has_closed(a.id));
    a.say(&mut room, &ToHost::Here);
}

/// Whoever has the code may still say anything: a key with which nothing stays secret, or none.
#[test]
fn what_is_no_public_key_ends_only_who_says_it() {
    let mut room = Room::new();
    let a = room.seated(A);
    let (weak, secret) = (format!("{}=", "A".repeat(43)), "ab".repeat(32));
    let long = "A".repeat(30 << 10);
    for text in [weak.as_str(), &secret, &long, "", "x"] {
        let mut b = room.guest(B);
        let words = serde_json::json!({ "Able": { "lacks": [], "taken": [], "public": text } });
        let mut out = Vec::new();
        b.link.say(&words, &mut out).unwrap();
        room.take(b.id, &out);
        let why = Left::Broken(LinkError::Unknown);
        assert_eq!(room.events.pop(), Some(Event::Left { id: b.id, why }), "{text}");
        assert!(room.has_closed(b.id) && !room.has_closed(a.id));
    }
    let mut c = room.guest(B);
    let words = serde_json::json!({ "Able": { "lacks": [], "taken": [] } });
    let mut out = Vec::new();
    c.link.say(&words, &mut out).unwrap();
    room.take(c.id, &out);
    assert!(room.has_closed(c.id), "each join tells one");
}

#[test]
fn a_length_that_cannot_be_is_not_waited_for() {
    let mut room = Room::new();
    let mut out = Vec::new();
    Link::guest(&room.code, &mut out).unwrap();
    let id = room.came(X);
    room.take(id, b"HFMT\x02\x01\xff\xff");
    let told = |why| Event::Stranger { from: X.parse().unwrap(), why };
    assert_eq!(room.events.pop(), Some(told(LinkError::TooLong)));
    room.pass(Duration::from_secs(1));
    let other = room.came(X);
    room.take(other, b"HFMT\x01");
    assert_eq!(room.events.pop(), Some(told(LinkError::OtherVersion { theirs: 1 })));
    room.pass(Duration::from_secs(1));
    let http = room.came(X);
    room.take(http, b"GET /");
    assert_eq!(room.events.pop(), Some(told(LinkError::OtherProgram)));
    let another = room.came(X);
    room.take(another, b"GET /");
    assert!(room.has_closed(another) && room.events.is_empty(), "one a second is told");
    assert!([id, other, http].iter().all(|id| room.has_closed(*id)));
    assert!(room.heard(id).is_empty() && room.heard(http).is_empty(), "strangers get nothing");
}

#[test]
fn a_message_that_is_cut_anywhere_is_waited_for() {
    let mut room = Room::new();
    let mut out = Vec::new();
    let link = Link::guest(&room.code, &mut out).unwrap();
    let mut guest = Guest { id: room.came(A), link };
    for byte in out {
        room.take(guest.id, &[byte]);
    }
    guest.hear(&mut room);
    let mut hello = Vec::new();
    let words = ToHost::Hello { build: "1".to_owned(), facts: facts(A) };
    guest.link.say(&words, &mut hello).unwrap();
    let (last, all) = hello.split_last().unwrap();
    for byte in all {
        room.take(guest.id, &[*byte]);
        assert!(room.events.is_empty());
    }
    room.take(guest.id, &[*last]);
    assert_eq!(room.events.len(), 1);
}

proptest! {
    #[test]
    fn no_bytes_of_a_stranger_break_anything(bytes in proptest::collection::vec(any::<u8>(), 0..400), known in any::<bool>()) {
        let mut room = Room::new();
        let id = room.came(X);
        let start: &[u8] = if known { b"HFMT\x02\x01\x30\x00" } else { b"" };
        room.take(id, start);
        room.take(id, &bytes);
        let met = room.events.iter().any(|it| matches!(it, Event::Met { .. }));
        prop_assert!(!met);
        let mut link = Link::guest(&room.code, &mut Vec::new()).unwrap();
        prop_assert!(link.take(&bytes, &mut Vec::new()).map_or(true, |it| it.is_empty()));
    }

    /// A host that a guest has not come to find cannot make it do anything either.
    #[test]
    fn a_changed_byte_opens_nothing(at in 0usize..200, flip in 1u8..=255) {
        let mut room = Room::new();
        let mut out = Vec::new();
        Link::guest(&room.code, &mut out).unwrap();
        let at = at % out.len();
        out[at] ^= flip;
        let id = room.came(X);
        room.take(id, &out);
        let heard = room.heard(id);
        // It hears a refusal, or nothing.
        prop_assert!(heard.len() <= 9, "{}", heard.len());
    }
}
