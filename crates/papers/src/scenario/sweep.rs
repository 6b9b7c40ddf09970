//! A sweep: every combination of the values that a file's `[sweep]` names.

use super::build::build;
use super::error::{FileError, at_most};
use super::file::File;
use super::mistake::{MISTAKES_MAX, Mistake, Mistakes, Source};
use holdfast_netsim::net::Scenario;
use std::path::Path;
use toml::Value;

/// Most combinations of one file.
pub const POINTS_MAX: usize = 100_000;

/// Most bytes of a file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// A scenario file that was read, with all its combinations.
pub struct Sweep {
    source: Source,
    value: Value,
    axes: Vec<(String, Vec<Value>)>,
}

impl Sweep {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Everything that is no scenario file, and every value of the sweep that does not fit.
    pub fn read(path: &Path, text: &str) -> Result<Self, Mistakes> {
        let source = Source::new(path, text);
        let whole = |error: &FileError| source.mistakes(vec![source.mistake("", error)]);
        at_most("bytes", text.len(), FILE_BYTES_MAX).map_err(|it| whole(&it))?;
        let axes: Vec<_> = source.file()?.sweep.into_iter().collect();
        let value: Value = toml::from_str(text).map_err(|it| {
            let error = FileError::Conflict { message: it.to_string(), remedy: "write TOML" };
            whole(&error)
        })?;
        let own = Self { source, value, axes };
        let mut all = own.misfits();
        let points = own.axes.iter().try_fold(1usize, |all, axis| all.checked_mul(axis.1.len()));
        let many = at_most("combinations", points.unwrap_or(usize::MAX), POINTS_MAX);
        all.extend(many.err().map(|error| own.source.mistake("sweep", &error)));
        if all.is_empty() { Ok(own) } else { Err(own.source.mistakes(all)) }
    }

    /// What is wrong with the sweep's names and values, each looked at by itself.
    fn misfits(&self) -> Vec<Mistake> {
        let mut all = Vec::new();
        for (name, values) in &self.axes {
            let at_name = |error: &FileError| Mistake {
                at: self.source.find_swept(name, values.len()),
                ..self.source.mistake("", error)
            };
            if values.is_empty() {
                all.push(at_name(&FileError::Empty(name.clone())));
            }
            for (index, new) in values.iter().enumerate() {
                let mut value = self.value.clone();
                match place(&mut value, name) {
                    Err(error) => {
                        all.push(at_name(&error));
                        break;
                    }
                    Ok(old) => *old = new.clone(),
                }
                if let Err(error) = value.try_into::<File>() {
                    all.push(self.source.mistake_in_sweep(name, index, &new.to_string(), &error));
                }
                if all.len() >= MISTAKES_MAX {
                    return all;
                }
            }
        }
        all
    }

    /// Number of combinations.
    #[must_use]
    pub fn points(&self) -> usize {
        self.axes.iter().map(|axis| axis.1.len()).product()
    }

    /// Names of the values that vary, with all their values.
    #[must_use]
    pub fn axes(&self) -> &[(String, Vec<Value>)] {
        &self.axes
    }

    /// Which of its values each name has in one combination, in the order of the names.
    #[must_use]
    pub fn indices(&self, point: usize) -> Vec<usize> {
        let mut rest = point;
        // The last name varies fastest.
        let mut indices: Vec<usize> = Vec::new();
        for (_, values) in self.axes.iter().rev() {
            indices.push(rest % values.len().max(1));
            rest /= values.len().max(1);
        }
        indices.reverse();
        indices
    }

    /// The scenario of one combination.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn scenario(&self, point: usize) -> Result<Scenario, Mistakes> {
        let mut value = self.value.clone();
        let indices = self.indices(point);
        let whole = |error: &FileError| self.source.mistakes(vec![self.source.mistake("", error)]);
        for ((name, values), index) in self.axes.iter().zip(&indices) {
            *place(&mut value, name).map_err(|it| whole(&it))? = values[*index].clone();
        }
        let file: File = value.try_into().map_err(|it: toml::de::Error| {
            whole(&FileError::Conflict { message: it.to_string(), remedy: "correct the sweep" })
        })?;
        build(&file).map_err(|found| {
            let one = |(place, error): &(String, FileError)| self.placed(&indices, place, error);
            self.source.mistakes(found.0.iter().map(one).collect())
        })
    }

    /// A mistake at its place, which is in the sweep if the value comes from there.
    fn placed(&self, indices: &[usize], place: &str, error: &FileError) -> Mistake {
        let mistake = self.source.mistake(place, error);
        let swept = self.axes.iter().zip(indices).find(|((name, _), _)| name == place);
        let at = swept.and_then(|((name, _), index)| self.source.find_swept(name, *index));
        Mistake { at: at.or(mistake.at), ..mistake }
    }

    /// Looks at several combinations.
    ///
    /// # Errors
    /// Everything that is wrong with any of them, once.
    pub fn check(&self, points: &[usize]) -> Result<(), Mistakes> {
        let mut all: Vec<Mistake> = Vec::new();
        for mistakes in points.iter().filter_map(|point| self.scenario(*point).err()) {
            for mistake in mistakes.all {
                if !all.contains(&mistake) && all.len() < MISTAKES_MAX {
                    all.push(mistake);
                }
            }
        }
        all.sort_by_key(|it| it.at);
        if all.is_empty() { Ok(()) } else { Err(self.source.mistakes(all)) }
    }
}

/// The value that a name such as `outage.0.until` stands for; created if it is a new key of an
/// existing table.
fn place<'a>(value: &'a mut Value, name: &str) -> Result<&'a mut Value, FileError> {
    let mut known = Vec::new();
    leaves(value, "", &mut known);
    let unknown = || FileError::Unknown { what: "value to sweep", name: name.to_owned(), known };
    let mut at = value;
    let parts: Vec<&str> = name.split('.').collect();
    for (depth, part) in parts.iter().enumerate() {
        let is_last = depth + 1 == parts.len();
        let next = match at {
            Value::Table(table) => {
                if is_last && !part.is_empty() {
                    table.entry((*part).to_owned()).or_insert(Value::Boolean(false));
                }
                table.get_mut(*part)
            }
            Value::Array(array) => part.parse().ok().and_then(|it: usize| array.get_mut(it)),
            _ => None,
        };
        let Some(next) = next else { return Err(unknown()) };
        at = next;
    }
    Ok(at)
}

/// Names of everything in a file that could be swept.
fn leaves(value: &Value, before: &str, names: &mut Vec<String>) {
    let join = |part: &str| match before {
        "" => part.to_owned(),
        before => format!("{before}.{part}"),
    };
    match value {
        Value::Table(table) => {
            let inner = table.iter().filter(|it| !(before.is_empty() && it.0 == "sweep"));
            inner.for_each(|(key, value)| leaves(value, &join(key), names));
        }
        Value::Array(array) if array.iter().any(Value::is_table) => {
            let inner = array.iter().enumerate();
            inner.for_each(|(index, value)| leaves(value, &join(&index.to_string()), names));
        }
        _ => names.push(before.to_owned()),
    }
}
