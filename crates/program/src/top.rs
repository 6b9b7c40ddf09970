//! The options of `top`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Shortest and longest time between two looks, in s.
const INTERVAL_S: (f64, f64) = (0.1, 3600.0);

/// Options of `top`.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct TopArgs {
    /// A group's file; may be given several times. Without it, all in /etc/holdfast that
    /// give this host a role.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// The daemon's role in these files, where this host has lost its address.
    #[arg(long, value_name = "ROLE", requires = "config")]
    pub role: Option<String>,
    /// Seconds between two looks at a daemon.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print one frame as plain text and end, with the exit code of `holdfast status`; of several
    /// groups the highest one.
    #[arg(long)]
    pub once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let (least, most) = INTERVAL_S;
    let seconds = text.parse().ok().filter(|it| (least..=most).contains(it));
    seconds.ok_or_else(|| format!("it must be {least} to {most} seconds"))
}

impl TopArgs {
    /// The command-line arguments that say the same.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let files = self.config.iter().flat_map(|file| ["--config".into(), file.clone().into()]);
        let mut words: Vec<OsString> = files.collect();
        words.extend(self.role.iter().flat_map(|role| ["--role".into(), role.into()]));
        words.extend(["--interval".into(), self.interval.to_string().into()]);
        words.extend(self.once.then(|| "--once".into()));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: TopArgs,
    }

    #[test]
    fn the_words_say_the_same() {
        let typed = ["top", "--config", "a b.toml", "--config", "c.toml", "--role", "b"];
        let all = typed.into_iter().chain(["--interval", "0.25", "--once"]);
        for words in [vec!["top"], typed.to_vec(), all.collect()] {
            let args = Words::parse_from(words).args;
            let again = std::iter::once("top".into()).chain(args.words());
            assert_eq!(Words::parse_from(again).args, args);
        }
    }

    #[test]
    fn nobody_is_asked_without_a_pause() {
        let asks = |seconds| Words::try_parse_from(["top", "--interval", seconds]).is_ok();
        assert!(asks("0.1") && !asks("0") && !asks("-1") && !asks("NaN") && !asks("1e9"));
    }
}
