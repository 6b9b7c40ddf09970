//! The acts of the whole story, all on the same hosts, with the same clients at work.

use super::seen::Seen;
use super::{Act, DEMAND_MBIT, DOWNLOADS, ROUND_TRIP_MS, STRING_MBIT};
use crate::bench::heal::{kill, start_again};
use crate::command::wait_for;
use crate::demo::screen::Screen;
use crate::demo::words::pause;
use crate::monotonic_ns;
use crate::testbed::Role;
use crate::testbed::ours::Group;
use crate::testbed::strings::{Cut, Edge, Queue, Strings, interface};
use anyhow::Result;
use holdfast_chance::Rng;
use holdfast_report::jain;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for which clients work before something happens to them, and after it.
const WORK: Duration = Duration::from_millis(1_500);
/// Span from which the rest of the time before a death is drawn, in ms.
const DEATH_SPAN_MS: u64 = 1_000;

/// Duration of an outage of all strings. A sender's third or fourth attempt falls into it, and the
/// next one is a second away.
const OUTAGE: Duration = Duration::from_millis(1_700);
/// Time in which connections that an outage has stopped go on by themselves.
const SETTLE: Duration = Duration::from_millis(3_000);

/// Time after which flows that were moved have settled, and for which they are watched then.
const MOVED: Duration = Duration::from_millis(2_500);
const WATCH: Duration = Duration::from_secs(4);
/// Time between two looks at the queue.
const SAMPLE: Duration = Duration::from_millis(100);
/// Longest time until the edges know of a string that it is dead, or back.
const NOTICED_MAX: Duration = Duration::from_secs(10);
/// Index of the string that fails; the other one is left.
const FAILS: usize = 1;
const LEFT: usize = 0;

/// Where the acts are played.
pub(super) struct Bed<'a, 'g> {
    pub strings: &'a mut Strings,
    pub group: &'a mut Group<'g>,
    pub screen: &'a Screen,
    pub seen: &'a Seen,
    pub seed: u64,
}

/// What there is to tell of an act besides its times.
#[derive(Default)]
struct Told {
    story: String,
    rows: Vec<(&'static str, String, String)>,
    failure: Option<String>,
}

/// What happened to the flows that shared a string.
struct Shared {
    jain: f64,
    drops: u64,
    queue_packets_max: u64,
    goodput_mbit: f64,
    /// Longest wait of a client that downloads nothing, in ms.
    little_ms: f64,
    is_regulated: bool,
}

/// The tables of the strings' group, with recovery and rate control or without.
pub(super) fn tables(is_recovering: bool, is_regulating: bool) -> String {
    let recover = match is_recovering {
        true => "policy = \"head+tail\"\nstart = \"always\"",
        false => "policy = \"off\"",
    };
    format!(
        "[recover]\n{recover}\n[regulate]\nenabled = {is_regulating}\nrtt_ms = {ROUND_TRIP_MS}\n"
    )
}

/// How an act is played.
type Played<'a, 'g> = fn(&mut Bed<'a, 'g>) -> Result<Told>;

impl<'a, 'g> Bed<'a, 'g> {
    /// Plays all acts in their order.
    pub(super) fn play(&mut self, mut tell: impl FnMut(&Act)) -> Result<Vec<Act>> {
        let all: [(&str, &str, Played<'a, 'g>); 5] = [
            ("Act 1: the primary dies, and the backup goes on", "it dies", Self::dies),
            ("Act 2: the edges resend what an outage has swallowed", "outages", Self::resends),
            (
                "Act 3: a string is lost, and flows share the other one",
                "a string lost",
                Self::shares,
            ),
            ("Act 4: the dead member comes back", "it comes back", Self::comes_back),
            (
                "Act 5: the other one dies, and the first one goes on",
                "the other dies",
                Self::dies_too,
            ),
        ];
        let mut acts = Vec::new();
        for (title, short, played) in all {
            self.screen.title(title);
            let from_ns = monotonic_ns();
            let Told { story, rows, failure } = played(self)?;
            self.screen.over();
            let span_ns = from_ns..monotonic_ns();
            let pause_ms = self.seen.worst_ms(&span_ns);
            let act = Act { title, short, span_ns, pause_ms, story, rows, failure };
            tell(&act);
            acts.push(act);
        }
        Ok(acts)
    }

