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

/// Error when there is no second spool.
const NOTHING: &str = "the log was not kept for it";

/// Most bytes of the log that are kept in memory while the server is being built.
const LATE_BYTES_MAX: usize = 64 << 20;

/// A cold backup's spool, and then the server that is built from it.
pub struct Cold {
    /// Position in the primary's log at which the log behind the image begins, in bytes.
    log_from: u64,
    stage: Stage,
    trouble: Option<String>,
    settings: Settings,
    /// Bytes of log after which a new image is due.
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
    /// Bytes of the spool's log that are older than its image.
    skipped: u64,
    image_is_whole: bool,
    /// Whether the machine was told that the server can be built.
    is_told: bool,
    /// The second spool, which is to take this one's place.
    next: Option<Next>,
}

/// A second spool, whose log begins before its image.
struct Next {
    spool: Spool,
    /// Position in the primary's log at which this spool's log begins, in bytes.
    from: u64,
    /// Position of its image; `None` until that is taken.
    log_from: Option<u64>,
    image_is_whole: bool,
    /// Why it cannot be kept.
    trouble: Option<String>,
}

impl Next {
    fn keep(&mut self, header: &Header, payload: &[&[u8]]) {
        if self.trouble.is_none() && !self.spool.take_record(header, payload) {
            self.trouble = Some("the disk of the spool is slower than the log".to_owned());
        }
    }
}

impl Keeping {
    /// Bytes of the log behind the image.
    fn log_bytes(&self) -> u64 {
        self.spool.log_bytes() - self.skipped
    }
}

struct Building {
    reading: Reading,
    /// `None` once the server runs.
    making: Option<Making>,
    /// Records that have come since, in order.
    late: VecDeque<(Header, Vec<u8>)>,
    late_bytes: usize,
}

/// Refuses an image of a server that would not fit into this host's free memory.
fn has_memory_for(image_bytes: u64) -> Result<(), String> {
    let free = process::memory_available().map_err(|error| error.to_string())?;
    if image_bytes > free {
        return Err(format!(
            "the server's image has {image_bytes} bytes, and this host {free} bytes of free \
             memory, in which a takeover would build it"
        ));
    }
    Ok(())
}

/// The result of building a server.
pub type Made = Result<Server, SnapshotError>;

impl Cold {
    /// Begins a spool for an image of at most `image_bytes` bytes, of a server whose log begins
    /// at `log_from`.
    ///
    /// # Errors
    /// A text: no room on the disk for the image, or no memory for its server.
    pub fn begin(config: &Config, log_from: u64, image_bytes: u64) -> Result<Self, String> {
        has_memory_for(image_bytes)?;
        let settings = Settings {
            dir: config.spool_dir.clone(),
            bytes_max: config.spool_max_mb << 20,
            sync: config.spool_sync,
        };
        let spool = Spool::begin(settings.clone()).map_err(|error| error.to_string())?;
        let renew_after = config.snapshot_every_mb << 20;
        spool.has_room_for(image_bytes, renew_after)?;
        let keeping =
            Keeping { spool, skipped: 0, image_is_whole: false, is_told: false, next: None };
        let stage = Stage::Keeping(Box::new(keeping));
        Ok(Self { log_from, stage, trouble: None, settings, renew_after })
    }

    /// The spool that an image is being written to, and its mark that the image is whole.
    fn arriving(&mut self) -> Option<(&mut Spool, &mut bool)> {
        let Stage::Keeping(keeping) = &mut self.stage else { return None };
        Some(match &mut keeping.next {
            Some(next) => (&mut next.spool, &mut next.image_is_whole),
            None => (&mut keeping.spool, &mut keeping.image_is_whole),
        })
    }

    pub fn take_image(&mut self, bytes: &[u8]) {
        if let Some((spool, _)) = self.arriving() {
            spool.take_image(bytes.to_vec());
        }
    }

    pub fn image_kept(&self) -> u64 {
        match &self.stage {
            Stage::Keeping(keeping) => {
                let next = keeping.next.as_ref().map(|next| &next.spool);
                next.unwrap_or(&keeping.spool).image_written()
            }
            Stage::Building(_) | Stage::Nothing => 0,
        }
    }

    pub fn end_image(&mut self) {
        if let Some((_, is_whole)) = self.arriving() {
            *is_whole = true;
        }
    }

    /// Begins a second spool: from here on every record is kept twice, until
    /// [`Self::end_renewal`].
    ///
    /// # Errors
    /// A text: there is no first spool, or the second cannot be made.
    pub fn begin_renewal(&mut self) -> Result<(), String> {
        let (from, _) = self.progress(None);
        let Stage::Keeping(keeping) = &mut self.stage else { return Err(NOTHING.to_owned()) };
        let spool = Spool::begin(self.settings.clone()).map_err(|error| error.to_string())?;
        let (log_from, image_is_whole, trouble) = (None, false, None);
        keeping.next = Some(Next { spool, from, log_from, image_is_whole, trouble });
        Ok(())
    }

