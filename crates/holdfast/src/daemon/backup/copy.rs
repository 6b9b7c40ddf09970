//! A joiner's replica: the arriving image, the server made from it, and the log that
//! comes before that server can take it.

use super::{BackupDaemon, Cold, watch};
use crate::config::Mode;
use anyhow::Context as _;
use holdfast_linux::process;
use holdfast_linux::snapshot::restore::Loading;
use holdfast_linux::spawn::{Copying, Making, Server};
use holdfast_wire::log::{Header, NO_CONN, record_len};
use holdfast_wire::shm::{conn_state, mode};
use holdfast_wire::snapshot::Limits;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Instant;

/// Divisor of the free memory that gives an image's largest size: the server made from it
/// needs as much again, and arrived pieces and the log come on top.
const FREE_PART: u64 = 3;
/// Most bytes of the log that are kept until the server can take them.
const KEPT_BYTES_MAX: usize = 1 << 30;

/// The image that is arriving, and the log that follows it.
pub struct Incoming {
    /// `None` once the server runs.
    making: Option<Making>,
    log_from: u64,
    records: VecDeque<(Header, Vec<u8>)>,
    /// Bytes of `records`, as the replica's log will have them.
    bytes: usize,
    /// Bytes of the image that have arrived.
    taken: u64,
}

impl Incoming {
    /// Keeps a record; false if there was no room.
    fn keep(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let payload = payload.concat();
        let len = record_len(payload.len());
        if self.bytes + len > KEPT_BYTES_MAX {
            return false;
        }
        self.bytes += len;
        self.records.push_back((*header, payload));
        true
    }
}

/// The reason why no server could be made from the image, with the name of this host (`here`)
/// in it, because the other member repeats it.
fn cannot_be_made(here: &str, error: &anyhow::Error) -> String {
    let why = format!("{error:#}");
    let why = why.strip_prefix("it cannot be copied: ").unwrap_or(&why);
    format!("the server cannot be rebuilt on {here}: {why}")
}

impl BackupDaemon<'_, '_> {
    pub(super) fn expect_image(&mut self, log_from: u64, bytes: u64) -> Result<(), String> {
        let is_cold = self.node.config.group.mode == Mode::Cold;
        if let Some(config) = self.node.config.cold.as_ref().filter(|_| is_cold) {
            self.cold = Some(Cold::begin(config, log_from, bytes)?);
            return Ok(());
        }
        let free = process::memory_available().map_err(|error| error.to_string())?;
        if bytes > free / FREE_PART {
            return Err(format!(
                "the server's image has {bytes} bytes, and this host {free} bytes of free memory: \
                 it takes {FREE_PART} times the image"
            ));
        }
        self.place.release();
        let making = self.copying().and_then(|copying| Ok(Making::begin(copying)?));
        let making = making.map_err(|error| cannot_be_made(&self.node.me.name, &error))?;
        let records = VecDeque::new();
        self.incoming =
            Some(Incoming { making: Some(making), log_from, records, bytes: 0, taken: 0 });
        Ok(())
    }

    /// The settings for making the server from its image.
    pub(super) fn copying(&self) -> anyhow::Result<Copying> {
        // The server's files are read, too, and compared.
        let free = process::memory_available().context("the host's free memory")?;
        let loading = Loading {
            key: self.node.hash_key,
            limits: Limits { memory_bytes: free, ..Limits::default() },
            state_dirs: self.node.config.server.state_dirs.clone(),
            keeps_old: self.rebuilds,
            dies_with_parent: true,
        };
        let settings = self.node.settings(mode::REPLAY)?;
        let log = self.node.config.server.log.clone();
        Ok(Copying { loading, settings, log })
    }

    fn making(&mut self) -> Option<&mut Making> {
        self.incoming.as_mut()?.making.as_mut()
    }

    pub(super) fn take_piece(&mut self, bytes: &[u8]) -> Result<(), String> {
        if let Some(cold) = &mut self.cold {
            cold.take_image(bytes);
            return Ok(());
        }
        self.making().ok_or("an image that nobody announced")?.take(bytes.to_vec());
        self.incoming.iter_mut().for_each(|incoming| incoming.taken += bytes.len() as u64);
        Ok(())
    }

    /// See [`BackupHost::image_kept`](holdfast_member::backup::BackupHost::image_kept).
    pub(super) fn pieces_kept(&self) -> u64 {
        match (&self.cold, &self.incoming) {
            (Some(cold), _) => cold.image_kept(),
            (None, incoming) => incoming.as_ref().map_or(0, |incoming| incoming.taken),
        }
    }

