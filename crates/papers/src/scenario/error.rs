//! What can be wrong in a scenario file, with what to write instead. Where it stands is found by
//! [`super::mistake`].

use super::mistake::suggestion;
use holdfast_netsim::net::ScenarioError;

/// What is wrong with a scenario file, or with what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Settings that do not go together.
    #[error("{message}")]
    Conflict {
        /// What does not.
        message: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A time is written wrongly.
    #[error("{0:?} is not a time")]
    Time(String),
    /// A rate is written wrongly.
    #[error("{0:?} is not a rate")]
    Rate(String),
    /// A queue is written wrongly.
    #[error("{0:?} is not a queue")]
    Queue(String),
    /// A name is not defined.
    #[error("unknown {what} {name:?}")]
    Unknown {
        /// The kind of thing that was named.
        what: &'static str,
        /// The name as written.
        name: String,
        /// Names that exist.
        known: Vec<String>,
    },
    /// No route leads from one node to another.
    #[error("no links lead from {from:?} to {to:?}")]
    NoRoute {
        /// The node at which the route begins.
        from: String,
        /// The node at which the route ends.
        to: String,
    },
    /// A value is out of its bounds.
    #[error("{what} = {value} is out of bounds")]
    Bounds {
        /// Name of the value.
        what: String,
        /// The value as written.
        value: f64,
        /// Bounds of the value.
        bounds: &'static str,
    },
    /// An index names nothing.
    #[error("{what} {number} does not exist: there are {count}, from 0 on")]
    Missing {
        /// The kind of thing.
        what: &'static str,
        /// The index.
        number: u32,
        /// How many there are.
        count: usize,
    },
    /// There are more of something than allowed.
    #[error("{count} {what} are too many")]
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// The number of them.
        count: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// A list of values is empty.
    #[error("the sweep of {0:?} has no values")]
    Empty(String),
    /// The TCP does not distinguish between congestion controls.
    #[error(
        "with base \"ns3\" or \"modern\", congestion {0:?} would be the same as \"newreno\", and its rows too"
    )]
    Alike(String),
    /// Several combinations are to be captured.
    #[error("a capture is of one combination")]
    ManyCaptured,
    /// Nothing that is a number varies.
    #[error("there is nothing to plot over: no numbers vary")]
    NothingToPlot,
    /// The simulator refuses the scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

impl FileError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Conflict { remedy, .. } => (*remedy).to_owned(),
            Self::Time(_) => "write for example \"250ms\", \"3s\" or \"10us\"".to_owned(),
            Self::Rate(_) => "write for example \"100mbit\", \"64kbit\" or \"10gbit\"".to_owned(),
            Self::Queue(_) => {
                "write for example \"750p\" for packets or \"1000000b\" for bytes".to_owned()
            }
            Self::Unknown { name, known, .. } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                suggestion(name, &known).unwrap_or_else(|| one_of(&known))
            }
            Self::NoRoute { .. } => "add a [[link]], or correct a name".to_owned(),
            Self::Bounds { bounds, .. } => format!("let it be {bounds}"),
            Self::Missing { count, .. } => match count {
                0 => "define one, or remove the line".to_owned(),
                count => format!("name one of 0 to {}", count - 1),
            },
            Self::TooMany { limit, .. } => format!("the limit is {limit}"),
            Self::Empty(_) => "name at least one, or remove the line".to_owned(),
            Self::Alike(_) => {
                "write \"newreno\" or \"cubic\", and sack = true or false for selective \
                 acknowledgements"
                    .to_owned()
            }
            Self::ManyCaptured => "choose it with --point".to_owned(),
            Self::NothingToPlot => "name numbers in the file's [sweep]".to_owned(),
            Self::Scenario(_) => "docs/SCENARIOS.md explains every key".to_owned(),
        }
    }
}

fn one_of(known: &[&str]) -> String {
    match known {
        [] => "there is none".to_owned(),
        known => format!("one of: {}", known.join(", ")),
    }
}

/// What was asked for cannot be done: a mistake on the command line, or of a file as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{0}\n  remedy: {remedy}", remedy = .0.remedy())]
pub struct Refused(pub FileError);

/// An unknown word where there are a few.
pub fn unknown(what: &'static str, name: &str, known: &[&str]) -> FileError {
    let known = known.iter().map(|it| (*it).to_owned()).collect();
    FileError::Unknown { what, name: name.to_owned(), known }
}

/// Refuses a count above a limit.
///
/// # Errors
/// When the count is above the limit.
pub fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), FileError> {
    if count <= limit { Ok(()) } else { Err(FileError::TooMany { what, count, limit }) }
}

/// Refuses a value outside of its bounds.
///
/// # Errors
/// When the value is outside of its bounds.
pub fn within(
    what: &str,
    value: f64,
    bounds: std::ops::RangeInclusive<f64>,
    said: &'static str,
) -> Result<f64, FileError> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(FileError::Bounds { what: what.to_owned(), value, bounds: said })
}