    /// Accepts an image of at most `image_bytes` bytes, taken at position `log_from` of the log,
    /// for the second spool.
    ///
    /// # Errors
    /// A text: there is no second spool, or its log begins later, or room or memory is lacking.
    pub fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        has_memory_for(image_bytes)?;
        let Stage::Keeping(keeping) = &mut self.stage else { return Err(NOTHING.to_owned()) };
        let next = keeping.next.as_mut().filter(|next| next.from <= log_from).ok_or(NOTHING)?;
        next.spool.has_room_for(image_bytes, self.renew_after)?;
        next.log_from = Some(log_from);
        Ok(())
    }

    /// Whether the new image is whole and on the disk, and the log has reached its position.
    ///
    /// # Errors
    /// A text: why the second spool cannot be kept.
    pub fn is_renewal_kept(&mut self, now: Instant) -> Result<bool, String> {
        let (at, _) = self.progress(None);
        let Stage::Keeping(keeping) = &mut self.stage else { return Err(NOTHING.to_owned()) };
        let next = keeping.next.as_mut().ok_or(NOTHING)?;
        if let Some(trouble) = next.trouble.take().or_else(|| next.spool.trouble(now)) {
            return Err(trouble);
        }
        let Next { spool, log_from, image_is_whole, .. } = next;
        let is_written = spool.image_written() == spool.image_bytes();
        Ok(*image_is_whole && is_written && log_from.is_some_and(|log_from| log_from <= at))
    }

    /// Puts the second spool in the first one's place if it `replaces` that; else drops it.
    pub fn end_renewal(&mut self, replaces: bool) {
        let Stage::Keeping(keeping) = &mut self.stage else { return };
        let Some(next) = keeping.next.take().filter(|_| replaces) else { return };
        let Some(log_from) = next.log_from else { return };
        keeping.skipped = log_from - next.from;
        keeping.spool = next.spool;
        self.log_from = log_from;
    }

    /// What has been completed since the last call: the server, or (`Some(None)`) the spool,
    /// from which a server can be built.
    pub fn made(&mut self) -> Option<Option<Made>> {
        match &mut self.stage {
            Stage::Keeping(keeping) => {
                let Keeping { spool, image_is_whole, is_told, .. } = &mut **keeping;
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

    /// Keeps a record of the log; false if there was no room.
    pub fn keep(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        match &mut self.stage {
            Stage::Keeping(keeping) => {
                let taken = keeping.spool.take_record(header, payload);
                if taken && let Some(next) = &mut keeping.next {
                    next.keep(header, payload);
                }
                taken
            }
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

    /// Positions in the log, in bytes: up to where it has come, and up to where it counts as
    /// executed. What is in the spool counts as executed, since nobody waits for it.
    pub fn progress(&self, replica: Option<&Server>) -> (u64, u64) {
        let left = match &self.stage {
            Stage::Keeping(keeping) => {
                let kept = self.log_from + keeping.log_bytes();
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
                Kept { image: keeping.spool.image_bytes(), log: keeping.log_bytes() }
            }
            Stage::Building(_) | Stage::Nothing => Kept { image: 0, log: 0 },
        }
    }

    /// Checks whether the spool still works, and notes why if it does not.
    pub fn look(&mut self, now: Instant) {
        if let (Stage::Keeping(keeping), None) = (&mut self.stage, &self.trouble) {
            self.trouble = keeping.spool.trouble(now);
        }
    }

    /// Why no server can be built from the spool; `None`: one can.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Why a new image is due; `None`: none is.
    pub fn outgrown(&self) -> Option<String> {
        let Stage::Keeping(keeping) = &self.stage else { return None };
        let max = self.renew_after;
        let is_long = keeping.log_bytes() > max;
        is_long.then(|| format!("a new image is due: it has {} MB of log", max >> 20))
    }

    /// Bytes on the disk, and the most that there may be.
    pub fn used(&self) -> Option<(u64, u64)> {
        match &self.stage {
            Stage::Keeping(keeping) => {
                let (bytes, bytes_max) = keeping.spool.used();
                let next = keeping.next.as_ref().map_or(0, |next| next.spool.used().0);
                Some((bytes + next, bytes_max))
            }
            Stage::Building(_) | Stage::Nothing => None,
        }
    }

    /// Percentage of the spool that has been read to build the server.
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

    /// Whether the spool is used up: the server is built and has been given all of the log.
    pub fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Building(building) => {
                let is_made = building.making.is_none();
                is_made && building.reading.is_over() && building.late.is_empty()
            }
            Stage::Keeping(_) | Stage::Nothing => false,
        }
    }

    /// Gives the log to the server, as far as that has room; true if nothing is left that a
    /// server could take now.
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
    /// Begins to build the server from the spool, because a takeover needs it.
    pub(super) fn build(&mut self) {
        let copying = self.copying();
        let Some(cold) = &mut self.cold else { return };
        let stage = std::mem::replace(&mut cold.stage, Stage::Nothing);
        let Stage::Keeping(keeping) = stage else { return cold.stage = stage };
        let begin = || -> anyhow::Result<Building> {
            let urgency = Some(REPLICA_PRIORITY);
            let mut reading = keeping.spool.read(keeping.skipped, urgency)?;
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
