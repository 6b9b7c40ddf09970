//! A member's daemon from start to end: it asks the edge for its role, runs that role until it
//! ends or must begin again, and leaves.

use super::MemberContext;
use crate::check::{daemon_heard_at, why_taken};
use crate::config::{Config, Member, Mode, Server, admin_socket};
use crate::daemon::backup::Ended;
use crate::daemon::drive::{self, drive};
use crate::daemon::{backup, primary, survivor};
use crate::fingerprint;
use crate::leavings;
use crate::status::{Role, State};
use anyhow::Context as _;
use holdfast_cluster::Nanos;
use holdfast_linux::snapshot::settle;
use holdfast_member::host::{End, Hosted, Member as MemberState, Turn};
use holdfast_member::standing::{Ask, Place};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

/// A member that does not know its role yet.
struct Asking<'n, 'a> {
    node: &'n mut MemberContext<'a>,
}

impl<'a> Hosted for Asking<'_, 'a> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl<'a> drive::Role<'a> for Asking<'_, 'a> {}

/// Runs the member's daemon until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it.
pub fn run(config: &Config, member: &Member) -> anyhow::Result<()> {
    let survivor = || leavings::survivor(&config.group.run_dir, &member.name);
    // A member that could never start its server must not keep the other one waiting. One that has
    // outlived its daemon needs no start.
    if let Some(lack) = fingerprint::lacks(&config.server).first()
        && survivor().is_none()
    {
        anyhow::bail!("{}; remedy: {}", lack.what, lack.remedy);
    }
    is_the_only_one(config, member)?;
    let mut node = MemberContext::new(config, member)?;
    loop {
        // Who becomes current and cannot note its server would keep the other one waiting. One that
        // has outlived its daemon is noted.
        if let Err(error) = leavings::try_room(&config.group.run_dir, &member.name)
            && survivor().is_none()
        {
            match node.wait_unsettled(&format!("{error:#}"), NO_ROOM)? {
                End::Again => continue,
                _ => return Ok(()),
            }
        }
        let Some(place) = node.ask_edge()? else { return Ok(()) };
        let (epoch, current) = match place {
            Place::Primary { epoch } => (epoch, true),
            Place::Backup { epoch } => (epoch, false),
        };
        node.set_epoch(epoch);
        node.events.add("epoch", format!("{epoch}, current member {current}"));
        // A server that outlived its daemon has told its clients more than any other could know.
        let end = match survivor().filter(|_| current) {
            Some(found) => go_on(&mut node, &found)?,
            None => match begin(&mut node, current) {
                Err(error) if node.server.is_none() => return give_up(&mut node, error),
                end => end?,
            },
        };
        if end != End::Again {
            return node.leave(end);
        }
        if node.leaves {
            return node.leave(End::Stopped);
        }
        node.member.speaks = false;
    }
}

/// Leaves because no server could be started here: a current member that only went away, with gate
/// and address still in place, would keep everybody waiting.
fn give_up(node: &mut MemberContext<'_>, error: anyhow::Error) -> anyhow::Result<()> {
    let reason = format!("its server could not be started: {error:#}");
    node.set_ended(Role::None, &reason, "mend what it names; then start both members again");
    if let Err(left) = node.leave(End::Stopped) {
        tracing::warn!("{left:#}; `holdfast down` removes what is left");
    }
    Err(error)
}

/// Goes on with a server that ran alone and has outlived its daemon. A server that this daemon
/// cannot take up is left running, and is only watched.
fn go_on(node: &mut MemberContext<'_>, found: &leavings::Survivor) -> anyhow::Result<End> {
    survivor::end_unanswered(node, found);
    match survivor::take_up(node, found) {
        Ok(survivor) => primary::run_alone(node, survivor),
        Err(error) => survivor::run(node, found, &error),
    }
}

/// Remedy if a daemon cannot write its notes.
const NO_ROOM: &str = "make room there; this member tries it again by itself";

/// Remedy if an exchange of state folders, begun by an earlier daemon, cannot be completed.
const UNSETTLED: &str = "remove or unmount what it names, or give it to the server's user; this \
    member tries it again by itself";
/// Time in ms after which it is tried again.
const UNSETTLED_PAUSE_MS: u64 = 5000;

/// Begins with a new server, after everything that an earlier daemon has left is removed.
fn begin(node: &mut MemberContext<'_>, current: bool) -> anyhow::Result<End> {
    let orphan = {
        let user = leavings::server_user(&node.config.server);
        leavings::orphan(&node.config.group.run_dir, &node.me.name, user)?
    };
    node.note_removed(&orphan);
    node.server = None;
    node.hash_key = node.key.with(&node.other.name).first().hash_key();
    let pins = node.pin_dir();
    node.left = node.attend_until(|| leavings::earlier(&["gate", "tapdrop"], &pins));
    if let Err(error) = settle_folders(&node.config.server) {
        return node.wait_unsettled(&error.to_string(), UNSETTLED);
    }
    if current { primary::run(node) } else { run_backup(node) }
}

