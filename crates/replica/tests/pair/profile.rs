//! What a run depends on: the seed, whether output waits, and the crash. It is
//! printed on failure and parsed again to repeat the run.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    PrimaryHost,
    Server,
    /// Nobody dies: the primary is only thought dead, and goes on.
    Nobody,
    Backup,
}

/// The boundary after which the victim is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Record(u64),
    Message(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Crash {
    pub victim: Victim,
    pub at: At,
}

/// Everything that a run depends on.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub seed: u64,
    pub commit: bool,
    pub crash: Option<Crash>,
}

impl Profile {
    pub fn calm(seed: u64) -> Self {
        Self { seed, commit: true, crash: None }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.seed, if self.commit { "commit" } else { "nocommit" })?;
        let Some(Crash { victim, at }) = self.crash else { return Ok(()) };
        match at {
            At::Record(n) => write!(f, " {victim:?} record {n}"),
            At::Message(n) => write!(f, " {victim:?} message {n}"),
        }
    }
}

impl std::str::FromStr for Profile {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().map_err(|why| format!("{word}: {why}"));
        let (seed, commit) = match words.get(..2) {
            Some([seed, commit]) => (number(seed)?, *commit == "commit"),
            _ => return Err("expected: SEED commit|nocommit [VICTIM record|message N]".to_owned()),
        };
        let crash = match words.get(2..5) {
            Some([victim, kind, n]) => {
                let victim = match *victim {
                    "PrimaryHost" => Victim::PrimaryHost,
                    "Server" => Victim::Server,
                    "Nobody" => Victim::Nobody,
                    _ => Victim::Backup,
                };
                let at = if *kind == "record" {
                    At::Record(number(n)?)
                } else {
                    At::Message(number(n)?)
                };
                Some(Crash { victim, at })
            }
            _ => None,
        };
        Ok(Self { seed, commit, crash })
    }
}
