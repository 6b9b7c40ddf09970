//! How busy each processor of this machine was: all of a testbed's hosts share them, so a rate says
//! little without it.

use holdfast_report::Summary;
use std::fs;

/// Time that a processor has worked, and all of its time, in ticks of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    worked: u64,
    all: u64,
}

/// What every processor has done so far, in the kernel's order; none where it does not tell.
pub fn read() -> Vec<Ticks> {
    parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// The lines `cpuN` of proc_stat(5): user, nice, system, idle, iowait, irq, softirq and steal. What
/// a hypervisor has stolen was not idle: nobody could work meanwhile.
fn parse(stat: &str) -> Vec<Ticks> {
    let of_one = |line: &str| {
        let (name, numbers) = line.split_once(' ')?;
        name.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().take(8).map_while(|it| it.parse().ok()).collect();
        let all = numbers.iter().sum();
        let idle: u64 = numbers.iter().skip(3).take(2).sum();
        Some(Ticks { worked: all - idle, all })
    };
    stat.lines().filter_map(of_one).collect()
}

/// Share of each processor's time in which it worked between two moments, 0 to 1.
pub fn shares(before: &[Ticks], after: &[Ticks]) -> Vec<f64> {
    let share = |(before, after): (&Ticks, &Ticks)| {
        let worked = after.worked.saturating_sub(before.worked);
        let all = after.all.saturating_sub(before.all);
        worked as f64 / all.max(1) as f64
    };
    before.iter().zip(after).map(share).collect()
}

/// The same of several measurements, processor by processor.
pub fn sum_up<'a>(measured: impl Iterator<Item = &'a Vec<f64>>) -> Vec<Summary> {
    let measured: Vec<&Vec<f64>> = measured.collect();
    let processors = measured.iter().map(|shares| shares.len()).min().unwrap_or_default();
    let of = |cpu| Summary::of(&measured.iter().map(|shares| shares[cpu]).collect::<Vec<_>>());
    (0..processors).map(of).collect()
}

/// In per cent, for a table.
pub fn percent(shares: &[Summary]) -> String {
    let texts: Vec<String> =
        shares.iter().map(|share| format!("{:.0}", share.median * 100.0)).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_waits_is_not_busy() {
        let before = parse("cpu  9 9 9 9\ncpu0 1 1 1 10 5 1 1 1 0 0\ncpu1 0 0 0 7\nintr 5 6\n");
        assert_eq!(before, [Ticks { worked: 6, all: 21 }, Ticks { worked: 0, all: 7 }]);
        let after = parse("cpu0 3 1 1 14 7 2 1 4 0 0\ncpu1 4 0 0 7\n");
        assert_eq!(shares(&before, &after), [0.5, 1.0]);
        assert_eq!(shares(&before, &before), [0.0, 0.0]);
        assert_eq!(parse("nothing of the kind\ncpux 1\ncpu\n"), []);
    }

    #[test]
    fn measurements_are_summed_up_processor_by_processor() {
        let measured = [vec![0.2, 1.0], vec![0.4, 0.0], vec![0.9, 0.5]];
        let all = sum_up(measured.iter());
        assert_eq!(all.iter().map(|it| it.median).collect::<Vec<_>>(), [0.4, 0.5]);
        assert_eq!(percent(&all), "40 50");
        assert_eq!(percent(&sum_up([].iter())), "-");
    }
}