/// Completes an exchange of state folders that an earlier daemon has begun.
fn settle_folders(server: &Server) -> anyhow::Result<()> {
    let user = server.user.as_deref().map(fingerprint::user_ids).transpose()?;
    server.state_dirs.iter().try_for_each(|folder| Ok(settle(folder, user)?))
}

/// Runs as a backup, and after a takeover as the server that runs alone.
fn run_backup(node: &mut MemberContext<'_>) -> anyhow::Result<End> {
    match backup::run(node)? {
        Ended::Over(end) => Ok(end),
        Ended::Survives(survivor) => primary::run_alone(node, *survivor),
    }
}

impl MemberContext<'_> {
    /// Waits for somebody to repair what no server can begin here without.
    fn wait_unsettled(&mut self, reason: &str, remedy: &str) -> anyhow::Result<End> {
        self.set_state(Role::None, State::Waiting, reason, remedy);
        let until = Nanos(self.nanos()).plus(Nanos::from_ms(UNSETTLED_PAUSE_MS));
        drive(&mut Asking { node: self }, |stop, asking| {
            asking.turn_edge(&mut |_| {});
            match asking.now() >= until {
                _ if stop => Turn::End(End::Stopped),
                true => Turn::End(End::Again),
                false => Turn::Until(until),
            }
        })
    }

    /// Asks the edge who is current: every member starts silent (decision 21). Returns the epoch
    /// and whether this member is current in it; `None` if the daemon is to stop.
    fn ask_edge(&mut self) -> anyhow::Result<Option<Place>> {
        let remedy = "check that the edge's daemon runs and is reachable, and that the preferred member is started";
        self.set_state(Role::None, State::Waiting, "the edge has not said who is current", remedy);
        let preferred = self.config.first() == self.me.name;
        let mut ask = Ask::new(&self.me.name, &self.other.name, preferred, Nanos(self.nanos()));
        let end = drive(&mut Asking { node: self }, |stop, asking| {
            let turn = ask.turn(stop, asking);
            if let Some(reason) = ask.take_refused() {
                let reason = format!("the edge refused: {reason}");
                let remedy = "look at the edge's status";
                asking.node.set_state(Role::None, State::Waiting, &reason, remedy);
            }
            turn
        })?;
        Ok(match end {
            End::Placed(place) => Some(place),
            _ => None,
        })
    }
}

/// Refuses to be a second daemon of this member with another `run_dir`, in which no lock says so,
/// before it changes anything: its programs would take the place of the other's.
fn is_the_only_one(config: &Config, me: &Member) -> anyhow::Result<()> {
    let run_dir = &config.group.run_dir;
    // Who answers here holds the lock, and is told of as usual.
    if UnixStream::connect(admin_socket(run_dir, &me.name)).is_ok() {
        return Ok(());
    }
    let Some(pid) = daemon_heard_at(me.address) else { return Ok(()) };
    anyhow::bail!(
        "a daemon runs already at {}, the address of `{}`: process {pid}, which does not answer in \
         {}\n  remedy: `holdfast down --stop` with the file that it was started with ends it; or use \
         that file's run_dir here",
        me.address,
        me.name,
        run_dir.display()
    )
}

/// Checks that this member can listen at its address, where the other one connects when this one
/// is the primary. If a server from before this daemon runs alone here, it is not checked.
pub(super) fn may_listen(config: &Config, me: &Member) -> anyhow::Result<()> {
    if leavings::survivor(&config.group.run_dir, &me.name).is_some() {
        return Ok(());
    }
    let tried = TcpListener::bind(me.address).map(drop);
    tried.with_context(|| {
        let (at, name) = (me.address, &me.name);
        format!("cannot listen at {at}, the address of `{name}`{}", why_taken(at))
    })
}

/// The state of a member that has not heard from anybody yet.
pub(super) fn heard_of(config: &Config, me: &Member) -> MemberState {
    let period = Nanos(config.heartbeat().as_nanos() as u64);
    let other = &config.other(me).name;
    let mut state = MemberState::new(&config.group.name, &me.name, other, period, Nanos(0));
    state.standing.tell_file(fingerprint::of_file(config));
    state.rejoin_max = config.group.rejoin_max;
    state.is_cold = config.group.mode == Mode::Cold;
    state.buffering = config.group.buffering;
    state.alone_after = Nanos(config.group.alone_after_s * 1_000_000_000);
    state
}
