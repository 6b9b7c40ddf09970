//! Errors in a scenario file, with what to write instead.

use holdfast_netsim::net::ScenarioError;

/// What is wrong with a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is no TOML, or has a key or a value that does not exist.
    #[error("{0}")]
    Syntax(String),
    /// A time is written wrongly.
    #[error("{0:?} is no time; write for example 250ms, 3s or 10us")]
    Time(String),
    /// A rate is written wrongly.
    #[error("{0:?} is no rate; write for example 100mbit, 64kbit or 10gbit")]
    Rate(String),
    /// A queue is written wrongly.
    #[error("{0:?} is no queue; write for example 750p for packets or 1000000b for bytes")]
    Queue(String),
    /// A name is not defined.
    #[error("there is no {what} {name:?}; there is {known}")]
    Unknown {
        /// The kind of thing that was named.
        what: &'static str,
        /// The name as written.
        name: String,
        /// Names that may have been meant.
        known: String,
    },
    /// No route leads from one node to another.
    #[error("no links lead from {from:?} to {to:?}; add a [[link]]")]
    NoRoute {
        /// The node at which the route begins.
        from: String,
        /// The node at which the route ends.
        to: String,
    },
    /// A value is out of its bounds.
    #[error("{what} is {value}; let it be {bounds}")]
    Bounds {
        /// Name of the value.
        what: String,
        /// The value as written.
        value: f64,
        /// Bounds of the value.
        bounds: &'static str,
    },
    /// There are more of something than allowed.
    #[error("{what}: {count} are too many; the limit is {limit}")]
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// The number of them.
        count: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// A list of values is empty.
    #[error("the sweep of {0:?} has no values; name at least one, or remove the line")]
    Empty(String),
    /// The TCP does not distinguish between congestion controls.
    #[error(
        "a two-way TCP (base \"ns3\" or \"modern\") moves its window as \"newreno\" or as \"cubic\", \
         and {0:?} would be the same as \"newreno\"; write one of the two, and for selective \
         acknowledgements sack = true or false"
    )]
    Alike(String),
    /// A combination does not exist.
    #[error("there is no combination {point}; there are {points}, from 0 on")]
    Point {
        /// Number of the combination that was asked for.
        point: usize,
        /// Number of combinations.
        points: usize,
    },
    /// Several combinations are to be captured.
    #[error("a capture is of one combination; choose it with --point")]
    ManyCaptured,
    /// The scenario has no link of that number.
    #[error("there is no link {link}; there are {links}, from 0 on")]
    NoLink {
        /// Number of the link that was asked for.
        link: u32,
        /// Number of links.
        links: usize,
    },
    /// The simulator refuses the scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
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
