//! Checks whether this version can take over the pinned maps that an earlier daemon has left.
//! The kernel does not notice if their layout differs.

use super::error::BpfError;
use super::layout::{
    CAPTURE_RING_BYTES, RECOVER_RING_BYTES, RawRecoverCount, SERVICES_MAX, ServiceKey,
};
use super::loader::Object;
use super::recover::RECOVER_MAPS;
use aya::maps::MapData;
use std::fmt;
use std::path::Path;

/// Sizes of a map's keys and values in bytes, and its number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    key: u32,
    value: u32,
    entries: u32,
}

/// A map by its name, and its required shape.
pub(crate) struct Pin {
    map: &'static str,
    shape: Shape,
}

impl Pin {
    pub(crate) fn of<K, V>(map: &'static str, entries: u32) -> Self {
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        Self { map, shape: Shape { key, value, entries } }
    }

    /// Maps that every forwarding object has, and whose content may be lost.
    pub(crate) fn common(object: &Object) -> [Self; 3] {
        [
            Self::of::<u32, u64>("counters", object.counters.len() as u32),
            Self::of::<u32, i64>("capture_credit", 1),
            Self::of::<(), ()>("captures", CAPTURE_RING_BYTES),
        ]
    }

    /// Maps of the objects that copy for recovery; copies may be lost.
    pub(crate) fn recover() -> [Self; 4] {
        let [control, hold, packets, counts] = RECOVER_MAPS;
        [
            Self::of::<u32, u32>(control, 1),
            Self::of::<u32, u64>(hold, 1),
            Self::of::<(), ()>(packets, RECOVER_RING_BYTES),
            Self::of::<u32, RawRecoverCount>(counts, 1),
        ]
    }

    /// Maps of the objects that look services up; they are written at each start anyway.
    pub(crate) fn services() -> [Self; 2] {
        [
            Self::of::<ServiceKey, u32>("services", SERVICES_MAX as u32),
            Self::of::<[u8; 16], u32>("addresses", SERVICES_MAX as u32),
        ]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, entries } = self;
        write!(f, "{key}-byte keys, {value}-byte values and {entries} entries")
    }
}

/// A [`Shape`] as a text; `None`: there is no map.
pub(super) fn shown(shape: Option<&Shape>) -> String {
    shape.map_or_else(|| "none there".to_owned(), ToString::to_string)
}

impl Object {
    /// Checks pinned maps before [`Object::load`] takes them over. The `lasting` maps hold what
    /// connections need: either all of them must be there with the right shape, or none. Other
    /// maps that differ are unpinned, so that new ones are created; programs that still use the
    /// old ones continue.
    pub(crate) fn check_pins(
        &self,
        pin_dir: &Path,
        lasting: &[Pin],
        others: impl IntoIterator<Item = Pin>,
    ) -> Result<(), BpfError> {
        let directory = self.directory(pin_dir);
        let found: Vec<Option<Shape>> =
            lasting.iter().map(|pin| shape_at(&directory, pin.map)).collect::<Result<_, _>>()?;
        if found.iter().any(Option::is_some) {
            for (pin, found) in lasting.iter().zip(found) {
                if found != Some(pin.shape) {
                    let Pin { map, shape: wanted } = *pin;
                    return Err(BpfError::Incompatible { path: directory, map, found, wanted });
                }
            }
        }
        for Pin { map, shape } in others {
            if shape_at(&directory, map)?.is_some_and(|found| found != shape) {
                let path = directory.join(map);
                let failed = |source| BpfError::PinDir { path: path.clone(), source };
                std::fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

fn shape_at(directory: &Path, map: &'static str) -> Result<Option<Shape>, BpfError> {
    let path = directory.join(map);
    if !path.exists() {
        return Ok(None);
    }
    let info = MapData::from_pin(path).and_then(|map| map.info()).map_err(BpfError::map(map))?;
    Ok(Some(Shape { key: info.key_size(), value: info.value_size(), entries: info.max_entries() }))
}
