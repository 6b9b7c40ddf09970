use holdfast_wire::snapshot::ImageError;
use std::fmt;
use std::io;

/// How the reason of a server begins that no later attempt can copy.
pub(crate) const NEVER: &str = "it can never be copied: ";

/// Why there is no image, or no process made from it.
#[derive(Debug)]
pub enum SnapshotError {
    /// The process has parts that cannot be rebuilt, listed by name; it was not
    /// touched.
    Refused(Vec<String>),
    /// Its threads were not all quiet within the time that it may stand still.
    NeverQuiet,
    /// A step failed: its description, and the error.
    Step { what: String, error: io::Error },
    /// The image itself is unusable.
    Image(ImageError),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What holds for good says so by itself.
            Self::Refused(reasons) if reasons.iter().any(|it| it.starts_with(NEVER)) => {
                f.write_str(&reasons.join("; "))
            }
            Self::Refused(reasons) => write!(f, "it cannot be copied: {}", reasons.join("; ")),
            Self::NeverQuiet => write!(f, "its threads were not quiet in time"),
            Self::Step { what, error } => write!(f, "{what}: {error}"),
            Self::Image(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<ImageError> for SnapshotError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, SnapshotError>;

/// Names the step that failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| SnapshotError::Step { what: what.into(), error })
    }
}

pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(SnapshotError::Refused(vec![reason.into()]))
}
