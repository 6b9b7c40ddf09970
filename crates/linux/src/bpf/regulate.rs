//! The cap on advertised windows of `bpf/regulate.h`, and its measurements, for any object that
//! includes that header.

use super::batch;
use super::error::BpfError;
use super::layout::{
    REGULATE_FAR_FIN, REGULATE_NEAR_FIN, REGULATE_RESET, REGULATE_UNCAPPED, RawKey,
    RawRegulateCount, RawRegulateFlow, RawRegulateString, STRINGS_MAX,
};
use super::loader::Loaded;
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The maps that `regulate.h` adds to an object.
pub(crate) const REGULATE_MAPS: [&str; 4] =
    ["regulate_control", "regulate_flows", "regulate_strings", "regulate_counts"];

/// What went into a string since the maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes on the wire.
    pub bytes: u64,
    /// Number of flows, each counted once in every interval in which it sent
    /// something.
    pub flows: u64,
    /// Bytes of flows that do not feel the cap yet, because larger windows were advertised to
    /// them before.
    pub free_bytes: u64,
    pub free_flows: u64,
}

impl std::iter::Sum for Measured {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            bytes: sum.bytes + it.bytes,
            flows: sum.flows + it.flows,
            free_bytes: sum.free_bytes + it.free_bytes,
            free_flows: sum.free_flows + it.free_flows,
        })
    }
}

/// The maps of one loaded object.
pub struct Regulated {
    control: Array<MapData, u64>,
    flows: HashMap<MapData, RawKey, RawRegulateFlow>,
    /// The same map again, for reading it in batches.
    flows_fd: MapData,
    strings: PerCpuArray<MapData, RawRegulateString>,
    counts: PerCpuArray<MapData, RawRegulateCount>,
    session: u16,
    interval: u16,
    /// Each flow's last stamp, and when this process first saw that stamp.
    silent: BTreeMap<RawKey, (u64, Instant)>,
}

impl Regulated {
    pub(crate) fn of(loaded: &mut Loaded) -> Result<Self, BpfError> {
        let [control, flows, strings, counts] = REGULATE_MAPS;
        let mut this = Self {
            control: loaded.map(control)?,
            flows_fd: loaded.pinned(flows)?,
            flows: loaded.map(flows)?,
            strings: loaded.map(strings)?,
            counts: loaded.map(counts)?,
            session: 0,
            interval: 0,
            silent: BTreeMap::new(),
        };
        // A daemon that died while capping has left its cap in force, with its session number.
        let left = this.control.get(&0, 0).map_err(BpfError::map("regulate_control"))?;
        let [.., a, b] = left.to_ne_bytes();
        this.session = u16::from_ne_bytes([a, b]);
        this.write(0)?;
        Ok(this)
    }

    /// Begins to watch: from now on the windows advertised to senders are limited to what they
    /// are about to use, so that a cap is felt soon after it is set.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn watch(&mut self) -> Result<(), BpfError> {
        self.session = self.session.checked_add(1).unwrap_or(1);
        self.uncap()
    }

    /// Stops capping, and goes on watching.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn uncap(&mut self) -> Result<(), BpfError> {
        self.write(REGULATE_UNCAPPED)
    }

    /// Begins the next interval, with this cap in bytes on every window.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn set_window(&mut self, window_bytes: u32) -> Result<(), BpfError> {
        self.interval = self.interval.wrapping_add(1);
        self.write(window_bytes.clamp(1, REGULATE_UNCAPPED - 1))
    }

    fn write(&mut self, window_bytes: u32) -> Result<(), BpfError> {
        // `struct regulate_control` as one word, which the program reads atomically.
        let mut word = [0; 8];
        word[..4].copy_from_slice(&window_bytes.to_ne_bytes());
        word[4..6].copy_from_slice(&self.interval.to_ne_bytes());
        word[6..].copy_from_slice(&self.session.to_ne_bytes());
        let word = u64::from_ne_bytes(word);
        self.control.set(0, word, 0).map_err(BpfError::map("regulate_control"))
    }

    /// Measurements of a string. The programs count only while they watch.
    #[must_use]
    pub fn measured(&self, string: usize) -> Measured {
        let index = u32::try_from(string.min(STRINGS_MAX)).unwrap_or(0);
        let values = self.strings.get(&index, 0);
        values.map_or_else(
            |_| Measured::default(),
            |values| {
                let one = |it: &RawRegulateString| Measured {
                    bytes: it.bytes,
                    flows: it.flows,
                    free_bytes: it.free_bytes,
                    free_flows: it.free_flows,
                };
                values.iter().map(one).sum()
            },
        )
    }

    /// Number of ACKs that were changed, and of flows that are never capped because there was no
    /// room for them.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let values = self.counts.get(&0, 0);
        values.map_or((0, 0), |values| {
            values.iter().fold((0, 0), |sum, it| (sum.0 + it.clamped, sum.1 + it.refused))
        })
    }

    /// Forgets flows that have ended, or were silent for longer than `older_than`. If such a flow
    /// goes on it is not capped any more. Returns their number.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn age(&mut self, now: Instant, older_than: Duration) -> Result<usize, BpfError> {
        let flows: Vec<(RawKey, RawRegulateFlow)> =
            batch::entries(self.flows_fd.fd().as_fd()).unwrap_or_default();
        let mut silent = BTreeMap::new();
        let mut dead = Vec::new();
        for (key, flow) in flows {
            const CLOSED: u8 = REGULATE_NEAR_FIN | REGULATE_FAR_FIN;
            let known = self.silent.get(&key).filter(|(stamp, _)| *stamp == flow.seen_ns);
            let since = known.map_or(now, |(_, since)| *since);
            let over = flow.flags & CLOSED == CLOSED || flow.flags & REGULATE_RESET != 0;
            if over || now.saturating_duration_since(since) > older_than {
                dead.push(key);
            } else {
                silent.insert(key, (flow.seen_ns, since));
            }
        }
        self.silent = silent;
        for key in &dead {
            // It may be gone already.
            let _gone = self.flows.remove(key);
        }
        Ok(dead.len())
    }
}
