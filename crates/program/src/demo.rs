//! The options of the demonstration.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of the demonstration.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct DemoArgs {
    /// Where the plot goes; its name ends in .html or .svg.
    #[arg(long, default_value = "holdfast-demo.html")]
    pub output: PathBuf,
    /// Determines the moments of death; drawn if not given.
    #[arg(long)]
    pub seed: Option<u64>,
}

impl DemoArgs {
    /// The words that say the same.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec!["--output".into(), self.output.clone().into()];
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

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: DemoArgs,
    }

    #[test]
    fn the_words_say_the_same() {
        for seed in [None, Some(7)] {
            let args = DemoArgs { output: "of mine.svg".into(), seed };
            let words = std::iter::once("demo".into()).chain(args.words());
            assert_eq!(Words::parse_from(words).args, args);
        }
    }
}
