//! A sweep: every combination of the values that a file's `[sweep]` names.

use super::error::{FileError, at_most};
use super::file::File;
use toml::Value;

/// Most combinations of one file.
pub const POINTS_MAX: usize = 100_000;

/// Most bytes of a file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// A scenario file that was read, with all its combinations.
pub struct Sweep {
    value: Value,
    axes: Vec<(String, Vec<Value>)>,
}

impl Sweep {
    /// Reads a file's text.
    ///
    /// # Errors
    /// When it is no scenario file.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        at_most("bytes of the file", text.len(), FILE_BYTES_MAX)?;
        // The file is parsed as it stands, for errors that show the place.
        let file: File = toml::from_str(text).map_err(|it| FileError::Syntax(it.to_string()))?;
        let value: Value = toml::from_str(text).map_err(|it| FileError::Syntax(it.to_string()))?;
        let axes: Vec<_> = file.sweep.into_iter().collect();
        if let Some((name, _)) = axes.iter().find(|axis: &&(String, Vec<Value>)| axis.1.is_empty())
        {
            return Err(FileError::Empty(name.clone()));
        }
        let points = axes.iter().try_fold(1usize, |all, axis| all.checked_mul(axis.1.len()));
        at_most("points of the sweep", points.unwrap_or(usize::MAX), POINTS_MAX)?;
        Ok(Self { value, axes })
    }

    /// Number of combinations.
    #[must_use]
    pub fn points(&self) -> usize {
        self.axes.iter().map(|axis| axis.1.len()).product()
    }

    /// Names of the values that vary.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|axis| axis.0.as_str())
    }

    /// Values of one combination, in the order of the names.
    #[must_use]
    pub fn values(&self, point: usize) -> Vec<Value> {
        let mut rest = point;
        let mut values: Vec<Value> = Vec::new();
        // The last name varies fastest.
        for (_, axis) in self.axes.iter().rev() {
            values.push(axis[rest % axis.len()].clone());
            rest /= axis.len();
        }
        values.reverse();
        values
    }

    /// The scenario file of one combination.
    ///
    /// # Errors
    /// When a name leads nowhere, or a value does not fit.
    pub fn file(&self, point: usize) -> Result<File, FileError> {
        let mut value = self.value.clone();
        for (name, new) in self.names().zip(self.values(point)) {
            *place(&mut value, name)? = new;
        }
        value.try_into().map_err(|it: toml::de::Error| FileError::Syntax(it.to_string()))
    }
}

/// The value that a name such as `outage.0.until` stands for; created if it is a new key of an
/// existing table.
fn place<'a>(value: &'a mut Value, name: &str) -> Result<&'a mut Value, FileError> {
    let mut at = value;
    for part in name.split('.') {
        let known = || match &name {
            _ if part.is_empty() => "no empty part of a name".to_owned(),
            _ => "names like seed, flow.0.segments, outage.0.until, profile.web.rto_min".to_owned(),
        };
        let unknown =
            || FileError::Unknown { what: "place to sweep", name: name.to_owned(), known: known() };
        at = match at {
            Value::Table(table) if !part.is_empty() => {
                table.entry(part.to_owned()).or_insert(Value::Boolean(false))
            }
            Value::Array(array) => {
                let index = part.parse::<usize>().map_err(|_| unknown())?;
                array.get_mut(index).ok_or_else(unknown)?
            }
            _ => return Err(unknown()),
        };
    }
    Ok(at)
}
