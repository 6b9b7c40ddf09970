//! The rest of the story, for `--all`: a member comes back, an edge resends what an outage has
//! swallowed, and flows share what the loss of a string has left. Each act is told in numbers,
//! without Holdfast's part in it and with it.

use super::death::{clients, names, with_redis};
use super::screen::Screen;
use super::words;
use crate::bench::heal::{kill, start_again};
use crate::bench::recover::{self, Kind};
use crate::bench::regulate::{self, RegulateArgs};
use crate::bench::service::{Variant, address};
use crate::load::{Report, Run, Spec};
use crate::testbed::Role;
use anyhow::{Context as _, Result, anyhow};
use std::thread::sleep;
use std::time::Duration;

/// Time for which clients work before something happens to them, and after it.
const WORK: Duration = Duration::from_millis(1_200);

/// Duration of the outage between two edges, in s.
const OUTAGE_S: f64 = 1.0;

/// Flows that share what is left, and time for which they are watched, in s.
const FLOWS: usize = 30;
const WATCH_S: u64 = 4;

/// An act, told in numbers.
pub struct Act {
    pub title: &'static str,
    /// What happened, in a few sentences.
    pub story: String,
    /// What is compared, without and with Holdfast's part.
    pub rows: Vec<(&'static str, String, String)>,
    /// What went wrong, if anything.
    pub failure: Option<String>,
}

/// All acts, each told as soon as it is over.
///
/// # Errors
/// When the hosts of one cannot be built.
pub fn all(seed: u64, screen: &Screen, mut tell: impl FnMut(&Act)) -> Result<Vec<Act>> {
    let mut acts = Vec::new();
    for act in [comes_back, resends, shares] {
        acts.push(act(seed, screen)?);
        screen.over();
        acts.iter().next_back().into_iter().for_each(&mut tell);
    }
    Ok(acts)
}

/// One load: the primary dies, comes back and joins, and then the other member dies.
fn comes_back(seed: u64, screen: &Screen) -> Result<Act> {
    let title = "a member comes back, and then the other one dies";
    screen.title(title);
    screen.lanes(&names());
    let (report, joined) = with_redis(Variant::Ours, screen, |service| {
        let host = service.testbed.host(Role::Client);
        let group = service.group()?;
        let spec = Spec {
            address: address(false)?,
            groups: clients(),
            duration_ms: 0,
            congestion: None,
            fault: None,
            seed,
            points: Vec::new(),
        };
        let mut run = Run::start_told(host, &spec)?;
        let input = run.take_input();
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| run.follow(|snapshot| screen.snapshot(snapshot)));
            let events = (|| {
                screen.stage("The clients work");
                sleep(WORK);
                screen.blow("The primary is killed, daemon and server");
                kill(group, Role::Primary)?;
                screen.stage("It is started again, and joins the server that has run on");
                let joined = start_again(group, Role::Primary)?;
                screen.stage("Both are protected again");
                sleep(WORK);
                screen.blow("Now the other one is killed");
                kill(group, Role::Backup)?;
                sleep(WORK);
                Ok::<_, anyhow::Error>(joined)
            })();
            // The end of its input ends the load, whatever has happened.
            drop(input);
            let report = seen.join().map_err(|_| anyhow!("the load's reader has failed"))?;
            let report = report.with_context(|| group.log_tails());
            Ok((report?, events?))
        })
    })?;
    screen.leave_lanes();
    let lived = report.connections.iter().filter(|it| it.survived()).count();
    let all = report.connections.len();
    let story = format!(
        "The primary was killed; it came back, got an image of the running server while that went \
         on serving, and {:.1} s after its start both were protected again. Then the other member \
         was killed, and the first one went on. {lived} of {all} connections lived through it all; \
         the longest pause of any was {}.",
        joined.as_secs_f64(),
        words::pause(report.stall_ns() as f64 / 1e6)
    );
    Ok(Act { title, story, rows: Vec::new(), failure: mistake(&report) })
}

fn mistake(report: &Report) -> Option<String> {
    let of_one = report.connections.iter().find_map(|it| it.error.clone());
    of_one.or_else(|| report.shared_error.clone())
}

/// Two edges with strings between them: an outage swallows packets, and the edge resends them.
fn resends(_seed: u64, screen: &Screen) -> Result<Act> {
    let title = "the edge resends what an outage has swallowed";
    screen.title(title);
    let mut rows = Vec::new();
    let mut resent = 0;
    for (kind, what) in [
        (Kind::Connect, "25 connections opened during the outage: longest wait after its end"),
        (Kind::Request, "20 connections that ask and wait: longest wait after its end"),
    ] {
        screen.blow("Every path is cut for a second, and nothing is kept");
        let (off, _) = recover::once(kind, OUTAGE_S, "off")?;
        screen.blow("The same, and the edge keeps and resends");
        let (on, count) = recover::once(kind, OUTAGE_S, "head+tail")?;
        resent += count;
        rows.push((what, words::pause(off.max), words::pause(on.max)));
    }
    let story = format!(
        "Between two edges every path is cut for {OUTAGE_S:.0} s. TCP alone waits for its timers \
         when the paths are back; the edge has kept the ends of each flow, and sends them at once: \
         {resent} packets."
    );
    let failure = (resent == 0).then(|| "the edge has resent nothing".to_owned());
    Ok(Act { title, story, rows, failure })
}

/// One of two strings is lost, and all flows must share the other one.
fn shares(_seed: u64, screen: &Screen) -> Result<Act> {
    let title = "a string is lost, and flows share what is left";
    screen.title(title);
    let args = RegulateArgs::short(FLOWS, WATCH_S);
    screen.blow("Half of the paths' capacity is lost, and flows fight for the rest");
    let alone = regulate::one(&args, "cubic", false)?;
    screen.blow("The same, and the edge tells each flow how much it may send");
    let shared = regulate::one(&args, "cubic", true)?;
    let rows = vec![
        (
            "how evenly flows share (1: all the same)",
            format!("{:.2}", alone.jain),
            format!("{:.2}", shared.jain),
        ),
        ("packets lost in the queue", alone.drops.to_string(), shared.drops.to_string()),
        (
            "packets that wait in the queue, at most",
            alone.queue_packets_max.to_string(),
            shared.queue_packets_max.to_string(),
        ),
        (
            "goodput of all together, Mbit/s",
            format!("{:.0}", alone.goodput_mbit),
            format!("{:.0}", shared.goodput_mbit),
        ),
    ];
    let story = format!(
        "{FLOWS} flows use two strings of 100 Mbit/s with a round trip of 100 ms, and one string is \
         lost. The edge caps the windows that receivers promise, so that the flows fit into what is \
         left."
    );
    Ok(Act { title, story, rows, failure: None })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An act with numbers.
    pub fn act() -> Act {
        let rows = vec![("packets lost <in> the queue", "210".to_owned(), "0".to_owned())];
        Act { title: "a string is lost", story: "It is.".to_owned(), rows, failure: None }
    }
}
