//! `reload`: the daemon of this host reads its file again.

use super::args::ReloadArgs;
use super::failure::Failure;
use super::group::{Daemon, load_of_daemon};
use super::print;
use super::watch::ask;
use crate::admin::Request;
use crate::status::exit;
use serde::Deserialize;

/// What the daemon answers, as far as it is printed.
#[derive(Deserialize)]
struct Answer {
    applied: Vec<Change>,
    pending: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    setting: String,
    before: String,
    now: String,
    #[serde(default)]
    needs: String,
}

pub(super) fn run(args: &ReloadArgs) -> Result<u8, Failure> {
    let (file, role) = load_of_daemon(&args.group)?;
    let asked = ask(&Daemon::of(&file, &role), Request::Reload { dry_run: args.dry_run });
    let answer = asked.map_err(|failure| match failure.code {
        exit::UNREACHABLE => Failure::unreachable(format!(
            "{failure}\n  or the daemon that runs has another `name` or `run_dir` than the file says \
             now: say `holdfast down --stop` with the earlier file first"
        )),
        _ => failure,
    })?;
    let json = answer.to_string();
    let answer: Answer = serde_json::from_value(answer)?;
    let text = if args.json { json } else { told(&answer, args.dry_run) };
    print(&format!("{}\n", text.trim_end()))?;
    Ok(if answer.pending.is_empty() { exit::OK } else { exit::DEGRADED })
}

/// The answer for people: what counts from now on, and below each need what waits for it.
fn told(answer: &Answer, dry_run: bool) -> String {
    if answer.applied.is_empty() && answer.pending.is_empty() {
        return "nothing has changed".to_owned();
    }
    let mut text = String::new();
    if !answer.applied.is_empty() {
        text.push_str(if dry_run { "would count at once:\n" } else { "counts from now on:\n" });
        answer.applied.iter().for_each(|change| text.push_str(&line(change)));
    }
    let mut rest: Vec<&Change> = answer.pending.iter().collect();
    while let Some(first) = rest.first() {
        let needs = first.needs.clone();
        text.push_str(&format!("needs {needs}:\n"));
        let (same, others): (Vec<_>, _) = rest.into_iter().partition(|it| it.needs == needs);
        same.into_iter().for_each(|change| text.push_str(&line(change)));
        rest = others;
    }
    text
}

fn line(change: &Change) -> String {
    let or_none = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
    format!("  {}: {} -> {}\n", change.setting, or_none(&change.before), or_none(&change.now))
}