    /// Waits until a death, whose moment the seed decides.
    fn before_death(&self, number: u64) {
        let rest_ms = Rng::of_state(self.seed.wrapping_add(number)).below(DEATH_SPAN_MS);
        sleep(WORK + Duration::from_millis(rest_ms));
    }

    fn dies(&mut self) -> Result<Told> {
        self.screen.stage("The clients work; when the primary dies is a matter of chance");
        let begun_ns = monotonic_ns();
        self.before_death(1);
        self.screen.blow("The primary is killed, daemon and server");
        let killed_ns = monotonic_ns();
        kill(self.group, Role::Primary)?;
        self.screen.stage("The backup has every connection, and serves alone");
        sleep(WORK);
        let story = format!(
            "The primary was killed, server and daemon. The backup rebuilt every connection and went \
             on; no client waited longer than {}. Before the death, with nothing wrong, it had been up \
             to {}: a round trip takes {ROUND_TRIP_MS} ms. From here on the survivor serves alone.",
            pause(self.seen.worst_ms(&(killed_ns..monotonic_ns()))),
            pause(self.seen.worst_ms(&(begun_ns..killed_ns))),
        );
        Ok(Told { story, ..Told::default() })
    }

    fn resends(&mut self) -> Result<Told> {
        let without = self.outage("Both strings swallow everything, and the edges keep nothing")?;
        self.screen.stage("The edges are told to keep and resend: a changed file, and a reload");
        self.strings.reload(&tables(true, false))?;
        sleep(WORK);
        let before = self.resent()?;
        let with = self.outage("The same again, and the edges keep the ends of every flow")?;
        let resent = self.resent()? - before;
        let longest = |waits: &[f64]| pause(waits.last().copied().unwrap_or_default());
        let median = |waits: &[f64]| pause(waits.get(waits.len() / 2).copied().unwrap_or_default());
        let rows = vec![
            (
                "longest that a connection still stood when the strings were back",
                longest(&without),
                longest(&with),
            ),
            ("the median connection", median(&without), median(&with)),
            ("packets resent by the edges", "0".to_owned(), resent.to_string()),
        ];
        let story = format!(
            "Twice both strings swallowed everything for {:.1} s. The first time the edges only \
             forwarded, and each connection waited for its own timer when the strings were back. The \
             second time the edges had kept the ends of every flow, and sent them at once.",
            OUTAGE.as_secs_f64()
        );
        let failure = (resent == 0).then(|| "the edges have resent nothing".to_owned());
        Ok(Told { story, rows, failure })
    }

    /// An outage of all strings; returns how long each connection stood still after it, in ms,
    /// sorted.
    fn outage(&self, what: &str) -> Result<Vec<f64>> {
        self.screen.blow(what);
        self.strings.cut_all()?;
        sleep(OUTAGE);
        self.screen.stage("The strings are back");
        let back_ns = monotonic_ns();
        self.strings.restore_all()?;
        sleep(SETTLE);
        Ok(self.seen.after_ms(back_ns..monotonic_ns()))
    }

    /// Number of packets that both edges have resent.
    fn resent(&self) -> Result<u64> {
        let of = |edge| Ok(self.strings.show(edge)?["cache"]["resent"].as_u64().unwrap_or(0));
        Edge::BOTH.into_iter().map(of).sum()
    }

