//! What a member has put into its host (programs, addresses, files): it is restored while it is
//! needed, and removed when it is not.

use super::MemberContext;
use super::words::LINKS;
use crate::check;
use crate::daemon::intact::{
    Trouble, lost_address, note_missing, note_removed, note_torn, renamed,
};
use crate::daemon::said::Said;
use crate::daemon::{advice, kept};
use crate::leavings::{self, Own, Removed};
use crate::status::{Role, State};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{BpfError, Detached, Gate, GateConfig, Speak, TapDrop};
use holdfast_linux::link::{self, Carries, Link, LinkError};
use holdfast_linux::neighbour::Announcer;
use holdfast_member::host::End;
use holdfast_wire::packet::mapped;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The last words of a member that was stopped, and what to do then.
const STOPPED: &str = "its daemon was stopped, and its server with it";
const START_AGAIN: &str = "start it again: `holdfast run` on its host, or its unit";

/// Time between two checks of the programs, the addresses and the interface.
const MEND_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks at what the interface carries.
const CARRIES_EVERY: Duration = Duration::from_millis(50);

impl MemberContext<'_> {
    /// Attaches this member's gate. With `solo` it lets everything pass until it is told
    /// otherwise.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses.
    pub fn attach_gate(&mut self, solo: bool) -> anyhow::Result<Gate> {
        let config = self.gate_config(solo);
        Ok(self.attend_until(|| Gate::attach(&config))?)
    }

    /// Configuration of this member's gate.
    #[must_use]
    pub fn gate_config(&self, solo: bool) -> GateConfig {
        GateConfig {
            interface: self.me.interface.clone(),
            services: self.services(),
            slots: self.config.group.connections_max,
            pin_dir: self.pin_dir(),
            solo,
            deposable: self.config.segment.is_some(),
        }
    }

    /// Removes what an earlier daemon of this member has left and its new role does not need: a
    /// former primary's gate would hold back every answer.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn clear_earlier_life(&mut self, own: Own) -> anyhow::Result<()> {
        let removed = leavings::remove_earlier_life(self.config, self.me, own, &self.left)?;
        self.note_removed(&removed);
        Ok(())
    }

    /// Puts back what somebody has removed from this host, and reports what cannot
    /// be put back; true if the host is as it must be.
    pub fn is_whole(&mut self, role: Role, own: Own) -> bool {
        self.mend(own);
        let Some((state, reason, remedy)) = self.lost(role) else { return true };
        // Who hears nobody waits, whatever else is lost: an interface that goes down takes
        // addresses with it.
        let is_of_link = self.link_lost.as_ref().is_some_and(|(found, _)| reason.contains(found));
        let (state, reason, remedy) = match self.cut_off() {
            Some(cut_off) if self.lacking.is_some() || is_of_link => {
                (State::Waiting, format!("{reason}; {cut_off}"), remedy)
            }
            Some(cut_off) => (State::Waiting, format!("{cut_off}; {reason}"), LINKS.to_owned()),
            None => (state, reason, remedy),
        };
        self.set_state(role, state, &reason, &remedy);
        false
    }

    /// The state, reason and remedy of a member whose host lacks something.
    fn lost(&self, role: Role) -> Option<(State, String, String)> {
        if let Some(Trouble { state, reason, remedy }) = &self.lacking {
            return Some((*state, reason.clone(), remedy.clone()));
        }
        if let Some(reason) = &self.torn {
            let remedy = "look at the interface of this member, and start it again".to_owned();
            return Some((State::Unprotected, reason.clone(), remedy));
        }
        if let Some(reason) = self.kept.lost() {
            return Some((State::Unprotected, reason.to_owned(), kept::REMEDY.to_owned()));
        }
        let (reason, remedy) = self.way_lost.clone()?;
        // A primary's clients get no answers now; a backup's would get none after a takeover.
        let state = if role == Role::Primary { State::Waiting } else { State::Unprotected };
        Some((state, reason, remedy))
    }

    /// Checks, every [`MEND_EVERY`], whether the interface was created again or has another name,
    /// and whether this member's own address is there.
    pub(super) fn look_at_interface(&mut self) {
        let now = Instant::now();
        if now < self.link_at {
            return;
        }
        self.link_at = now + MEND_EVERY;
        // A missing interface is reported where programs and routes are checked.
        let gone = self.find_interface().err();
        let renamed = gone.and_then(|_| renamed(&self.me.interface, self.link_index));
        let lacking = renamed.or_else(|| self.lost_address());
        if note_torn(&mut self.lacking, lacking, &mut self.events) {
            self.show();
        }
    }

    /// The trouble if this member's own address is gone, and not only with its link.
    fn lost_address(&self) -> Option<Trouble> {
        let carries = link::carries(&self.me.interface).is_ok_and(|it| it == Carries::Yes);
        lost_address("address", self.me.address.ip(), None).filter(|_| carries)
    }

    /// Asks now and then whether the interface carries packets: who is cut off by it hears nobody, and
    /// must not name those whom it does not hear.
    pub(super) fn look_at_link(&mut self) {
        let now = Instant::now();
        if now < self.carries_at {
            return;
        }
        self.carries_at = now + CARRIES_EVERY;
        let name = &self.me.interface;
        self.link_lost = check::link_trouble(name, link::carries(name).ok());
    }

    /// `said` with what this host lacks before it: what follows from that is said behind it.
    pub(super) fn for_lack(&self, said: Said) -> Said {
        // A takeover that found no interface says so itself.
        let is_told = said.reason.contains(&format!("{:?}", self.me.interface));
        let link_lost = self.link_lost.as_ref().filter(|_| !is_told);
        match (&self.lacking, link_lost, self.kept.lost()) {
            (Some(Trouble { reason, remedy, .. }), ..) => said.behind((reason, remedy)),
            (None, Some((found, remedy)), _) => said.behind((found, remedy)),
            // A server that speaks alone would be ended by whoever does not find it.
            (None, None, Some(reason)) => said.beside((reason, kept::REMEDY)),
            (None, None, None) => said,
        }
    }

    /// Finds the interface, and moves the socket for the edge's signs to it if it is another one:
    /// a driver that is loaded again, or a bond, gives the same name to another interface.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find_interface(&mut self) -> Result<Link, LinkError> {
        let link = Link::by_name(&self.me.interface)?;
        match self.signs.follow(link.index) {
            Ok(false) => {}
            Ok(true) => {
                self.link_index = link.index;
                let what =
                    format!("{} was made anew: this member uses the new one", self.me.interface);
                self.events.add("mended", what);
                // Its programs and addresses went with the old one.
                self.mend_at = Instant::now();
            }
            Err(error) => tracing::warn!("{} was made anew: {error}", self.me.interface),
        }
        Ok(link)
    }

    /// Attaches the role's programs again, now and then, if somebody has removed them.
    /// Without a primary's gate nothing is held back; without a backup's program its kernel
    /// answers clients.
    pub fn mend(&mut self, own: Own) {
        let now = Instant::now();
        if now < self.mend_at {
            return;
        }
        self.mend_at = now + MEND_EVERY;
        self.way_lost = check::no_way_back(self.config, self.me);
        if !self.changes.take() && self.torn.is_none() {
            return;
        }
        let (interface, pins) = (&self.me.interface, self.pin_dir());
        // A backup has a gate, too.
        let mut mended = self.mend_gate();
        if own == Own::TapDrop {
            mended = mended.and_then(|gate| {
                TapDrop::mend(interface, &pins).map(|tap_drop| [gate, tap_drop].concat())
            });
        }
        if own == Own::Gate && self.mend_addresses() {
            return;
        }
        match mended {
            Ok(missing) => {
                self.torn = None;
                note_missing(&missing, &mut self.events);
            }
            Err(error) => self.torn = Some(format!("a program is gone: {error}")),
        }
    }

    /// Attaches again what holds this member's answers back, and what lets it speak.
    fn mend_gate(&self) -> Result<Vec<Detached>, BpfError> {
        let (interface, pins) = (&self.me.interface, self.pin_dir());
        let mut missing = Gate::mend(interface, &pins)?;
        if self.config.segment.is_some() {
            missing.extend(Speak::mend(interface, &pins)?);
        }
        Ok(missing)
    }

    /// Adds the service addresses to this member's interface; returns those that were missing
    /// there.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses.
    pub fn take_addresses(&self) -> anyhow::Result<Vec<IpAddr>> {
        let link = Link::by_name(&self.me.interface)?;
        let mut addresses = AddressSocket::open()?;
        let mut taken = Vec::new();
        for ip in self.config.service_ips() {
            if addresses.restore(link.index, &mapped(ip))? {
                Announcer::open()?.announce(&link, &mapped(ip))?;
                taken.push(ip);
            }
        }
        Ok(taken)
    }

    /// Restores the gate and the addresses for a server that runs alone.
    pub fn mend_alone(&mut self) {
        if !self.changes.take() && self.torn.is_none() {
            return;
        }
        let was_torn = self.torn.take().is_some();
        // Without the gate, which knows the connections, nobody can join.
        match self.mend_gate() {
            Ok(missing) => note_missing(&missing, &mut self.events),
            Err(error) => tracing::warn!("the gate is gone, and nobody can join: {error}"),
        }
        if self.mend_addresses() && !was_torn {
            self.events.add("torn", self.torn.clone().unwrap_or_default());
        }
    }

    /// Adds service addresses again that somebody has removed: without them no client is served.
    /// True if that fails; the reason is then in `torn`.
    fn mend_addresses(&mut self) -> bool {
        match self.take_addresses() {
            Ok(taken) => {
                for ip in taken {
                    let what = format!("address {ip} of {} had been removed", self.me.interface);
                    self.events.add("mended", what);
                }
                false
            }
            Err(error) => {
                self.torn = Some(format!("the service address is gone: {error:#}"));
                true
            }
        }
    }

    /// Writes into `run_dir` again, after somebody has removed files there, which process is the
    /// server: a later daemon needs it if this one dies.
    pub(super) fn note_again(&mut self) {
        let folder = &self.config.group.run_dir;
        let name = &self.me.name;
        let note = |pid| leavings::note_server(folder, name, pid, &self.standard);
        let noted = self.server.map_or(Ok(()), note);
        let loose = || if self.loose { leavings::note_loose(folder, name) } else { Ok(()) };
        if let Err(error) = noted.and_then(|()| loose()) {
            tracing::warn!("{error:#}");
        }
    }

    /// Notes that the server was killed but has not ended, and that this daemon no longer waits
    /// for it.
    pub fn note_lingering(&mut self, pid: u32) {
        let what = format!(
            "process {pid} was killed and is not gone: a disk that does not answer, or who traces it, holds it up"
        );
        self.events.add("lingers", what);
    }

    /// Ends the processes that a server has left in the background: nobody protects them, and
    /// they would serve clients while the group reports that its server has ended.
    pub fn end_background(&mut self) {
        if self.own.reason.starts_with(advice::IN_BACKGROUND) {
            return;
        }
        let user = leavings::server_user(&self.config.server);
        match leavings::orphan(&self.config.group.run_dir, &self.me.name, user) {
            Ok(removed) => self.note_removed(&removed),
            Err(error) => tracing::warn!("{error:#}"),
        }
    }

    /// Removes what this member has put into its host, so that an unprotected server may use the
    /// service address here. After [`End::Silent`] gate and address stay.
    pub(super) fn leave(&mut self, end: End) -> anyhow::Result<()> {
        leavings::forget_server(&self.config.group.run_dir, &self.me.name);
        if end == End::Silent {
            let what =
                "nobody has taken over yet: gate and address stay; `holdfast down` removes them";
            self.events.add("stopped", what);
            return Ok(());
        }
        self.edge.part();
        let removed = leavings::remove_member(self.config, self.me)?;
        self.note_removed(&removed);
        self.events.add("stopped", "nothing of it is left on this host");
        // The edge remembers this: it is the last that it hears.
        if self.own.state != State::Ended {
            self.set_ended(Role::None, STOPPED, START_AGAIN);
        }
        Ok(())
    }

    pub(super) fn note_removed(&mut self, removed: &[Removed]) {
        note_removed(removed, &mut self.events);
    }
}
