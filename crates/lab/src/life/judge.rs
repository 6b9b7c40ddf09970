//! Whether `status` tells the truth, on every host.

use super::act::{Truth, other};
use crate::testbed::Role;
use crate::testbed::ours::Group;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Time until what a daemon says is true again. Clients have been served for a long
/// time then.
const TRUTH_LIMIT: Duration = Duration::from_secs(6);

/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// States in which the service runs, by the daemon's word.
const SERVING: [&str; 2] = ["protected", "unprotected"];

/// Asks until every host tells the truth. Returns how long that took, ms, and what
/// is still untrue at the limit.
pub fn wait_for_truth(group: &Group<'_>, truth: Truth, down: &[Role]) -> (u64, Vec<String>) {
    let start = Instant::now();
    loop {
        let lies = lies(group, truth, down);
        let elapsed = start.elapsed();
        if lies.is_empty() || elapsed > TRUTH_LIMIT {
            return (elapsed.as_millis() as u64, lies);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Everything that is not as it must be; `down` are daemons that do not run.
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
            let says = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
            lies.push(format!(
                "the {} says `{}, {}: {}`, and {wrong}",
                role.name(),
                says("role"),
                says("state"),
                says("reason")
            ));
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

/// What a survivor must have said of its takeover.
pub fn takeover_is_told(group: &Group<'_>, truth: Truth) -> Option<String> {
    let survivor = truth.speaker()?;
    let status = group.status(survivor).ok()?;
    let cause = status["last_takeover"]["cause"].as_str().unwrap_or_default();
    let lost = other(survivor).name();
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
}
