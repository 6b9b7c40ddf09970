//! The table for people.

use super::cell::{Delays, Round};
use super::{Cell, Row, TunnelReport};
use holdfast_report::Summary;

impl TunnelReport {
    /// Prints it.
    pub fn print(&self) {
        for cell in &self.cells {
            cell.print();
        }
        if !self.fair.is_empty() {
            println!("Mbit/s of 20, over {} s each, after 3 s:", self.seconds);
            self.fair.iter().for_each(|row| println!("{}", row.line()));
        }
        if self.is_matrix {
            for worse in &self.worse {
                println!("worse: {worse}");
            }
            if self.worse.is_empty() {
                println!("nowhere worse than no tunnel");
            }
        }
        for peer in &self.not_measured {
            println!("not measured: {peer}");
        }
    }
}

impl Cell {
    fn print(&self) {
        println!("{}: {}; {}", self.workload, self.about, self.path);
        let [now, soon] = self.deadlines_ms;
        println!(
            "  {:<16} {:>22} {:>8} {:>8} {:>6} {:>16} {:>8} {:>6} {:>11} {:>15}",
            "one way, ms:",
            "p50 / p99 / p99.9",
            format!("> {now:.1} ms"),
            format!("> {soon:.0} ms"),
            "lost",
            "Mbit/s",
            "1 MB ms",
            "wire",
            "CPU us",
            "lost % seen"
        );
        self.rows.iter().for_each(Row::print);
    }
}

impl Row {
    fn print(&self) {
        if let Some(failed) = &self.failed {
            println!("  {:<16} not measured: {failed}", self.lane);
        }
        if self.rounds.is_empty() {
            return;
        }
        let delay =
            |of: fn(&Delays) -> Option<f64>| self.delays(of, "lost", |it| format!("{it:.1}"));
        let times = format!(
            "{} / {} / {}",
            delay(|it| it.p50_ms),
            delay(|it| it.p99_ms),
            delay(|it| it.p999_ms)
        );
        let share = |of: fn(&Delays) -> Option<f64>| {
            self.delays(of, "-", |it| format!("{:.2}%", it * 100.0))
        };
        let has_delays = self.rounds.iter().any(|it| it.delays.is_some());
        println!(
            "  {:<16} {:>22} {:>8} {:>8} {:>6} {:>16} {:>8} {:>6} {:>11} {:>15}",
            self.lane,
            if has_delays { times } else { "-".to_owned() },
            share(|it| Some(it.late_now)),
            share(|it| Some(it.late_soon)),
            share(|it| Some(it.lost)),
            self.goodput(),
            self.text(|it| it.object_ms, |it| format!("{it:.0}")),
            self.text(|it| Some(it.wire_bytes_per_byte), |it| format!("{it:.2}")),
            self.cpu(),
            self.seen()
        );
    }

    /// A median of delays; `none` where too many messages were lost for it.
    fn delays(
        &self,
        of: fn(&Delays) -> Option<f64>,
        none: &str,
        show: fn(f64) -> String,
    ) -> String {
        let found = self.rounds.iter().filter_map(|it| it.delays.as_ref());
        let values: Vec<Option<f64>> = found.map(of).collect();
        if values.is_empty() {
            return "-".to_owned();
        }
        // What is missing is later than all.
        let values: Vec<f64> = values.into_iter().map(|it| it.unwrap_or(f64::INFINITY)).collect();
        let median = Summary::of(&values).median;
        if median.is_finite() { show(median) } else { none.to_owned() }
    }

    fn text(&self, of: impl Fn(&Round) -> Option<f64>, show: fn(f64) -> String) -> String {
        self.median(of).map_or_else(|| "-".to_owned(), show)
    }

    fn goodput(&self) -> String {
        let values: Vec<f64> = self.rounds.iter().filter_map(|it| it.goodput_mbit_per_s).collect();
        let Summary { median, min, max } = Summary::of(&values);
        match values.len() {
            0 => "-".to_owned(),
            1 => format!("{median:.2}"),
            _ => format!("{median:.1} ({min:.1}-{max:.1})"),
        }
    }

    /// Of each end; the kernel's part of a plain path is not told.
    fn cpu(&self) -> String {
        let of =
            |end: usize| self.text(|it| Some(it.cpu_us_per_packet[end]), |it| format!("{it:.1}"));
        let used = self.rounds.iter().any(|it| it.cpu_us_per_packet != [0.0; 2]);
        if used { format!("{} {}", of(0), of(1)) } else { "-".to_owned() }
    }

    /// There and back, and of the way there what found no room in the queue.
    fn seen(&self) -> String {
        let percent =
            |of: fn(&Round) -> f64| self.text(|it| Some(of(it) * 100.0), |it| format!("{it:.1}"));
        let full = |it: &Round| {
            let there = it.seen.there;
            there.overflowed.packets as f64 / there.offered.packets.max(1) as f64
        };
        format!(
            "{} {} +{}",
            percent(|it| it.seen.there.loss()),
            percent(|it| it.seen.back.loss()),
            percent(full)
        )
    }
}
