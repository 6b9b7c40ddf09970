//! Why a scenario file cannot be simulated, and what to write instead.

use holdfast_netsim::net::ScenarioError;

/// What is wrong with a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is no TOML, or has a key or a value that does not exist.
    #[error("{0}")]
    Syntax(String),
    /// A time.
    #[error("{0:?} is no time; write for example 250ms, 3s or 10us")]
    Time(String),
    /// A rate.
    #[error("{0:?} is no rate; write for example 100mbit, 64kbit or 10gbit")]
    Rate(String),
    /// A queue.
    #[error("{0:?} is no queue; write for example 750p for packets or 1000000b for bytes")]
    Queue(String),
    /// A name that is not defined.
    #[error("there is no {what} {name:?}; there is {known}")]
    Unknown {
        /// The kind of thing that was named.
        what: &'static str,
        /// The name.
        name: String,
        /// Names that could have been meant.
        known: String,
    },
    /// No way from one node to another.
    #[error("no links lead from {from:?} to {to:?}; add a [[link]]")]
    NoRoute {
        /// The node that it begins at.
        from: String,
        /// The node that it ends at.
        to: String,
    },
    /// A value that is out of its bounds.
    #[error("{what} is {value}; let it be {bounds}")]
    Bounds {
        /// Name of the value.
        what: String,
        /// The value.
        value: f64,
        /// Its bounds.
        bounds: &'static str,
    },
    /// More of something than there may be.
    #[error("{what}: {count} are too many; the limit is {limit}")]
    TooMany {
        /// Kind of thing.
        what: &'static str,
        /// Their number.
        count: usize,
        /// Most that there may be.
        limit: usize,
    },
    /// A list of values without any.
    #[error("the sweep of {0:?} has no values; name at least one, or remove the line")]
    Empty(String),
    /// Congestion controls between which a kind of TCP does not tell.
    #[error(
        "a two-way TCP (base \"ns3\" or \"modern\") moves its window as \"newreno\" or as \"cubic\", \
         and {0:?} would be the same as \"newreno\"; write one of the two, and for selective \
         acknowledgements sack = true or false"
    )]
    Alike(String),
    /// A combination that does not exist.
    #[error("there is no combination {point}; there are {points}, from 0 on")]
    Point {
        /// The combination that was asked for.
        point: usize,
        /// Number of combinations.
        points: usize,
    },
    /// A capture of many.
    #[error("a capture is of one combination; choose it with --point")]
    ManyCaptured,
    /// A link that the scenario does not have.
    #[error("there is no link {link}; there are {links}, from 0 on")]
    NoLink {
        /// The link that was asked for.
        link: u32,
        /// Number of links.
        links: usize,
    },
    /// What the simulator refuses.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Refuses what is more than a limit.
///
/// # Errors
/// If it is.
pub fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), FileError> {
    if count <= limit { Ok(()) } else { Err(FileError::TooMany { what, count, limit }) }
}

/// Refuses what is outside of bounds.
///
/// # Errors
/// If it is.
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
