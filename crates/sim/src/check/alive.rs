//! Which members still have what the clients were told. As long as one member
//! has it, and the faults have ended, clients must be served.

use crate::world::NAMES;

/// A member's knowledge of the service's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing.
    #[default]
    Nothing,
    /// The state of the time when the other member was let speak.
    Older,
    /// Only a part: it joins, and is not in step.
    Joins,
    /// The same, and it is being told where it has everything.
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

    /// Notes that the member which is not current falls behind from now on. Returns
    /// whether the current one knows less than the other about what clients were
    /// told.
    pub fn granted(&mut self, member: usize, epoch: u64) -> bool {
        let is_new = epoch > self.epoch;
        self.epoch = self.epoch.max(epoch);
        let [own, others] = [self.members[member], self.members[1 - member]];
        let is_stale = is_new && own == State::Older && others == State::Complete;
        // A member that speaks anew in the same epoch has lost nobody.
        if is_new && epoch > 1 && self.begun {
            if !self.is_joining(1 - member) {
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
        // What is lost does not come back with a server that starts anew.
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
