//! Who may speak: the edge's epochs (decisions 19 and 21).
//!
//! A grant is a promise that outlives the edge's process, so it is first
//! written, then used: the machine decides, the caller makes it durable and
//! says so, and only then does the epoch begin.

use crate::state::{EdgeState, is_member_name};

/// Most members of one group, the edge's own limit.
pub const MEMBERS_MAX: usize = 16;

/// The answer to a member's request to become current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Make this durable, then call [`EdgeMembership::handle_persisted`].
    Grant {
        persist: EdgeState,
    },
    /// The member is current in this epoch already: open the fence for it (an
    /// edge that restarts starts closed).
    Reopen {
        epoch: u64,
    },
    Refuse(Refusal),
}

/// Why a member may not become current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the member is not in the edge's configuration")]
    UnknownMember,
    #[error("the epoch asked for is not the next one: another member has been granted one since")]
    WrongEpoch,
    #[error("the member is not recorded as in step with the current one")]
    NotInStep,
    #[error("a backup is in step and answers; it continues the connections")]
    BackupInStep,
    #[error("another member is preferred for the very first start")]
    NotPreferred,
    #[error("another grant is being written")]
    Busy,
    #[error("the edge was closed by hand; open it with `holdfast edge unfence`")]
    Fenced,
    #[error("the edge has just started and waits for all members to say which epoch they know")]
    Settling,
    #[error(
        "the edge's state file is older than what the members know; only the primary of the newest epoch may go on: start it, or restart all members if its connections are lost"
    )]
    Behind,
}

impl Refusal {
    /// Whether asking again is useless: the member stands down. Any other
    /// refusal may pass, and the asking member may be the last to hold the
    /// connections.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::UnknownMember | Self::WrongEpoch | Self::NotInStep => true,
            Self::BackupInStep
            | Self::NotPreferred
            | Self::Busy
            | Self::Fenced
            | Self::Settling
            | Self::Behind => false,
        }
    }
}

/// A member list that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    #[error("a group has 1 to {MEMBERS_MAX} members, not {0}")]
    Count(usize),
    #[error("`{0}` is not a member name: use up to 64 of a-z, A-Z, 0-9, `-`, `_`, `.`")]
    Name(String),
    #[error("`{0}` is named twice")]
    Twice(String),
    #[error("the state file names `{0}`, which is not in the configuration")]
    StateNames(String),
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    in_step: bool,
    /// Whether it is in step and builds its server, which it does not ask to be
    /// current before.
    builds: bool,
    /// Whether the member has said, since this edge was started, if it is in
    /// step.
    told: bool,
    /// Whether the member has been heard lately.
    answers: bool,
    /// Content of its hello; `None` before the first one.
    hello: Option<Greeting>,
}

/// What a member's hello says about epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Greeting {
    /// The member's epoch; 0 if it has just started.
    pub epoch: u64,
    /// Whether it is the primary of that epoch and its server lives.
    pub speaks: bool,
}

impl Member {
    fn is_ready(&self) -> bool {
        self.in_step && self.answers
    }

    /// Whether the current member may not begin another epoch because of this one: a
    /// server that `lives` has its connections still, and one that is being built may
    /// fail.
    fn bars(&self, lives: bool) -> bool {
        self.is_ready() && !(self.builds && lives)
    }

    fn speaks_in(&self, epoch: u64) -> bool {
        self.hello == Some(Greeting { epoch, speaks: true })
    }
}

/// The edge's epochs; see the module.
///
/// # Contract
/// * After [`Decision::Grant`] write and sync `persist`, then call
///   `handle_persisted`, then flip the fence, then answer the member. If writing
///   fails, call `handle_persist_failed` and refuse.
/// * Call `handle_settled` some time after the start: until then, or until every member has
///   said hello, a current member that starts anew is granted nothing, because a backup
///   in step may be about to say so. If `state` may be old (the fence in the kernel is
///   new, so the host was started again), call `handle_boot`: until then no member is
///   granted anything.
/// * After `handle_hello` and `handle_settled` look at `claim`.
/// * Until a member has asked (and got [`Decision::Reopen`] or a grant) after a
///   restart of the edge, the fence stays closed.
#[derive(Clone, Debug)]
pub struct EdgeMembership {
    /// Members in order of preference for the very first start.
    members: Vec<Member>,
    state: EdgeState,
    pending: Option<EdgeState>,
    /// Whether members that know more than this newly started edge have had the time to
    /// say so.
    settled: bool,
    /// Whether the state may be old.
    booted: bool,
}

