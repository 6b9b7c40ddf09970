//! What a server that runs alone can be rebuilt from on this host (decision 31): its image, its
//! log, and what its clients send.

use super::{PrimaryDaemon, TAP};
use crate::daemon::backup::{Cold, segment};
use crate::daemon::heed;
use crate::poll::Interest;
use holdfast_linux::process::Ending;
use holdfast_linux::snapshot::has_room;
use holdfast_linux::spawn::Server;
use holdfast_linux::tap::{BUFFER_DEFAULT_BYTES, TapSocket};
use holdfast_member::backup::Replica;
use holdfast_member::host::Fall;
use holdfast_member::primary::KeeperHost;
use holdfast_replica::limits::Limits;
use holdfast_wire::hash::HashKey;
use holdfast_wire::log::Header;
use holdfast_wire::packet::TcpPacket;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Signals that ask a server to end: a server that they end has not crashed.
const ASKED_BY: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
/// Time between two checks of the free space in the server's state folders.
const ROOM_EVERY: Duration = Duration::from_secs(1);
const NOT_OURS: &str = "its daemon was started after it: nobody would be told how it ends";

/// What the server can be rebuilt from; see the module.
pub struct Kept {
    pub tap: TapSocket,
    /// Spool of image and log; `None` until the image begins to come.
    pub cold: Option<Cold>,
    /// See `BackupDaemon::unnoted`.
    pub unnoted: BTreeMap<u32, u64>,
    /// Bytes of the files that a rebuild puts into the state folders.
    pub state_bytes: u64,
    /// When the free space there is checked next.
    room_at: Instant,
    /// Why a rebuild would not fit there, if so.
    no_room: Option<String>,
}

/// How a server has crashed; `None` if it ended as it was asked to, or with exit code 0, or if
/// nobody knows.
fn fall_of(ending: Ending) -> Option<Fall> {
    match ending {
        Ending::Exited(0) | Ending::Unknown => None,
        Ending::Exited(_) => Some(Fall::Crashed),
        Ending::Killed(libc::SIGKILL) => Some(Fall::Killed),
        Ending::Killed(signal) => (!ASKED_BY.contains(&signal)).then_some(Fall::Crashed),
    }
}

impl PrimaryDaemon<'_, '_> {
    fn cold(&mut self) -> Option<&mut Cold> {
        self.kept.as_mut()?.cold.as_mut()
    }

    fn cold_ref(&self) -> Option<&Cold> {
        self.kept.as_ref()?.cold.as_ref()
    }

    /// Checks whether the state folders have room for a rebuilt server's files beside the old
    /// ones.
    fn look_at_room(&mut self, now: Instant) {
        let state_dirs = &self.node.config.server.state_dirs;
        let Some(kept) = self.kept.as_mut().filter(|kept| now >= kept.room_at) else { return };
        let Some(cold) = &kept.cold else { return };
        kept.room_at = now + ROOM_EVERY;
        let lacks = |dir: &PathBuf| has_room(dir, kept.state_bytes, cold.kept().log).err();
        kept.no_room = state_dirs.iter().find_map(lacks);
    }
}

impl KeeperHost for PrimaryDaemon<'_, '_> {
    fn begin_keeping(&mut self) -> Result<Option<(HashKey, Limits)>, String> {
        self.stop_keeping();
        if !self.node.config.group.rebuild {
            return Ok(None);
        }
        if self.server.is_found() {
            return Err(NOT_OURS.to_owned());
        }
        let interface = &self.node.me.interface;
        let tap = TapSocket::open(interface, &self.node.tap_services(), BUFFER_DEFAULT_BYTES);
        let tap = tap.map_err(|error| error.to_string())?;
        let added = self.node.poll.add(&tap.fd(), TAP, Interest::Read);
        added.map_err(|error| format!("the tap: {error:#}"))?;
        self.kept = Some(Kept {
            tap,
            cold: None,
            unnoted: BTreeMap::new(),
            state_bytes: 0,
            room_at: Instant::now(),
            no_room: None,
        });
        Ok(Some((self.node.hash_key, Limits::DEFAULT)))
    }

    fn stop_keeping(&mut self) {
        if let Some(kept) = self.kept.take() {
            heed("poll", self.node.poll.remove(&kept.tap.fd()));
        }
    }

    fn fall(&mut self) -> Option<Fall> {
        self.with_server(Server::last_words).flatten().and_then(fall_of)
    }

    fn drain_own_tap(&mut self, most: usize, each: &mut dyn FnMut(&TcpPacket<'_>)) {
        let Some(kept) = &mut self.kept else { return };
        // Packets that are no valid segments are left to the kernel, which drops them.
        let take = |l3: &[u8], checksum| segment(l3, checksum).iter().for_each(&mut *each);
        heed("the tap", kept.tap.drain(most, take));
    }

    fn watch_own_tap(&mut self, yes: bool) {
        let interest = if yes { Interest::Read } else { Interest::Nothing };
        if let Some(kept) = &self.kept {
            heed("poll", self.node.poll.modify(&kept.tap.fd(), TAP, interest));
        }
    }

    fn look_at_kept(&mut self) {
        let now = Instant::now();
        self.cold().into_iter().for_each(|cold| cold.look(now));
        self.look_at_room(now);
    }

    fn kept(&self) -> Replica {
        if let Some(reason) = self.kept.as_ref().and_then(|kept| kept.no_room.clone()) {
            return Replica::Unkept(reason);
        }
        let Some(cold) = self.cold_ref() else { return Replica::Replays };
        match (cold.trouble(), cold.outgrown()) {
            (Some(trouble), _) => Replica::Unkept(trouble.to_owned()),
            (None, Some(outgrown)) => Replica::Outgrown(outgrown),
            (None, None) => Replica::Replays,
        }
    }

    fn keep_record(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        self.cold().is_some_and(|cold| cold.keep(header, payload))
    }

    fn keep_acked(&mut self, accept: u32, bytes: Option<u64>) {
        if let Some(kept) = &mut self.kept {
            let bytes = bytes.map_or(u64::MAX, |bytes| bytes.min(u64::MAX - 1));
            let known = kept.unnoted.entry(accept).or_default();
            *known = bytes.max(*known);
        }
    }

    fn log_kept(&self) -> u64 {
        self.cold_ref().map_or(0, |cold| cold.progress(None).0)
    }

    fn has_keeping_room(&self) -> bool {
        self.cold_ref().is_some_and(Cold::has_room)
    }

    fn begin_kept_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        let config = self.node.config.cold.as_ref().ok_or("there is no spool")?;
        let cold = Cold::begin(config, log_from, image_bytes)?;
        self.kept.as_mut().ok_or("there is no tap")?.cold = Some(cold);
        Ok(())
    }

    fn keep_image(&mut self, bytes: &[u8]) {
        self.cold().into_iter().for_each(|cold| cold.take_image(bytes));
    }

    fn image_written(&self) -> u64 {
        self.cold_ref().map_or(0, Cold::image_kept)
    }

    fn end_kept_image(&mut self) {
        self.cold().into_iter().for_each(Cold::end_image);
    }

    fn is_image_kept(&mut self) -> bool {
        // Nothing is built before the server has crashed, so this means that all is kept.
        self.cold().is_some_and(|cold| cold.made().is_some())
    }
}
