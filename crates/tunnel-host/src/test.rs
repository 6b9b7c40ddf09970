//! `test`: asks a running tunnel for a trial, and shows what it found.

use crate::cli::{Failure, FileArgs, say};
use crate::config::Config;
use crate::control;
use crate::trial::{Found, SECONDS_MAX};
use clap::Args;
use holdfast_program::exit;
use holdfast_report::plot::{Chart, Line};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Seconds of messages, and as many of bulk.
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SECONDS_MAX)))]
    seconds: u32,
    /// Where the distribution of the round trips is drawn; without it, nowhere.
    #[arg(long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// One JSON object of the schema holdfast.tunnel-test/1.
    #[arg(long)]
    json: bool,
}

/// Runs a trial and prints what it found.
///
/// # Errors
/// If no tunnel answers, or the file cannot be written.
pub fn run(args: &TestArgs) -> Result<u8, Failure> {
    let config = Config::load(&args.file.path()?)?;
    let takes = Duration::from_secs(2 * u64::from(args.seconds) + 10);
    let found: Found = control::talk(&config, &format!("test {}\n", args.seconds), takes)?;
    if let Some(path) = &args.output {
        std::fs::write(path, draw(&found))?;
    }
    let text = if args.json {
        serde_json::to_string(&found).map_err(io::Error::from)? + "\n"
    } else {
        render(&found)
    };
    say(&text)?;
    let is_answered = found.messages_answered > 0;
    Ok(if is_answered { exit::OK } else { exit::DEGRADED })
}

fn render(found: &Found) -> String {
    let ms = |it: f64| if it < 0.0 { "lost".to_owned() } else { format!("{it:.1} ms") };
    let lost = found.messages_sent - found.messages_answered.min(found.messages_sent);
    format!(
        "messages   {} sent, {lost} not answered; round trip p50 {}, p99 {}, p99.9 {}; {:.2} bytes sent \
         for each\n\
         bulk       {:.1} Mbit/s; {:.2} bytes sent for each\n\
         path       {:.1} % lost there, {:.1} % back\n",
        found.messages_sent,
        ms(found.rtt_p50_ms),
        ms(found.rtt_p99_ms),
        ms(found.rtt_p999_ms),
        found.messages_bytes_per_byte,
        found.bulk_bits_per_s / 1e6,
        found.bulk_bytes_per_byte,
        found.loss_sending * 100.0,
        found.loss_receiving * 100.0
    )
}

fn draw(found: &Found) -> String {
    let count = found.rtt_ms.len().max(1) as f64;
    let answered = found.messages_answered as f64 / (found.messages_sent.max(1) as f64) * 100.0;
    let points = found.rtt_ms.iter().zip(1..);
    let points = points.map(|(ms, number)| (f64::from(number) / count * answered, *ms)).collect();
    Chart {
        title: format!("{} messages through the tunnel", found.messages_sent),
        x_name: "share of the messages, %".to_owned(),
        y_name: "answered within, ms".to_owned(),
        x_range: (0.0, 100.0),
        lines: vec![Line { name: "round trip".to_owned(), points, ..Line::default() }],
        ..Chart::default()
    }
    .to_svg()
}
