//! `plan`: what is possible on a path, by the planner of the machine.

use crate::cli::{Failure, say};
use clap::Args;
use holdfast_program::exit;
use holdfast_tunnel::Budgets;
use std::io;
use std::time::Duration;

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Share of the packets that the path loses: `10%`, `0.5%`.
    #[arg(long, value_parser = share)]
    loss: f64,
    /// Round trip: `20ms`, `1.5s`.
    #[arg(long, value_parser = time)]
    rtt: Duration,
    /// Packets a second that are sent.
    #[arg(long, value_parser = positive)]
    rate: f64,
    /// Bytes of a packet with its IP header.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    size: u16,
    /// Time beyond the path's own delay that a packet may take.
    #[arg(long, value_parser = time, default_value = "2ms")]
    budget: Duration,
    /// Share of the packets that may be later.
    #[arg(long, value_parser = share, default_value = "1%")]
    late: f64,
    /// One JSON object of the schema holdfast.tunnel-plan/1.
    #[arg(long)]
    json: bool,
}

/// Prints the row of these numbers.
///
/// # Errors
/// If nothing can be printed.
pub fn run(args: &PlanArgs) -> Result<u8, Failure> {
    let size = usize::from(args.size);
    let row =
        holdfast_tunnel::plan::row(args.loss, args.rtt, args.rate, size, args.budget, args.late);
    let text = if args.json {
        let mut value = serde_json::to_value(&row).map_err(io::Error::from)?;
        value["schema"] = "holdfast.tunnel-plan/1".into();
        format!("{value}\n")
    } else {
        let (loss, late) = (args.loss * 100.0, row.late * 100.0);
        let one_way = args.rtt / 2 + args.budget;
        let again = args.rtt * 3 / 2 + Budgets::default().soon;
        let cells = row.cells.map_or(String::new(), |(cells, more)| {
            format!("  cells      {cells} of each packet, and {more} more\n")
        });
        format!(
            "{} packets of {size} bytes a second over {loss} % loss and {:?} round trip\n\
             \x20 deadline   {one_way:?} after it was sent ({:?} beyond the path's delay)\n\
             \x20 together   {} packets are protected together\n\
             \x20 extra      {:.2} rows for them, {:.0} % more bytes\n\
             {cells}\
             \x20 late       {late:.2} % of the packets\n\
             \x20 otherwise  one retransmission brings what is lost within {again:?}\n\
             \x20 {}\n",
            args.rate,
            args.rtt,
            args.budget,
            row.group,
            row.extra,
            row.overhead * 100.0,
            row.why
        )
    };
    say(&text)?;
    Ok(exit::OK)
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|it| it.trim().parse::<f64>().ok());
    let share = percent.map(|it| it / 100.0).filter(|it| (0.0..=0.9).contains(it));
    share.ok_or_else(|| "a share, for example 10% (0% to 90%)".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parse = |(unit, seconds): (&str, f64)| {
        let value: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(value * seconds).ok().filter(|it| it.as_secs() < 60)
    };
    units
        .into_iter()
        .find_map(parse)
        .ok_or_else(|| "a time, for example 20ms (below 60s)".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok().filter(|it: &f64| (0.001..=1e9).contains(it));
    value.ok_or_else(|| "a number above zero".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(share("10%"), Ok(0.1));
        assert!(share("10").is_err() && share("95%").is_err() && share("-1%").is_err());
        assert_eq!(time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(time("20").is_err() && time("-1ms").is_err() && time("1e99s").is_err());
        assert!(positive("0").is_err() && positive("NaN").is_err() && positive("200").is_ok());
    }
}
