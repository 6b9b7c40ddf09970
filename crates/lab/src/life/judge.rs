//! Judges whether `status` is true on every host.

use super::act::Truth;
use crate::testbed::Role;
use crate::testbed::ours::Group;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Longest time until what a daemon says is true again. Clients have been served for long by then.
const TRUTH_LIMIT: Duration = Duration::from_secs(6);

/// Longest time of a heal, without the pause of a backup that gave up: the search for what is
/// missing, the image, clients that acknowledge late, and attempts that failed.
const HEAL_LIMIT: Duration = Duration::from_secs(40);

/// Time between two questions to the daemons while the lab waits.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Names of the states in which the service runs.
const SERVING: [&str; 2] = ["protected", "unprotected"];

/// Asks until every host tells the truth. Returns how long that took, in ms, and what is still
/// untrue at the limit.
pub fn wait_for_truth(group: &Group<'_>, truth: Truth, down: &[Role]) -> (u64, Vec<String>) {
    wait_until(TRUTH_LIMIT, || lies(group, truth, down))
}

/// Asks until nothing is untrue, or the limit has passed.
fn wait_until(limit: Duration, lies: impl Fn() -> Vec<String>) -> (u64, Vec<String>) {
    let start = Instant::now();
    loop {
        let lies = lies();
        let elapsed = start.elapsed();
        if lies.is_empty() || elapsed > limit {
            return (elapsed.as_millis() as u64, lies);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// A heal that is expected.
#[derive(Clone, Debug)]
pub struct Heal {
    /// The member that serves during the heal.
    pub current: Role,
    /// When that member was last joined, by its events; see [`last_joined`].
    pub before: Option<String>,
    /// How long the other member may pause before it joins.
    pub rest: Duration,
}

/// When a member was last joined, by its events.
pub fn last_joined(group: &Group<'_>, member: Role) -> Option<String> {
    let events = group.events(member);
    events.into_iter().rev().find(|(_, what)| what == "joined").map(|(at, _)| at)
}

/// Asks until the group has healed, and compares every status meanwhile with what it may be during
/// a heal. Returns how long that took, in ms, and what was untrue.
pub fn wait_for_heal(group: &Group<'_>, heal: &Heal) -> (u64, Vec<String>) {
    let start = Instant::now();
    let elapsed_ms = || start.elapsed().as_millis() as u64;
    let current = heal.current;
    let (_, lies) = wait_until(TRUTH_LIMIT, || lies_of_heal(group, current));
    if !lies.is_empty() {
        return (elapsed_ms(), lies);
    }
    let pair = Truth::Pair { current };
    loop {
        let lies = lies_of_heal(group, current);
        if !lies.is_empty() {
            return (elapsed_ms(), lies);
        }
        // The state from before the loss was noticed does not count as healed.
        let missing = match last_joined(group, current) {
            joined if joined == heal.before => vec!["nobody has joined".to_owned()],
            _ => self::lies(group, pair, &[]),
        };
        if missing.is_empty() || start.elapsed() > HEAL_LIMIT + heal.rest {
            return (elapsed_ms(), missing);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn lies_of_heal(group: &Group<'_>, current: Role) -> Vec<String> {
    let wrong = |role: Role| {
        let name = role.name();
        let Ok(status) = group.status(role) else {
            return Some(format!("the {name} does not answer"));
        };
        let wrong = judge_healing(role, &status, current)?;
        Some(format!("while the group heals the {name} {}, and {wrong}", said(&status)))
    };
    [Role::Edge, Role::Primary, Role::Backup].into_iter().filter_map(wrong).collect()
}

/// What is wrong with a host's status while the other member joins `current`, if anything.
fn judge_healing(role: Role, status: &Value, current: Role) -> Option<String> {
    let says = |field: &str| status[field].as_str().unwrap_or_default();
    let (part, state, reason) = (says("role"), says("state"), says("reason"));
    let serves = SERVING.contains(&state);
    let joins = share_joined(reason);
    let wrong = match role {
        _ if state != "protected" && reason.is_empty() => "gives no reason",
        _ if joins.is_some_and(|percent| percent > 100) => "tells more than the whole",
        Role::Edge if !serves => "the service runs",
        Role::Edge => return None,
        member if member == current => match joins {
            _ if part != "primary" || !serves => "it serves",
            Some(_) if state != "unprotected" => "nobody could take over yet",
            _ => return None,
        },
        _ if part == "primary" && serves => "does not serve",
        _ if part != "backup" && serves => "is nobody's backup",
        // A joiner in step quotes its primary, whose word is a moment older.
        _ if reason.starts_with("joins ") && state != "waiting" => "could not take over yet",
        _ => return None,
    };
    Some(wrong.to_owned())
}

/// Percentage of a server's image that was copied, if the reason tells it.
fn share_joined(reason: &str) -> Option<u64> {
    let (before, _) = reason.split_once(" % of the server is ")?;
    before.rsplit(' ').next()?.parse().ok()
}

fn said(status: &Value) -> String {
    let says = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    format!("says `{}, {}: {}`", says("role"), says("state"), says("reason"))
}

/// Everything in the hosts' status that is not as it must be; `down`: daemons that do not run.
pub fn lies(group: &Group<'_>, truth: Truth, down: &[Role]) -> Vec<String> {
    let mut lies = Vec::new();
    let mut epochs = Vec::new();
    for role in [Role::Edge, Role::Primary, Role::Backup] {
        let status = group.status(role).ok();
        if down.contains(&role) {
            if let Some(status) = status {
                lies.push(format!("the {} answers although it is dead: {status}", role.name()));
            }
            continue;
        }
        let Some(status) = status else {
            lies.push(format!("the {} does not answer", role.name()));
            continue;
        };
        let wrong = judge(role, &status, truth);
        if let Some(wrong) = wrong {
            lies.push(format!("the {} {}, and {wrong}", role.name(), said(&status)));
        }
        if role == Role::Edge || truth.speaker() == Some(role) {
            epochs.push(status["epoch"].as_u64());
        }
    }
    if truth.speaker().is_some() && epochs.len() == 2 && epochs[0] != epochs[1] {
        lies.push(format!("edge and speaker are in different epochs: {epochs:?}"));
    }
    lies
}

/// What is wrong with one host's status, if anything.
fn judge(role: Role, status: &Value, truth: Truth) -> Option<String> {
    let says = |field: &str| status[field].as_str().unwrap_or_default();
    let state = says("state");
    if state != "protected" && says("reason").is_empty() {
        return Some(format!("gives no reason for `{state}`"));
    }
    let wanted = match (truth, role) {
        (Truth::Pair { .. }, Role::Edge) => ("edge", Some("protected")),
        (Truth::Pair { current }, member) if member == current => ("primary", Some("protected")),
        (Truth::Pair { .. }, _) => ("backup", Some("protected")),
        (Truth::Solo { .. }, Role::Edge) => ("edge", Some("unprotected")),
        (Truth::Solo { survivor }, member) if member == survivor => {
            ("primary", Some("unprotected"))
        }
        (Truth::Solo { .. } | Truth::Dead { .. }, _) => ("", None),
    };
    match wanted {
        (_, None) if SERVING.contains(&state) => Some("does not serve".to_owned()),
        (_, None) => None,
        (name, Some(wanted)) if state != wanted || says("role") != name => {
            Some(format!("it is `{name}, {wanted}`"))
        }
        _ => None,
    }
}

/// What is missing in a survivor's report of its takeover, if anything.
pub fn takeover_is_told(group: &Group<'_>, truth: Truth) -> Option<String> {
    let survivor = truth.speaker()?;
    let status = group.status(survivor).ok()?;
    let cause = status["last_takeover"]["cause"].as_str().unwrap_or_default();
    let lost = survivor.other().name();
    cause.is_empty().then(|| format!("the survivor of {lost} does not tell of its takeover"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lies_are_seen() {
        let pair = Truth::Pair { current: Role::Primary };
        let solo = Truth::Solo { survivor: Role::Backup };
        let dead = Truth::Dead { last: Role::Backup };
        let says = |role, state, reason| json!({"role": role, "state": state, "reason": reason});
        let protected = |role| says(role, "protected", "");
        assert_eq!(judge(Role::Edge, &protected("edge"), pair), None);
        assert_eq!(judge(Role::Backup, &protected("backup"), pair), None);
        assert!(judge(Role::Backup, &protected("backup"), solo).is_some());
        assert!(judge(Role::Edge, &protected("edge"), solo).is_some());
        assert!(judge(Role::Primary, &protected("primary"), solo).is_some());
        assert_eq!(judge(Role::Primary, &says("none", "fenced", "b is current"), solo), None);
        assert!(judge(Role::Primary, &says("none", "fenced", ""), solo).is_some());
        assert!(judge(Role::Edge, &says("edge", "unprotected", "x"), dead).is_some());
        assert_eq!(judge(Role::Edge, &says("edge", "waiting", "x"), dead), None);
    }

    #[test]
    fn a_heal_is_told_as_it_goes() {
        let says = |role, state, reason| json!({"role": role, "state": state, "reason": reason});
        let judge = |role, status: Value| judge_healing(role, &status, Role::Backup);
        let whole = "b joins: 100 % of the server is there";
        let part = "joins b: 7 % of the server is here";
        assert_eq!(judge(Role::Backup, says("primary", "unprotected", whole)), None);
        assert_eq!(judge(Role::Backup, says("primary", "protected", "")), None);
        assert_eq!(judge(Role::Primary, says("backup", "waiting", part)), None);
        assert_eq!(judge(Role::Primary, says("none", "fenced", "b is current")), None);
        assert_eq!(judge(Role::Primary, says("backup", "protected", "")), None);
        assert_eq!(judge(Role::Edge, says("edge", "unprotected", "x")), None);
        let quoted = "b: a joins: 99 % of the server is there";
        assert_eq!(judge(Role::Primary, says("backup", "unprotected", quoted)), None);
        assert!(judge(Role::Backup, says("primary", "protected", whole)).is_some());
        assert!(judge(Role::Backup, says("primary", "waiting", "x")).is_some());
        assert!(judge(Role::Primary, says("backup", "protected", part)).is_some());
        assert!(judge(Role::Primary, says("primary", "unprotected", "x")).is_some());
        assert!(judge(Role::Primary, says("backup", "waiting", "")).is_some());
        assert!(judge(Role::Edge, says("edge", "waiting", "x")).is_some());
        let beyond = "b joins: 101 % of the server is there";
        assert!(judge(Role::Backup, says("primary", "unprotected", beyond)).is_some());
    }
}