    pub(super) fn end_pieces(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.end_image();
        } else if let Some(making) = self.making() {
            making.end();
        }
    }

    /// The outcome of making the image's server.
    pub(super) fn server_made(&mut self) -> Option<Result<(), String>> {
        // A takeover waits for the server that is built of what is kept, and clients with it. A
        // short log has all its room in the new server, and nothing is kept any more then.
        let is_awaited = self.cold.is_some();
        let made = match &mut self.cold {
            Some(cold) => match cold.made()? {
                Some(made) => made,
                // Everything is kept: it can be built.
                None => return Some(Ok(())),
            },
            None => self.making()?.made()?,
        };
        let made = made.map_err(anyhow::Error::from).and_then(|copy| self.begin_following(copy));
        if is_awaited {
            self.hurry();
        }
        Some(made.map_err(|error| cannot_be_made(&self.node.me.name, &error)))
    }

    fn begin_following(&mut self, copy: Server) -> anyhow::Result<()> {
        if let Some(incoming) = &mut self.incoming {
            incoming.making = None;
        }
        self.node.note_server(&copy)?;
        watch(self.node, &copy)?;
        self.watches_replica = true;
        self.replica = Some(copy);
        self.feed();
        Ok(())
    }

    /// Gives kept records to the server, as far as it has room; true if nothing is left that
    /// a server could take.
    pub(super) fn feed(&mut self) -> bool {
        self.settle_notes();
        if let Some(cold) = &mut self.cold {
            let is_fed = cold.feed(self.replica.as_ref());
            if cold.is_over() {
                self.cold = None;
            }
            return is_fed;
        }
        let Some(replica) = &self.replica else { return true };
        let Some(incoming) = &mut self.incoming else { return true };
        let is_empty = feed_kept(&mut incoming.records, &mut incoming.bytes, replica);
        if is_empty {
            self.incoming = None;
        }
        is_empty
    }

    /// Writes what clients have acknowledged into the replica's table, for connections that the
    /// replica has reached. With very many of them it uses no more than a fifth of this
    /// thread's time: it pauses for four times as long as it took.
    fn settle_notes(&mut self) {
        let Some(replica) = &self.replica else { return };
        let now = Instant::now();
        if self.unnoted.is_empty() || now < self.settle_at {
            return;
        }
        self.unnoted.retain(|accept, bytes| waits(Some(replica), *accept, *bytes));
        self.settle_at = Instant::now() + 4 * now.elapsed();
    }

    pub(super) fn append(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        if let Some(cold) = &mut self.cold {
            return cold.keep(header, payload);
        }
        match (&mut self.incoming, &self.replica) {
            (Some(incoming), _) => incoming.keep(header, payload),
            (None, Some(replica)) => replica.memory.append(header, payload),
            (None, None) => false,
        }
    }

    /// Bytes of the log: appended or kept, and executed.
    pub(super) fn log_progress(&self) -> (u64, u64) {
        if let Some(cold) = &self.cold {
            return cold.progress(self.replica.as_ref());
        }
        let kept = self.incoming.as_ref().map_or(0, |incoming| incoming.bytes as u64);
        match (&self.replica, &self.incoming) {
            (Some(replica), _) => {
                // The tail is in memory that the replica can write.
                (replica.memory.tail().saturating_add(kept), replica.memory.head())
            }
            (None, Some(incoming)) => (incoming.log_from + kept, incoming.log_from),
            (None, None) => (0, 0),
        }
    }

    /// Begins to keep the log a second time, for a new image.
    pub(super) fn begin_second(&mut self) -> Result<(), String> {
        self.cold.as_mut().ok_or("there is no spool")?.begin_renewal()?;
        let is_over = |(accept, bytes): (&u32, &u64)| (*bytes == u64::MAX).then_some(*accept);
        self.over_before = self.unnoted.iter().filter_map(is_over).collect();
        Ok(())
    }

    /// See [`BackupHost::end_renewal`](holdfast_member::backup::BackupHost::end_renewal). In the
    /// new image, connections that were over before it need no note.
    pub(super) fn end_second(&mut self, replaces: bool) {
        self.cold.iter_mut().for_each(|cold| cold.end_renewal(replaces));
        for accept in std::mem::take(&mut self.over_before) {
            if replaces {
                self.unnoted.remove(&accept);
            }
        }
    }

    /// Notes that the client has acknowledged `bytes` bytes of output; `u64::MAX`: the
    /// connection is over.
    pub(super) fn note(&mut self, accept: u32, bytes: u64) {
        if waits(self.replica.as_ref(), accept, bytes) {
            let known = self.unnoted.entry(accept).or_default();
            *known = bytes.max(*known);
        }
    }
}

/// Gives records to a server's log, as far as it has room; true if none is
/// left.
pub(super) fn feed_kept(
    records: &mut VecDeque<(Header, Vec<u8>)>,
    bytes: &mut usize,
    replica: &Server,
) -> bool {
    let mut any = false;
    while let Some((header, payload)) = records.front() {
        if !replica.memory.append(header, &[payload]) {
            break;
        }
        any = true;
        *bytes -= record_len(payload.len());
        records.pop_front();
    }
    if any {
        replica.memory.wake_shim();
    }
    records.is_empty()
}

/// Writes the acknowledged `bytes` into the replica's table; true if the replica has not
/// reached that connection yet.
fn waits(replica: Option<&Server>, accept: u32, bytes: u64) -> bool {
    let Some(replica) = replica else { return true };
    let entry = replica.memory.entry(accept);
    let conn = entry.conn.load(Relaxed);
    if conn != accept {
        // One entry serves many connections in turn, with growing accept numbers: a smaller
        // one than ours means that the replica has not come to ours yet.
        return conn == NO_CONN || accept.wrapping_sub(conn) as i32 > 0;
    }
    entry.acked_bytes.fetch_max(bytes, Release);
    if bytes == u64::MAX {
        let (closed, done) = (conn_state::CLOSED, conn_state::DONE);
        let changed = entry.state.compare_exchange(closed, done, Release, Relaxed);
        if changed.is_ok() && replica.memory.is_family() {
            replica.memory.free_part(accept);
        }
    }
    false
}
