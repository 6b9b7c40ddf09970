//! The host's side of a meeting, between its machine and its files: who gets a seat, what the file
//! says, and when it is written.

use super::draft::{Draft, HostRole, Keys, MemberDraft, Wish};
use super::facts::{Facts, links, member_name};
use super::files::Places;
use super::fit::{self, Seat, Way, carrier, free_port, judge};
use super::meeting::{Event, GUESTS, Host, Lack, Left};
use super::neighbours::Neighbours;
use super::ways::{default_route, way_to};
use super::{InitError, Told};
use crate::config::Config;
use crate::key::{GroupKey, PublicKey};
use holdfast_program::BUILD;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The first ports that are tried.
const EDGE_PORT: u16 = 7700;
const MEMBER_PORT: u16 = 7701;
const WITNESS_PORT: u16 = 7702;

/// What the host knows.
pub struct Party<'a> {
    wish: &'a Wish,
    places: &'a Places,
    own: Facts,
    /// The groups that this host has already.
    neighbours: Neighbours,
    /// This host's own key, or that of all.
    key: GroupKey,
    seats: Vec<Seat>,
    text: String,
    /// Guests that were told to write; `None` before that.
    writing: Option<Vec<u64>>,
    /// Guests that have not said that they have written.
    unconfirmed: Vec<String>,
}

impl<'a> Party<'a> {
    pub fn new(wish: &'a Wish, places: &'a Places, own: Facts) -> Result<Self, InitError> {
        Ok(Self {
            wish,
            places,
            own,
            neighbours: Neighbours::of(places.folder(), &wish.name),
            key: GroupKey::generate()?,
            seats: Vec::new(),
            text: String::new(),
            writing: None,
            unconfirmed: Vec::new(),
        })
    }

    /// What this host is.
    pub fn own(&self) -> &Facts {
        &self.own
    }

    /// Those who have joined so far.
    pub fn names(&self) -> Vec<String> {
        self.seats.iter().map(|it| it.name.clone()).collect()
    }

    /// The members, with their addresses.
    pub fn members(&self) -> Vec<(String, IpAddr)> {
        self.seats.iter().map(|it| (it.name.clone(), it.facts.address)).collect()
    }

    /// The public half of this host's own key, where each host has one.
    pub fn public(&self) -> Option<PublicKey> {
        (self.wish.keys == Keys::OfEachHost).then(|| self.key.public())
    }