impl EdgeMembership {
    /// `names` in order of preference; `state` as read from disk, or the default
    /// before the very first start. Nobody is in step yet.
    ///
    /// # Errors
    /// If the names are unusable, or the state names somebody else.
    pub fn new(names: &[&str], state: EdgeState) -> Result<Self, MembersError> {
        if names.is_empty() || names.len() > MEMBERS_MAX {
            return Err(MembersError::Count(names.len()));
        }
        for (index, name) in names.iter().enumerate() {
            if !is_member_name(name) {
                return Err(MembersError::Name((*name).to_owned()));
            }
            if names[..index].contains(name) {
                return Err(MembersError::Twice((*name).to_owned()));
            }
        }
        if let Some(current) = &state.current
            && !names.contains(&current.as_str())
        {
            return Err(MembersError::StateNames(current.clone()));
        }
        let members = names.iter().map(|name| Member {
            name: (*name).to_owned(),
            in_step: false,
            builds: false,
            told: false,
            answers: false,
            hello: None,
        });
        let members = members.collect();
        Ok(Self { members, state, pending: None, settled: false, booted: false })
    }

    /// Answers who is current. Only what is durable counts.
    #[must_use]
    pub fn handle_ask(&self) -> &EdgeState {
        &self.state
    }

    /// The host has been started again: nobody but the members can contradict the
    /// state.
    pub fn handle_boot(&mut self) {
        self.booted = true;
    }

    /// Stops waiting for members that have not said hello by now.
    pub fn handle_settled(&mut self) {
        self.settled = true;
    }

    /// Notes that member `name` says which epoch it knows, and whether it
    /// speaks in it.
    pub fn handle_hello(&mut self, name: &str, greeting: Greeting) {
        if let Some(member) = self.members.iter_mut().find(|member| member.name == name) {
            member.hello = Some(greeting);
        }
        self.settle();
    }

    /// Settles once no member is left that has something to say that this edge
    /// does not know.
    fn settle(&mut self) {
        let state = &self.state;
        let owes_word = |member: &Member| match member.hello {
            None => true,
            // A backup of this epoch says next whether it is in step.
            Some(hello) => {
                let is_current = state.current.as_deref() == Some(&member.name);
                hello.epoch == state.epoch && state.epoch > 0 && !is_current && !member.told
            }
        };
        self.settled |= !self.members.iter().any(owes_word);
    }

    /// A member that speaks in a newer epoch than the state's: the file was
    /// lost or rolled back. The member is to be promoted in that epoch.
    #[must_use]
    pub fn claim(&self) -> Option<(&str, u64)> {
        let newest = self.newest_known();
        if self.is_settling() || self.pending.is_some() || !self.is_behind() {
            return None;
        }
        let mut speaks = self.members.iter().filter(|member| member.speaks_in(newest));
        let first = speaks.next()?;
        // Two members have never been granted the same epoch.
        speaks.next().is_none().then_some((first.name.as_str(), newest))
    }

    /// Whether only the members can say what is true, and not all of them have been
    /// heard.
    const fn is_settling(&self) -> bool {
        self.booted && !self.settled
    }

    fn newest_known(&self) -> u64 {
        self.members.iter().filter_map(|member| Some(member.hello?.epoch)).max().unwrap_or(0)
    }

