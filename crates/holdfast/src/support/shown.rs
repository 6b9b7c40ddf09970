//! What a trial has shown, in words and as a verdict.

use super::Verdict;
use crate::status::counted;
use serde::Serialize;
use std::collections::BTreeMap;

/// A server's words for what its user may not do.
const NO_RIGHTS: [&str; 3] = ["permission denied", "operation not permitted", "eacces"];

/// What a trial has shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trial {
    /// Whom it ran as.
    pub user: String,
    /// Ports at which it listened, of TCP.
    pub ports: Vec<u16>,
    /// Records that it logged, by call.
    pub calls: BTreeMap<String, u64>,
    /// Processes that it has forked.
    pub forks: u32,
    /// How the client ended; absent without one.
    pub client: Option<String>,
    pub has_client_failed: bool,
    /// Why it lost its protection, or ended.
    pub primary: Option<String>,
    /// Whether it ended by itself: that says nothing of its protection.
    pub has_ended: bool,
    /// Why its copy did not follow.
    pub replica: Option<String>,
    /// What the shim said, and the server's last words if it ended.
    pub said: Vec<String>,
    /// What to try next, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

impl Trial {
    /// Whether nothing went wrong.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        let is_server = !self.ports.is_empty();
        self.primary.is_none() && self.replica.is_none() && is_server && !self.has_client_failed
    }

    /// What becomes of a server of which `before` was known, now that it was tried. A trial in which
    /// it did not serve shows nothing, and one that passed removes no doubt about what it did not do.
    #[must_use]
    pub fn verdict(&self, before: Verdict) -> Verdict {
        let is_broken = self.primary.is_some() && !self.has_ended || self.replica.is_some();
        match (self.has_passed(), is_broken) {
            (true, _) => before,
            (false, true) => Verdict::Refused,
            (false, false) => Verdict::NotKnown,
        }
    }

    /// What to try next.
    pub(super) fn next(&self) -> Option<&'static str> {
        let lacks = |line: &String| {
            let line = line.to_ascii_lowercase();
            NO_RIGHTS.iter().any(|words| line.contains(words))
        };
        if self.has_ended && self.user != "root" && self.said.iter().any(lacks) {
            return Some("its user may not do that: try it with --user root, or as its own user");
        }
        (self.ports.is_empty() && !self.has_ended && self.primary.is_none())
            .then_some("give a server, with the arguments by which it listens to TCP")
    }

    /// In a few sentences.
    #[must_use]
    pub fn summary(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let records: u64 = self.calls.values().sum();
        let listened = match ports.is_empty() {
            true => "it never listened to TCP".to_owned(),
            false => format!("it listened at {}", ports.join(", ")),
        };
        let calls = counted(records, "call");
        let mut parts = vec![format!("as `{}` {listened}, and logged {calls}", self.user)];
        if self.forks > 0 {
            parts.push(format!("it forked {}", counted(self.forks.into(), "time")));
        }
        parts.extend(self.client.iter().map(|how| format!("the client ended {how}")));
        match (&self.primary, &self.replica) {
            (Some(why), _) if self.has_ended => {
                parts.push(format!("{why}, so that nothing was tried"))
            }
            (Some(why), _) => parts.push(format!("it would not be protected: {why}")),
            (None, Some(why)) => parts.push(format!("a replica did not follow: {why}")),
            (None, None) if self.ports.is_empty() => {
                parts.push("there was nothing to protect".to_owned())
            }
            (None, None) => parts.push("a replica repeated all of it".to_owned()),
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_has_one_verdict() {
        let trial = |ports: &[u16], primary: Option<&str>, has_ended| Trial {
            user: "nobody".to_owned(),
            ports: ports.to_vec(),
            primary: primary.map(str::to_owned),
            has_ended,
            ..Trial::default()
        };
        let passed = trial(&[80], None, false);
        for before in [Verdict::Works, Verdict::WorksWithASetting, Verdict::NotKnown] {
            assert_eq!(passed.verdict(before), before);
        }
        let broken = trial(&[80], Some("a child process serves"), false);
        assert_eq!(broken.verdict(Verdict::Works), Verdict::Refused);
        let silent = Trial { remedy: trial(&[], None, false).next(), ..trial(&[], None, false) };
        assert_eq!(silent.verdict(Verdict::Works), Verdict::NotKnown);
        assert!(!silent.has_passed() && silent.remedy.is_some());
        assert!(silent.summary().contains("it never listened"), "{}", silent.summary());
        let mut ended = trial(&[], Some("it ended with exit status 255"), true);
        assert_eq!((ended.verdict(Verdict::Works), ended.next()), (Verdict::NotKnown, None));
        assert!(!ended.summary().contains("protected"), "{}", ended.summary());
        ended.said = vec!["opening pid-file failed: /run/x.pid Permission denied".to_owned()];
        assert!(ended.next().is_some_and(|it| it.contains("--user root")));
        let failed = Trial { has_client_failed: true, ..passed };
        assert_eq!(failed.verdict(Verdict::Works), Verdict::NotKnown);
    }
}
