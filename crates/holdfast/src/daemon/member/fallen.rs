//! What a member reports about rebuilding its server on its own host after a crash
//! (decision 31).

use super::MemberContext;
use crate::daemon::advice;
use crate::status::{Role, State};
use holdfast_cluster::Nanos;
use holdfast_linux::process::Ending;
use holdfast_wire::message::ConnKey;

/// Values of the status field `rebuild`: the server could be rebuilt; not until all is kept.
const YES: &str = "yes";
const NOT_YET: &str = "no: not yet";
/// The same while it is: who kills it again, or its daemon, ends it.
const IS_REBUILT: &str = "no: it is just being rebuilt";

fn in_words(how: Option<Ending>) -> String {
    how.map_or_else(String::new, |how| format!(", {how}"))
}

impl MemberContext<'_> {
    /// Notes that a server begins to run alone.
    pub fn begin_alone(&mut self) {
        let wanted = self.config.group.rebuild;
        self.status.rebuild = if wanted { NOT_YET.to_owned() } else { String::new() };
        // A handover that the operator asked for is cancelled.
        self.leaves = false;
    }

    /// Whether all is kept that the server can be rebuilt from.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.status.rebuild == YES
    }

    /// Notes that after `took` all is kept that the server can be rebuilt from.
    pub fn note_kept(&mut self, took: Nanos) {
        self.status.rebuild = YES.to_owned();
        let what =
            format!("all that the server can be rebuilt of, after {} ms", took.0 / 1_000_000);
        self.events.add("kept", what);
    }

    /// Notes why the server could not be rebuilt now.
    pub fn note_unkept(&mut self, reason: &str) {
        let said = format!("no: {reason}");
        if self.status.rebuild != said {
            self.events.add("not kept", reason);
            self.status.rebuild = said;
        }
    }

    /// Why a server that has ended is not rebuilt although the file asks for it, to be put
    /// behind the reason; empty if it does not, or nothing was in the way.
    #[must_use]
    pub fn why_unkept(&self) -> String {
        let why = self.status.rebuild.strip_prefix("no: ");
        why.map_or_else(String::new, |why| format!("; it could not be rebuilt: {why}"))
    }

    /// Notes that the server has crashed and is being rebuilt: `how` it ended, and the position
    /// in bytes at which its log ends.
    pub fn note_fall(&mut self, how: Option<Ending>, log_at: u64) {
        let what = format!("the server{}; its log ends at {log_at}", in_words(how));
        self.events.add("fell", what);
        *self.status.counters.entry("server.falls".to_owned()).or_default() += 1;
        self.status.rebuild = IS_REBUILT.to_owned();
        let reason = format!("{}{}; it is rebuilt on this host", advice::ENDED, in_words(how));
        self.set_state(Role::Primary, State::Waiting, &reason, advice::WAIT);
    }

    /// Notes that the crashed server is not rebuilt: `how` it ended, `why` it stays down, and the
    /// connection whose `input` it was given last.
    pub fn set_fallen(&mut self, how: Option<Ending>, why: &str, input: Option<ConnKey>) {
        let last = input.map_or_else(
            || "nobody had sent it anything".to_owned(),
            |key| format!("the last that it was given came by the connection {key}"),
        );
        let reason =
            format!("{}{}, and is not rebuilt: {why}; {last}", advice::ENDED, in_words(how));
        self.events.add("not rebuilt", format!("{why}; {last}"));
        self.set_ended(Role::Primary, &reason, advice::AFTER_FALL);
    }
}
