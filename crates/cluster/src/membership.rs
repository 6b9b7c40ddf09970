//! Who may speak: the edge's epochs (decisions 19 and 21).
//!
//! A grant is a promise that outlives the edge's process, so it is first
//! written, then used: the machine decides, the caller makes it durable and
//! says so, and only then does the epoch begin.

use crate::state::{EdgeState, is_member_name};

/// Members of one group, the edge's own limit.
pub const MEMBERS_MAX: usize = 16;

/// What to do about a request to be current.
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
    #[error("the epoch asked for is not the next one")]
    WrongEpoch,
    #[error("the member is not recorded as in step with the current one")]
    NotInStep,
    #[error("a backup is in step and answers; it continues the connections")]
    BackupInStep,
    #[error("another member is preferred for the very first start")]
    NotPreferred,
    #[error("another grant is being written")]
    Busy,
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
    /// It has been heard lately.
    answers: bool,
}

impl Member {
    fn is_ready(&self) -> bool {
        self.in_step && self.answers
    }
}

/// See the module.
///
/// # Contract
/// * After [`Decision::Grant`] write and sync `persist`, then call
///   `handle_persisted`, then flip the fence, then answer the member. If writing
///   fails, call `handle_persist_failed` and refuse.
/// * Until a member has asked (and got [`Decision::Reopen`] or a grant) after a
///   restart of the edge, the fence stays closed.
#[derive(Clone, Debug)]
pub struct EdgeMembership {
    /// In order of preference for the very first start.
    members: Vec<Member>,
    state: EdgeState,
    pending: Option<EdgeState>,
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
            answers: false,
        });
        let members = members.collect();
        Ok(Self { members, state, pending: None })
    }

    /// Who is current? Only what is durable counts.
    #[must_use]
    pub fn handle_ask(&self) -> &EdgeState {
        &self.state
    }

    /// Member `name` says that it is (or is no longer) in step in `epoch`. False
    /// if that means nothing: another epoch, an unknown or the current member,
    /// or a grant that is being written.
    pub fn handle_in_step(&mut self, name: &str, epoch: u64, yes: bool) -> bool {
        let current = self.state.current.as_deref() == Some(name);
        let valid = epoch == self.state.epoch && !current && self.pending.is_none();
        match self.members.iter_mut().find(|member| member.name == name) {
            Some(member) if valid => {
                member.in_step = yes;
                true
            }
            _ => false,
        }
    }

    /// Member `name` is heard, or has been silent for too long: a backup that
    /// does not answer bars nobody (decision 19). True if that is news.
    pub fn handle_answers(&mut self, name: &str, yes: bool) -> bool {
        let member = self.members.iter_mut().find(|member| member.name == name);
        member.is_some_and(|member| std::mem::replace(&mut member.answers, yes) != yes)
    }

    /// Has this member been heard lately?
    #[must_use]
    pub fn answers(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.answers)
    }

    /// Could this member take over: is it in step, and does it answer?
    #[must_use]
    pub fn is_ready(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.is_ready())
    }

    /// Is this member recorded as in step in the present epoch?
    #[must_use]
    pub fn is_in_step(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name && member.in_step)
    }

    /// Member `name` asks to be current in `epoch`.
    #[must_use]
    pub fn handle_promote(&mut self, name: &str, epoch: u64) -> Decision {
        match self.judge(name, epoch) {
            Err(refusal) => Decision::Refuse(refusal),
            Ok(()) if epoch == self.state.epoch => Decision::Reopen { epoch },
            Ok(()) => {
                let persist = EdgeState { epoch, current: Some(name.to_owned()) };
                self.pending = Some(persist.clone());
                Decision::Grant { persist }
            }
        }
    }

    fn judge(&self, name: &str, epoch: u64) -> Result<(), Refusal> {
        let Some(asking) = self.members.iter().find(|member| member.name == name) else {
            return Err(Refusal::UnknownMember);
        };
        if self.pending.is_some() {
            return Err(Refusal::Busy);
        }
        let current = self.state.current.as_deref();
        if current == Some(name) && epoch == self.state.epoch {
            return Ok(());
        }
        if Some(epoch) != self.state.epoch.checked_add(1) {
            return Err(Refusal::WrongEpoch);
        }
        match current {
            None if self.members.first().is_some_and(|first| first.name == name) => Ok(()),
            None => Err(Refusal::NotPreferred),
            // A current member that starts anew has lost its connections; a
            // backup in step has not.
            Some(current) if current == name && self.members.iter().any(Member::is_ready) => {
                Err(Refusal::BackupInStep)
            }
            Some(current) if current == name => Ok(()),
            Some(_) if asking.in_step => Ok(()),
            Some(_) => Err(Refusal::NotInStep),
        }
    }

    /// The granted state is on disk: the epoch begins, and nobody is in step in
    /// it. `None` if nothing was being written.
    pub fn handle_persisted(&mut self) -> Option<&EdgeState> {
        self.state = self.pending.take()?;
        self.members.iter_mut().for_each(|member| member.in_step = false);
        Some(&self.state)
    }

    /// Writing failed: everything is as before.
    pub fn handle_persist_failed(&mut self) {
        self.pending = None;
    }
}

#[cfg(test)]
mod tests;