    fn shares(&mut self) -> Result<Told> {
        let alone =
            self.loss("One of two strings is lost, and the flows fight for the other one")?;
        self.screen.stage("The edges are told to regulate: a changed file, and a reload");
        self.strings.reload(&tables(true, true))?;
        sleep(WORK);
        let shared =
            self.loss("It is lost again, and the edges say how much each flow may send")?;
        let row = |what, of: fn(&Shared) -> String| (what, of(&alone), of(&shared));
        let rows = vec![
            row("how evenly the downloads share (Jain's index; 1: all the same)", |it| {
                format!("{:.2}", it.jain)
            }),
            row("packets lost in the queue", |it| it.drops.to_string()),
            row("packets that wait in the queue, at most", |it| it.queue_packets_max.to_string()),
            row("goodput of the downloads, Mbit/s", |it| format!("{:.1}", it.goodput_mbit)),
            row("longest wait of those who ask for little", |it| pause(it.little_ms)),
        ];
        let story = format!(
            "{DOWNLOADS} downloads want {DEMAND_MBIT} Mbit/s of two strings of {STRING_MBIT} Mbit/s, and \
             twice one of these was lost. The other one's flows stayed where they were, the lost one's \
             moved to it. The first time TCP had to find out by losing packets; the second time the \
             edges capped the windows that clients promise, so that all fit into what is left."
        );
        let is_right = (alone.is_regulated, shared.is_regulated) == (false, true);
        let failure = (!is_right).then(|| "rate control was not as it was told to be".to_owned());
        Ok(Told { story, rows, failure })
    }

    /// The loss of a string, what its flows and the others shared then, and its return.
    fn loss(&self, what: &str) -> Result<Shared> {
        self.screen.blow(what);
        self.strings.cut(FAILS, Cut::Both)?;
        self.wait_for_state("dead")?;
        self.screen.stage("All flows are on one string");
        sleep(MOVED);
        let shared = self.watch()?;
        self.screen.stage("The string is back");
        self.strings.restore(FAILS, Cut::Both)?;
        self.wait_for_state("alive")?;
        sleep(WORK);
        Ok(shared)
    }

    fn wait_for_state(&self, state: &str) -> Result<()> {
        wait_for("the edges' word on the string", NOTICED_MAX, || {
            let says = |edge| {
                self.strings.show(edge).is_ok_and(|it| it["members"][FAILS]["state"] == state)
            };
            Edge::BOTH.into_iter().all(says).then_some(())
        })
    }

    fn watch(&self) -> Result<Shared> {
        // In front of the remaining string, towards the clients.
        let queue = || self.strings.queue(LEFT, interface::STRING_NEAR);
        let (first, began, from_ns): (Queue, _, _) = (queue()?, Instant::now(), monotonic_ns());
        let (mut longest, mut last) = (first.waiting, first);
        while began.elapsed() < WATCH {
            sleep(SAMPLE);
            last = queue()?;
            longest = longest.max(last.waiting);
        }
        // The far edge is the one through which the downloads come.
        let shown = self.strings.show(Edge::Far)?;
        let span_ns = from_ns..monotonic_ns();
        let rates = self.seen.mbit(DOWNLOADS, &span_ns);
        Ok(Shared {
            jain: jain(&rates),
            drops: last.dropped - first.dropped,
            queue_packets_max: longest,
            goodput_mbit: rates.iter().sum(),
            little_ms: self.seen.worst_of(DOWNLOADS.., &span_ns),
            is_regulated: shown["regulate"]["active"] == true,
        })
    }

    fn comes_back(&mut self) -> Result<Told> {
        self.screen.stage("The dead member is started again, and joins the server that has run on");
        let joined = start_again(self.group, Role::Primary)?;
        self.screen.stage("Both members are protected again");
        sleep(WORK);
        let story = format!(
            "The member that had died in act 1 was started again. It got an image of the running \
             server and its connections while that went on serving, and {:.1} s later both were \
             protected again.",
            joined.as_secs_f64()
        );
        Ok(Told { story, ..Told::default() })
    }

    fn dies_too(&mut self) -> Result<Told> {
        self.screen.stage("The clients work");
        self.before_death(2);
        self.screen.blow("Now the other member is killed, daemon and server");
        let killed_ns = monotonic_ns();
        kill(self.group, Role::Backup)?;
        self.screen.stage("The member that came back has every connection");
        sleep(WORK);
        let story = format!(
            "The member that had served since act 1 was killed, and the one that had come back took \
             every connection over; no client waited longer than {}.",
            pause(self.seen.worst_ms(&(killed_ns..monotonic_ns())))
        );
        Ok(Told { story, ..Told::default() })
    }
}
