//! Which members still have the state that clients were told of. As long as one member has it, and
//! the faults have ended, clients must be served (liveness).

use crate::world::NAMES;

/// How much of the service's state a member has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing.
    #[default]
    Nothing,
    /// The state from the time when the other member became current.
    Older,
    /// A part: it is joining.
    Joins,
    /// A part: it is joining, and is being told at which position it is complete.
    Closes,
    Complete,
}

/// What the members have; see the module.
#[derive(Debug, Default)]
pub struct Alive {
    members: [State; 2],
    /// The newest epoch that was granted.
    epoch: u64,
    begun: bool,
    gone: bool,
    takeovers: u64,
}

impl Alive {
    pub fn primary_begins(&mut self, member: usize) {
        self.begun = true;
        self.members[member] = State::Complete;
    }

    /// Notes that a replica begins with its primary's first record.
    pub fn backup_begins(&mut self, member: usize) {
        self.members[member] = State::Complete;
    }

    pub fn joins(&mut self, member: usize) {
        self.members[member] = State::Joins;
        self.note();
    }

    pub fn leaves(&mut self, member: usize) {
        if self.is_joining(member) {
            self.members[member] = State::Older;
            self.note();
        }
    }

    pub fn is_joining(&self, member: usize) -> bool {
        matches!(self.members[member], State::Joins | State::Closes)
    }

    pub fn closes(&mut self, member: usize) {
        if self.is_joining(member) {
            self.members[member] = State::Closes;
        }
    }

    pub fn state_lost(&mut self, member: usize) {
        self.members[member] = State::Nothing;
        self.note();
    }

    /// Notes that `member` has become current, and that the other one's state is older from now
    /// on. Returns whether the current one knows less of what clients were told than the other.
    pub fn granted(&mut self, member: usize, epoch: u64) -> bool {
        let is_new = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        let [own, others] = [self.members[member], self.members[1 - member]];
        let is_stale = is_new && own == State::Older && others == State::Complete;
        // A member that becomes current again in the same epoch has lost no state.
        if is_new && epoch > 1 && self.begun {
            // What joins goes on with a primary that has the state, and not with one that begins anew.
            if !self.is_joining(1 - member) || own != State::Complete {
                self.members[1 - member] = State::Older;
            }
            self.note();
        }
        is_stale
    }

    pub fn took_over(&mut self, member: usize) {
        self.takeovers += 1;
        self.members[member] = State::Complete;
    }

    fn note(&mut self) {
        // Lost state does not come back with a new server.
        let goes_on = [State::Complete, State::Closes];
        self.gone |= !self.members.iter().any(|state| goes_on.contains(state));
    }

    /// Whether any member has served yet.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The newest epoch that was granted.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn takeovers(&self) -> u64 {
        self.takeovers
    }

    pub fn holders(&self) -> String {
        let has = |member: &usize| self.members[*member] == State::Complete;
        let names: Vec<&str> = (0..2).filter(has).map(|member| NAMES[member]).collect();
        format!("{} could serve it", names.join(" or "))
    }
}