    /// Whether the files are written here.
    pub fn has_written(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether all that can happen has happened.
    pub fn is_over(&self) -> bool {
        self.writing.as_ref().is_some_and(Vec::is_empty)
    }

    /// Guests of which nobody knows whether they have written.
    pub fn unconfirmed(&self) -> Vec<String> {
        let writing = self.writing.iter().flatten();
        let silent = writing.filter_map(|id| self.seats.iter().find(|it| it.id == *id));
        silent.map(|it| it.name.clone()).chain(self.unconfirmed.clone()).collect()
    }

    /// Answers an event. `ends`: both ends of a connection, the other one first.
    pub fn hear(
        &mut self,
        event: Event,
        host: &mut Host,
        ends: impl Fn(u64) -> Option<(IpAddr, IpAddr)>,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), InitError> {
        match event {
            Event::Met { id, build, facts } => {
                let Some(ends) = ends(id) else { return Ok(()) };
                match self.seat(id, &build, facts.clone(), ends) {
                    Ok(()) => host.welcome(id, &self.wish.name, &self.wish.outline()),
                    Err(why) => {
                        tell(Told::refused(&facts.host, ends.0, &why));
                        host.refuse(id, why);
                    }
                }
            }
            Event::Seated { id, taken, public } => {
                if let Err(why) = self.settle((id, public), taken, tell) {
                    host.refuse(id, why);
                }
            }
            // A guest may have left since: then what it was for comes again with the next one.
            Event::Complete if host.is_complete() => self.offer(host)?,
            Event::Ready if host.is_ready() => self.commit(host)?,
            Event::Complete | Event::Ready => {}
            Event::Done { id } => self.wrote(id),
            Event::Left { id, why } => self.left(id, &why, tell),
            Event::WrongCode { from, count, shut_out } => {
                tell(Told::wrong_code(from, count, shut_out));
            }
            Event::Stranger { from, why } => tell(Told::stranger(from, &why)),
        }
        Ok(())
    }

    fn seat(
        &mut self,
        id: u64,
        build: &str,
        facts: Facts,
        (from, local): (IpAddr, IpAddr),
    ) -> Result<(), Lack> {
        if build != BUILD {
            return Err(Lack::new(
                format!("{} has holdfast {build}, this host {BUILD}", facts.host),
                "install the same release on all three hosts",
            ));
        }
        if self.seats.len() >= GUESTS {
            let there = self.names().join(" and ");
            return Err(Lack::new(
                format!("{there} have joined, and a group has two members"),
                "say join on two hosts only",
            ));
        }
        judge(self.wish, &self.own, &facts, from, &self.seats)?;
        let way = match self.wish.host {
            HostRole::Edge => Some(self.way(&facts)?),
            HostRole::Witness => None,
        };
        let name = member_name(&facts.host, &self.names());
        self.seats.push(Seat { id, name, facts, local, way, public: None });
        Ok(())
    }

    /// Keeps what a guest that can be a member has told last, or frees its place again: a key that
    /// two hosts have would let each be the other.
    fn settle(
        &mut self,
        (id, public): (u64, PublicKey),
        taken: BTreeSet<u16>,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), Lack> {
        let is_known = [Some(self.key.public())]
            .into_iter()
            .chain(self.seats.iter().filter(|it| it.id != id).map(|it| it.public))
            .any(|it| it == Some(public));
        let Some(index) = self.seats.iter().position(|it| it.id == id) else { return Ok(()) };
        if is_known {
            let Seat { facts, .. } = self.seats.remove(index);
            let why = Lack::new(
                format!("{} comes with the public key of another host", facts.host),
                "say join again there: each join makes a key of its own",
            );
            tell(Told::refused(&facts.host, facts.address, &why));
            return Err(why);
        }
        let seat = &mut self.seats[index];
        (seat.facts.taken, seat.public) = (taken, Some(public));
        tell(Told::joined(seat));
        if let Some(about) = outside(self.wish, &seat.facts) {
            tell(Told::warning(&seat.facts.host, &about));
        }
        Ok(())
    }

    /// How this host, an edge, reaches a member, which must not be as the other one.
    fn way(&self, facts: &Facts) -> Result<Way, Lack> {
        let link = carrier(self.wish, facts)?;
        let is_there = link.networks.iter().any(|it| it.address == facts.address);
        let first = link.networks.first().map(|it| it.address);
        let address = if is_there { Some(facts.address) } else { first };
        let way = way_to(&facts.host, address.unwrap_or(facts.address), link)?;
        self.check_free(&[&way.edge_port])?;
        for seat in &self.seats {
            let Some(other) = &seat.way else { continue };
            if other.edge_port == way.edge_port {
                return Err(Lack::new(
                    format!(
                        "{} and {} are both behind {}",
                        seat.facts.host, facts.host, way.edge_port
                    ),
                    "each member needs a port of the edge of its own; without an edge both may share \
                     a switch: leave --edge out",
                ));
            }
            if other.l3 != way.l3 {
                return Err(Lack::new(
                    format!(
                        "{} and {} are not at ports of the same bridge of this host, or one is at none",
                        seat.facts.host, facts.host
                    ),
                    "put both ports into one bridge, or neither",
                ));
            }
        }
        Ok(way)
    }

    /// Whether interfaces of this host, an edge, are no other group's.
    fn check_free(&self, names: &[&str]) -> Result<(), Lack> {
        self.neighbours.with_interface(names).map_or(Ok(()), Err)
    }

    fn left(&mut self, id: u64, why: &Left, tell: &mut dyn FnMut(Told)) {
        let Some(index) = self.seats.iter().position(|it| it.id == id) else { return };
        if self.has_written() {
            self.unconfirmed.push(self.seats[index].name.clone());
            self.wrote(id);
        } else {
            tell(Told::left(&self.seats.remove(index), why));
        }
    }

    fn wrote(&mut self, id: u64) {
        self.writing.iter_mut().for_each(|writing| writing.retain(|it| *it != id));
    }

    /// Everybody is here: the file is made, and shown to all.
    fn offer(&mut self, host: &mut Host) -> Result<(), InitError> {
        let text = self.draft().inspect_err(|why| self.dismiss(host, why))?;
        Config::parse(&self.places.file, &text).map_err(|errors| {
            let why = Lack::new("the file that was made is not usable", "look there");
            self.dismiss(host, &why);
            InitError::Config(errors)
        })?;
        // A host's own key never leaves it.
        let key = (self.wish.keys == Keys::Shared).then(|| self.key.to_text());
        for seat in &self.seats {
            host.offer(seat.id, &seat.name, &text, key.as_deref());
        }
        self.text = text;
        Ok(())
    }

    /// Tells all that there will be no group.
    pub fn dismiss(&self, host: &mut Host, why: &Lack) {
        for seat in &self.seats {
            let told = format!("the group was not made: {}", why.what);
            host.refuse(seat.id, Lack::new(told, format!("on {}: {}", self.own.host, why.remedy)));
        }
    }

    fn draft(&self) -> Result<String, Lack> {
        let taken: Vec<_> = self.seats.iter().map(|it| &it.facts.taken).collect();
        // One port above is that of the lease.
        let port = free_port(MEMBER_PORT, 2, &taken);
        let first = match self.wish.host {
            HostRole::Edge => EDGE_PORT,
            HostRole::Witness => WITNESS_PORT,
        };
        let listen = self.seats.first().map_or(self.own.address, |it| it.local);
        let listen = SocketAddr::from((listen, free_port(first, 1, &[&self.own.taken])));
        let mut members = Vec::new();
        let is_own = self.wish.keys == Keys::OfEachHost;
        for Seat { name, facts, way, public, .. } in &self.seats {
            let link = carrier(self.wish, facts)?;
            members.push(MemberDraft {
                name: name.clone(),
                host: facts.host.clone(),
                address: SocketAddr::from((facts.address, port)),
                public: public.filter(|_| is_own),
                interface: link.name.clone(),
                port: way.as_ref().map(|way| (way.edge_port.clone(), link.mac_text())),
            });
        }
        let l3 = self.seats.iter().find_map(|it| it.way.as_ref()?.l3.clone());
        let clients = match self.wish.host {
            HostRole::Edge => self.clients()?,
            HostRole::Witness => Vec::new(),
        };
        let host = self.own.host.clone();
        let public = self.public();
        Ok(Draft { wish: self.wish, host, listen, public, clients, l3, members }.text())
    }

    fn clients(&self) -> Result<Vec<String>, Lack> {
        let ways = || self.seats.iter().filter_map(|it| it.way.as_ref());
        let inner = ways().flat_map(|it| [Some(&it.edge_port), it.l3.as_ref()]).flatten();
        let inner: Vec<&str> = inner.map(String::as_str).collect();
        let links = links().map_err(|error| {
            Lack::new(format!("the kernel does not tell its interfaces: {error}"), "try again")
        })?;
        let v6 = self.wish.services.iter().all(SocketAddr::is_ipv6);
        let clients = fit::clients(self.wish, &links, &inner, default_route(v6).as_deref())?;
        self.check_free(&clients.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(clients)
    }

    /// Everybody can write: this host does so first, and only then says it.
    fn commit(&mut self, host: &mut Host) -> Result<(), InitError> {
        let staged = self.places.stage(&self.text, &self.key.to_text());
        let staged = staged.inspect_err(|why| self.dismiss(host, why))?;
        staged.commit().map_err(|error| {
            let why = Lack::new(
                format!("{} cannot be written: {error}", self.places.file.display()),
                "look at the folder, and begin again: nothing was written on the two other hosts",
            );
            self.dismiss(host, &why);
            why
        })?;
        self.writing = Some(self.seats.iter().map(|it| it.id).collect());
        host.commit();
        Ok(())
    }
}

/// A service that does not come to a member by itself. An edge is the way to it for both members.
fn outside(wish: &Wish, facts: &Facts) -> Option<Lack> {
    let link = carrier(wish, facts).ok()?;
    (wish.host == HostRole::Witness).then(|| facts.outside(&wish.services, Some(link)))?
}

#[cfg(test)]
mod tests {
    use super::super::facts::{LinkFacts, Network};
    use super::super::meeting::tests::{Guest, Room};
    use super::super::meeting::{ToGuest, ToHost};
    use super::*;
    use crate::config::Run;
    use std::path::PathBuf;

    const OWN: &str = "10.9.0.1";
    const A: &str = "10.9.0.2";
    const B: &str = "10.9.0.3";
    const C: &str = "10.9.0.4";

    fn wish() -> Wish {
        Wish {
            name: "demo".to_owned(),
            services: vec!["10.9.0.100:6379".parse().unwrap()],
            command: vec!["/bin/true".to_owned()],
            user: None,
            state_dirs: Vec::new(),
            run: Run::Auto,
            host: HostRole::Witness,
            clients: Vec::new(),
            keys: Keys::default(),
        }
    }

    /// A host whose address ends with its number.
    fn facts(address: &str) -> Facts {
        let number = address.bytes().last().unwrap_or_default() - b'0';
        let address = address.parse().unwrap();
        let networks = vec![Network { address, prefix: 24 }];
        let mac = [2, 0, 0, 0, 0, number];
        let links = vec![LinkFacts { name: "eth0".to_owned(), mac, networks }];
        let taken = [7701, 7702].into();
        Facts { host: format!("host{number}"), address, links, chosen: None, taken }
    }

    /// A folder of its own.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let own = format!("holdfast-party-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(own))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Has the party answer everything that has happened, in one turn.
    fn answer(party: &mut Party<'_>, room: &mut Room) {
        for event in std::mem::take(&mut room.events) {
            let from = match &event {
                Event::Met { facts, .. } => facts.address,
                _ => OWN.parse().unwrap(),
            };
            let ends = |_| Some((from, OWN.parse().unwrap()));
            party.hear(event, &mut room.host, ends, &mut |_| {}).expect("an answer");
        }
        room.settle();
    }

    /// A guest that is asked what it lacks.
    fn asked(party: &mut Party<'_>, room: &mut Room, address: &str) -> Guest {
        let mut guest = room.open(address);
        let hello = ToHost::Hello { build: BUILD.to_owned(), facts: facts(address) };
        guest.say(room, &hello);
        answer(party, room);
        assert!(matches!(&guest.hear(room)[..], [ToGuest::Wanted { .. }]));
        guest
    }

    /// It can be a member; its key is a new one.
    fn able() -> ToHost {
        let public = GroupKey::generate().unwrap().public();
        ToHost::Able { lacks: Vec::new(), taken: BTreeSet::new(), public }
    }

    /// Two guests who are asked, and say that they can.
    fn both_able(party: &mut Party<'_>, room: &mut Room) -> [Guest; 2] {
        let mut guests = [A, B].map(|at| asked(party, room, at));
        guests.iter_mut().for_each(|guest| guest.say(room, &able()));
        guests
    }

    /// The number and the file of the offer that a guest has got, with the key in it.
    fn offered_with_key(guest: &mut Guest, room: &mut Room) -> (u64, String, Option<String>) {
        match guest.hear(room).pop() {
            Some(ToGuest::Offer { offer, text, key, .. }) => (offer, text, key),
            _ => panic!("an offer is due"),
        }
    }

    /// The same of a group whose hosts have keys of their own: no key comes.
    fn offered(guest: &mut Guest, room: &mut Room) -> (u64, String) {
        let (offer, text, key) = offered_with_key(guest, room);
        assert_eq!(key, None, "a host's own key never leaves it");
        (offer, text)
    }

    #[test]
    fn each_host_keeps_its_own_key_unless_one_for_all_is_wanted() {
        for keys in [Keys::OfEachHost, Keys::Shared] {
            let folder = Folder::new("keys");
            let (wish, places) = (Wish { keys, ..wish() }, Places::new(&folder.0, "demo", false));
            let mut party = Party::new(&wish, &places, facts(OWN)).unwrap();
            let mut room = Room::new();
            let mut guests = both_able(&mut party, &mut room);
            answer(&mut party, &mut room);
            let own = party.key.to_text();
            for guest in &mut guests {
                let (offer, text, key) = offered_with_key(guest, &mut room);
                let has = |key: PublicKey| text.contains(&key.to_string());
                assert_eq!(has(party.key.public()), keys == Keys::OfEachHost, "{text}");
                assert_eq!(key, (keys == Keys::Shared).then(|| own.clone()));
                assert!(!text.contains(own.lines().last().unwrap()), "no secret is in the file");
                guest.say(&mut room, &ToHost::Ready { offer });
            }
            answer(&mut party, &mut room);
            assert_eq!(std::fs::read_to_string(&places.key).unwrap(), own);
            let file = crate::config::GroupFile::load(&places.file).unwrap();
            let ring = file.keyring("witness").unwrap();
            assert_eq!(ring.is_in_pairs(), keys == Keys::OfEachHost);
        }
    }

    #[test]
    fn two_hosts_with_one_key_are_no_group() {
        let folder = Folder::new("twins");
        let (wish, places) = (wish(), Places::new(&folder.0, "demo", false));
        let mut party = Party::new(&wish, &places, facts(OWN)).unwrap();
        let mut room = Room::new();
        let [mut a, mut b] = [A, B].map(|at| asked(&mut party, &mut room, at));
        let said = able();
        a.say(&mut room, &said);
        answer(&mut party, &mut room);
        b.say(&mut room, &said);
        answer(&mut party, &mut room);
        let told = b.hear(&mut room).pop();
        let has = |why: &Lack| why.what.contains("the public key of another host");
        assert!(matches!(&told, Some(ToGuest::Refused { why }) if has(why)));
        assert!(a.hear(&mut room).is_empty(), "it waits on");
        // Nor may a guest have the key of the host itself.
        let mut c = asked(&mut party, &mut room, C);
        let ToHost::Able { lacks, taken, .. } = said else { panic!("{said:?}") };
        let public = party.key.public();
        c.say(&mut room, &ToHost::Able { lacks, taken, public });
        answer(&mut party, &mut room);
        assert!(matches!(c.hear(&mut room).pop(), Some(ToGuest::Refused { .. })));
        assert_eq!(party.names(), ["host2"]);
    }

    #[test]
    fn who_leaves_in_the_turn_in_which_all_are_here_is_waited_for() {
        let folder = Folder::new("complete");
        let (wish, places) = (wish(), Places::new(&folder.0, "demo", false));
        let mut party = Party::new(&wish, &places, facts(OWN)).unwrap();
        let mut room = Room::new();
        let [a, mut b] = both_able(&mut party, &mut room);
        assert_eq!(room.events.last(), Some(&Event::Complete));
        room.host.gone(a.id);
        room.settle();
        answer(&mut party, &mut room);
        assert!(b.hear(&mut room).is_empty(), "there is nobody to make a group with");
        let mut c = asked(&mut party, &mut room, C);
        c.say(&mut room, &able());
        answer(&mut party, &mut room);
        for guest in [&mut b, &mut c] {
            let (offer, text) = offered(guest, &mut room);
            assert!(text.contains(B) && text.contains(C) && !text.contains("10.9.0.2:"), "{text}");
            assert!(text.contains("10.9.0.3:7701"), "its own group's ports are free: {text}");
            guest.say(&mut room, &ToHost::Ready { offer });
        }
        answer(&mut party, &mut room);
        assert!(party.has_written() && places.file.exists() && places.key.exists());
    }

    #[test]
    fn who_leaves_in_the_turn_in_which_all_are_ready_has_nobody_write() {
        let folder = Folder::new("ready");
        let (wish, places) = (wish(), Places::new(&folder.0, "demo", false));
        let mut party = Party::new(&wish, &places, facts(OWN)).unwrap();
        let mut room = Room::new();
        let [mut a, mut b] = both_able(&mut party, &mut room);
        answer(&mut party, &mut room);
        for guest in [&mut a, &mut b] {
            let (offer, _) = offered(guest, &mut room);
            guest.say(&mut room, &ToHost::Ready { offer });
        }
        assert_eq!(room.events.last(), Some(&Event::Ready));
        room.host.gone(a.id);
        room.settle();
        answer(&mut party, &mut room);
        assert!(!party.has_written() && !places.file.exists() && !places.key.exists());
        assert!(b.hear(&mut room).is_empty());
        let mut c = asked(&mut party, &mut room, C);
        c.say(&mut room, &able());
        answer(&mut party, &mut room);
        for guest in [&mut b, &mut c] {
            let (offer, _) = offered(guest, &mut room);
            guest.say(&mut room, &ToHost::Ready { offer });
        }
        answer(&mut party, &mut room);
        assert!(party.has_written() && places.file.exists() && places.key.exists());
        for guest in [&mut b, &mut c] {
            assert!(guest.hear(&mut room) == [ToGuest::Commit]);
        }
    }
}
