//! A cold backup's replica: a spool, and in a takeover the server that is built of it
//! (decision 30).

use super::copy::feed_kept;
use super::host::REPLICA_PRIORITY;
use super::{BackupDaemon, Server};
use crate::config::Cold as Config;
use crate::spool::{Reading, Settings, Spool};
use anyhow::Context as _;
use holdfast_linux::process;
use holdfast_linux::snapshot::SnapshotError;
use holdfast_linux::spawn::Making;
use holdfast_member::backup::Kept;
use holdfast_wire::log::{Header, record_len};
use std::collections::VecDeque;
use std::time::Instant;

/// Bytes of the log that come while the server is being built, and are kept in memory.
const LATE_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub struct Cold {
    log_from: u64,
    stage: Stage,
    trouble: Option<String>,
    /// After so much log a new image is due.
    renew_after: u64,
}

enum Stage {
    Keeping(Box<Keeping>),
    Building(Box<Building>),
    /// Neither; `Cold::trouble` says why.
    Nothing,
}

struct Keeping {
    spool: Spool,
    image_is_whole: bool,
    /// The machine knows that the server can be built.
    is_told: bool,
}

struct Building {
    reading: Reading,
    /// `None` once the server runs.
    making: Option<Making>,
    /// What has come since.
    late: VecDeque<(Header, Vec<u8>)>,
    late_bytes: usize,
}

/// How a server was built.
pub type Made = Result<Server, SnapshotError>;

impl Cold {
    /// An image of at most so many bytes comes, of a server whose log begins at `log_from`.
    ///
    /// # Errors
    /// In words: there is no room for it, or would be none for its server.
    pub fn begin(config: &Config, log_from: u64, image_bytes: u64) -> Result<Self, String> {
        let free = process::memory_available().map_err(|error| error.to_string())?;
        if image_bytes > free {
            return Err(format!(
                "the server's image has {image_bytes} bytes, and this host {free} bytes of free \
                 memory, in which a takeover would build it"
            ));
        }
        let settings = Settings {
            dir: config.spool_dir.clone(),
            bytes_max: config.spool_max_mb << 20,
            sync: config.spool_sync,
        };
        let spool = Spool::begin(settings).map_err(|error| error.to_string())?;
        spool.has_room_for(image_bytes)?;
        let keeping = Keeping { spool, image_is_whole: false, is_told: false };
        let (stage, renew_after) =
            (Stage::Keeping(Box::new(keeping)), config.snapshot_every_mb << 20);
        Ok(Self { log_from, stage, trouble: None, renew_after })
    }

    pub fn take_image(&mut self, bytes: &[u8]) {
        if let Stage::Keeping(keeping) = &mut self.stage {
            keeping.spool.take_image(bytes.to_vec());
        }
    }

    pub fn image_kept(&self) -> u64 {
        match &self.stage {
            Stage::Keeping(keeping) => keeping.spool.image_written(),
            Stage::Building(_) | Stage::Nothing => 0,
        }
    }

    pub fn end_image(&mut self) {
        if let Stage::Keeping(keeping) = &mut self.stage {
            keeping.image_is_whole = true;
        }
    }

    /// What is newly made: the server, or (`Some(None)`) all that one can be built of.
    pub fn made(&mut self) -> Option<Option<Made>> {
        match &mut self.stage {
            Stage::Keeping(keeping) => {
                let Keeping { spool, image_is_whole, is_told } = &mut **keeping;
                let is_kept = *image_is_whole && spool.image_written() == spool.image_bytes();
                (is_kept && !std::mem::replace(is_told, is_kept)).then_some(None)
            }
            Stage::Building(building) => {
                let made = building.making.as_ref()?.made()?;
                building.making = None;
                Some(Some(made))
            }
            Stage::Nothing => None,
        }
    }

    /// Keeps a record; whether there was room.
    pub fn keep(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        match &mut self.stage {
            Stage::Keeping(keeping) => keeping.spool.take_record(header, payload),
            Stage::Building(building) => {
                let payload = payload.concat();
                let len = record_len(payload.len());
                let has_room = building.late_bytes + len <= LATE_BYTES_MAX;
                if has_room {
                    building.late_bytes += len;
                    building.late.push_back((*header, payload));
                }
                has_room
            }
            Stage::Nothing => false,
        }
    }

    pub fn has_room(&self) -> bool {
        match &self.stage {
            Stage::Keeping(keeping) => keeping.spool.has_room(),
            Stage::Building(building) => building.late_bytes < LATE_BYTES_MAX / 2,
            Stage::Nothing => false,
        }
    }

