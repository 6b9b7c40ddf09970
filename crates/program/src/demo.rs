//! The options of the demonstration.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of the demonstration.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct DemoArgs {
    /// Where the plot goes; its name ends in .html or .svg.
    #[arg(long, default_value = "holdfast-demo.html", value_parser = plot)]
    pub output: PathBuf,
    /// The whole story in one run with the same connections: the primary dies, edges resend what an
    /// outage has swallowed, flows share what a lost string has left, and the dead member comes
    /// back. About a minute.
    #[arg(long)]
    pub all: bool,
    /// Determines the moments of death; drawn if not given.
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Checks that a file name is one that a plot may have.
fn plot(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    let known = path.extension().is_some_and(|it| it == "html" || it == "svg");
    known.then_some(path).ok_or_else(|| "its name must end in .html or .svg".to_owned())
}

impl DemoArgs {
    /// The command-line arguments that say the same.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec!["--output".into(), self.output.clone().into()];
        if self.all {
            words.push("--all".into());
        }
        if let Some(seed) = self.seed {
            words.extend(["--seed".into(), seed.to_string().into()]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: DemoArgs,
    }

    #[test]
    fn the_words_say_the_same() {
        for (seed, all) in [(None, false), (Some(7), true)] {
            let args = DemoArgs { output: "of mine.svg".into(), all, seed };
            let words = std::iter::once("demo".into()).chain(args.words());
            assert_eq!(Words::parse_from(words).args, args);
        }
    }

    #[test]
    fn a_plot_of_no_known_kind_is_refused_at_once() {
        let asks = |name| Words::try_parse_from(["demo", "--output", name]);
        assert!(asks("plot.svg").is_ok() && asks("plot.html").is_ok() && asks("plot").is_err());
        let refused = asks("x.pdf").expect_err("no such plot");
        assert_eq!(refused.exit_code(), 2);
        assert!(
            refused.to_string().contains("x.pdf") && refused.to_string().contains(".html or .svg")
        );
    }
}
