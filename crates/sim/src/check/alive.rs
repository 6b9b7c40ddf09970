//! Who still has what the clients were told. As long as one member has it, and
//! the faults have ended, clients must be served.

use crate::world::NAMES;

/// What a member has of the service's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing, or something older.
    #[default]
    Nothing,
    Complete,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Alive {
    members: [State; 2],
    begun: bool,
    gone: bool,
    takeovers: u64,
}

impl Alive {
    pub fn primary_begins(&mut self, member: usize) {
        self.begun = true;
        self.members[member] = State::Complete;
    }

    /// A replica begins with its primary's first record.
    pub fn backup_begins(&mut self, member: usize) {
        self.members[member] = State::Complete;
    }

    pub fn state_lost(&mut self, member: usize) {
        self.members[member] = State::Nothing;
        self.note();
    }

    /// Another member than the one that is current falls behind from now on.
    pub fn granted(&mut self, member: usize, epoch: u64) {
        if epoch > 1 && self.begun {
            self.members[1 - member] = State::Nothing;
            self.note();
        }
    }

    pub fn took_over(&mut self, member: usize) {
        self.takeovers += 1;
        self.members[member] = State::Complete;
    }

    fn note(&mut self) {
        // What is lost does not come back with a server that starts anew.
        self.gone |= self.members == [State::Nothing; 2];
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