    /// Bytes of the log: those that have come, and those that count as executed. What is kept
    /// does, for nobody waits for it.
    pub fn progress(&self, replica: Option<&Server>) -> (u64, u64) {
        let left = match &self.stage {
            Stage::Keeping(keeping) => {
                let kept = self.log_from + keeping.spool.log_bytes();
                return (kept, kept);
            }
            Stage::Building(building) => building.reading.log_left() + building.late_bytes as u64,
            Stage::Nothing => 0,
        };
        let (tail, head) = match replica {
            Some(replica) => (replica.memory.tail(), replica.memory.head()),
            None => (self.log_from, self.log_from),
        };
        (tail + left, head)
    }

    pub fn kept(&self) -> Kept {
        match &self.stage {
            Stage::Keeping(keeping) => {
                let Keeping { spool, .. } = &**keeping;
                Kept { image: spool.image_bytes(), log: spool.log_bytes() }
            }
            Stage::Building(_) | Stage::Nothing => Kept { image: 0, log: 0 },
        }
    }

    /// Looks whether it can go on.
    pub fn look(&mut self, now: Instant) {
        if let (Stage::Keeping(keeping), None) = (&mut self.stage, &self.trouble) {
            self.trouble = keeping.spool.trouble(now);
        }
    }

    /// Why no server can be built of it.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Why a new image is due.
    pub fn outgrown(&self) -> Option<String> {
        let Stage::Keeping(keeping) = &self.stage else { return None };
        let max = self.renew_after;
        let is_long = keeping.spool.log_bytes() > max;
        is_long.then(|| format!("a new image is due: it has {} MB of log", max >> 20))
    }

    /// What lies on the disk, and may, in bytes.
    pub fn used(&self) -> Option<(u64, u64)> {
        match &self.stage {
            Stage::Keeping(keeping) => Some(keeping.spool.used()),
            Stage::Building(_) | Stage::Nothing => None,
        }
    }

    /// Hundredths of what is kept that the server is built of by now.
    pub fn percent(&self) -> Option<u64> {
        match &self.stage {
            Stage::Building(building) => {
                let (done, all) = building.reading.done();
                Some(done * 100 / all.max(1))
            }
            Stage::Keeping(_) | Stage::Nothing => None,
        }
    }

    fn fail(&mut self, why: String) {
        (self.stage, self.trouble) = (Stage::Nothing, Some(why));
    }

    /// Whether nothing is left of it: the server has all of the log.
    pub fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Building(building) => {
                let is_made = building.making.is_none();
                is_made && building.reading.is_over() && building.late.is_empty()
            }
            Stage::Keeping(_) | Stage::Nothing => false,
        }
    }

    /// The log goes to the server, as far as that has room; whether nothing is left that one
    /// could take.
    pub fn feed(&mut self, replica: Option<&Server>) -> bool {
        self.look(Instant::now());
        let Stage::Building(building) = &mut self.stage else {
            return matches!(self.stage, Stage::Keeping(_));
        };
        let Some(replica) = replica else { return false };
        match building.feed(replica) {
            Ok(is_over) => is_over,
            Err(why) => {
                self.fail(format!("the spool's log: {why}"));
                false
            }
        }
    }
}

impl Building {
    fn feed(&mut self, replica: &Server) -> Result<bool, String> {
        let mut any = false;
        while let Some((header, payload)) = self.reading.record()? {
            if !replica.memory.append(&header, &[payload]) {
                break;
            }
            any = true;
            let len = payload.len();
            self.reading.advance(len);
        }
        if any {
            replica.memory.wake_shim();
        }
        let is_over = self.reading.is_over();
        Ok(is_over && feed_kept(&mut self.late, &mut self.late_bytes, replica))
    }
}

impl BackupDaemon<'_, '_> {
    /// A takeover needs the server: it is built of what is kept.
    pub(super) fn build(&mut self) {
        let copying = self.copying();
        let Some(cold) = &mut self.cold else { return };
        let stage = std::mem::replace(&mut cold.stage, Stage::Nothing);
        let Stage::Keeping(keeping) = stage else { return cold.stage = stage };
        let begin = || -> anyhow::Result<Building> {
            let urgency = Some(REPLICA_PRIORITY);
            let mut reading = keeping.spool.read(urgency)?;
            let image = reading.image().context("the image was read before")?;
            let making = Some(Making::of(copying?, image, urgency)?);
            Ok(Building { reading, making, late: VecDeque::new(), late_bytes: 0 })
        };
        match begin() {
            Ok(building) => cold.stage = Stage::Building(Box::new(building)),
            Err(error) => cold.fail(format!("the server cannot be built: {error:#}")),
        }
    }
}