    /// Whether the members know more than the state.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let newest = self.newest_known();
        newest > self.state.epoch || (self.is_lost() && newest == self.state.epoch)
    }

    fn is_current(&self, name: &str, epoch: u64) -> bool {
        epoch == self.state.epoch && self.state.current.as_deref() == Some(name)
    }

    /// Whether the epoch has no member: only the fence was left of the state.
    fn is_lost(&self) -> bool {
        self.state.epoch > 0 && self.state.current.is_none()
    }

    /// Notes that member `name` says that it is (or is no longer) in step in
    /// `epoch`. False if that means nothing: another epoch, an unknown or the
    /// current member. It counts even while a grant is being written, because
    /// writing may fail.
    pub fn handle_in_step(&mut self, name: &str, epoch: u64, yes: bool) -> bool {
        let current = self.state.current.as_deref() == Some(name);
        let valid = epoch == self.state.epoch && !current;
        match self.members.iter_mut().find(|member| member.name == name) {
            Some(member) if valid => {
                (member.in_step, member.builds, member.told) = (yes, false, true);
                self.settle();
                true
            }
            _ => false,
        }
    }

    /// Notes that the channel of member `name` has opened or closed: it is not in step until it says
    /// so again, and that word of its is still to come.
    pub fn handle_left(&mut self, name: &str) {
        if let Some(member) = self.members.iter_mut().find(|member| member.name == name) {
            member.in_step = false;
        }
    }

    /// Notes that member `name` says that it is in step in `epoch`, and builds its
    /// server. False as for [`Self::handle_in_step`].
    pub fn handle_builds(&mut self, name: &str, epoch: u64) -> bool {
        let is_valid = self.handle_in_step(name, epoch, true);
        if is_valid {
            let same = |member: &&mut Member| member.name == name;
            self.members.iter_mut().find(same).into_iter().for_each(|member| member.builds = true);
        }
        is_valid
    }

    /// Whether this member is in step and builds its server.
    #[must_use]
    pub fn builds(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.in_step && member.builds)
    }

    /// Notes that member `name` is heard, or has been silent for too long: a
    /// backup that does not answer bars nobody (decision 19). True if that is
    /// news.
    pub fn handle_answers(&mut self, name: &str, yes: bool) -> bool {
        let member = self.members.iter_mut().find(|member| member.name == name);
        member.is_some_and(|member| std::mem::replace(&mut member.answers, yes) != yes)
    }

    /// Whether this member has been heard lately.
    #[must_use]
    pub fn answers(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.answers)
    }

    /// Whether this member could take over: it is in step, and it answers.
    #[must_use]
    pub fn is_ready(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.is_ready())
    }

    /// Whether this member is recorded as in step in the present epoch.
    #[must_use]
    pub fn is_in_step(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.in_step)
    }

    /// Decides on the request of member `name` to be current in `epoch`.
    #[must_use]
    pub fn handle_promote(&mut self, name: &str, epoch: u64) -> Decision {
        self.decide(name, epoch, false)
    }

    /// Like [`Self::handle_promote`], of the current member, whose server lives and has lost its
    /// backup.
    #[must_use]
    pub fn handle_alone(&mut self, name: &str, epoch: u64) -> Decision {
        self.decide(name, epoch, true)
    }

    fn decide(&mut self, name: &str, epoch: u64, lives: bool) -> Decision {
        match self.judge(name, epoch, lives) {
            Err(refusal) => Decision::Refuse(refusal),
            Ok(()) if self.is_current(name, epoch) => Decision::Reopen { epoch },
            Ok(()) => {
                let current = Some(name.to_owned());
                let persist = EdgeState { epoch, current, fenced: self.state.fenced };
                assert!(self.begins(&persist), "L3: an epoch is granted twice");
                self.pending = Some(persist.clone());
                Decision::Grant { persist }
            }
        }
    }

    fn judge(&self, name: &str, epoch: u64, lives: bool) -> Result<(), Refusal> {
        let Some(asking) = self.members.iter().find(|member| member.name == name) else {
            return Err(Refusal::UnknownMember);
        };
        if self.pending.is_some() {
            return Err(Refusal::Busy);
        }
        if self.state.fenced {
            return Err(Refusal::Fenced);
        }
        if self.claim() == Some((name, epoch)) {
            return Ok(());
        }
        if self.is_behind() {
            return Err(Refusal::Behind);
        }
        let current = self.state.current.as_deref();
        if self.is_current(name, epoch) {
            return Ok(());
        }
        match self.state.epoch.checked_add(1) {
            Some(next) if epoch == next => {}
            // A member that asks for a later epoch than the next one knows more
            // than the state.
            Some(next) if epoch > next => return Err(Refusal::Behind),
            _ => return Err(Refusal::WrongEpoch),
        }
        if self.is_settling() {
            return Err(Refusal::Settling);
        }
        match current {
            None if self.is_lost() && self.members.iter().any(|member| member.hello.is_none()) => {
                Err(Refusal::Behind)
            }
            None if self.members.first().is_some_and(|first| first.name == name) => Ok(()),
            // No member ever spoke, and the preferred one is not there.
            None if self.settled && !self.members.first().is_some_and(|first| first.answers) => {
                Ok(())
            }
            None => Err(Refusal::NotPreferred),
            // A current member that starts anew has lost its connections; a
            // backup in step has not.
            Some(current)
                if current == name && self.members.iter().any(|member| member.bars(lives)) =>
            {
                Err(Refusal::BackupInStep)
            }
            Some(current) if current == name && !self.settled => Err(Refusal::Settling),
            Some(current) if current == name => Ok(()),
            Some(_) if asking.in_step => Ok(()),
            Some(_) => Err(Refusal::NotInStep),
        }
    }

    /// Whether this is a new epoch. If only the fence was left of an epoch,
    /// only the member that speaks in it knows whose it was.
    fn begins(&self, granted: &EdgeState) -> bool {
        granted.epoch > self.state.epoch || (self.is_lost() && granted.epoch == self.state.epoch)
    }

    /// The operator closes or opens the edge. Returns what is to be written; a
    /// grant that is being written carries it, too.
    pub fn handle_fenced(&mut self, fenced: bool) -> &EdgeState {
        self.state.fenced = fenced;
        if let Some(pending) = &mut self.pending {
            pending.fenced = fenced;
        }
        &self.state
    }

    /// Notes that the granted state is on disk: the epoch begins, and nobody is
    /// in step in it. `None` if nothing was being written.
    pub fn handle_persisted(&mut self) -> Option<&EdgeState> {
        let granted = self.pending.take()?;
        assert!(self.begins(&granted), "L3: an epoch is granted twice");
        self.state = granted;
        for member in &mut self.members {
            member.in_step = false;
        }
        Some(&self.state)
    }

    /// Notes that writing failed: everything is as before.
    pub fn handle_persist_failed(&mut self) {
        self.pending = None;
    }
}

#[cfg(test)]
mod tests;
