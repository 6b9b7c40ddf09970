//! The host of the keeper: what a server that runs alone is rebuilt from on its own host
//! (decision 31). Its spool has room, except where a cold backup's has none.

use super::AtHost;
use crate::check::Holder;
use crate::image::{Cold, Copy};
use crate::server::KEY;
use holdfast_member::backup::{FollowHost, Replica};
use holdfast_member::host::Fall;
use holdfast_member::primary::KeeperHost;
use holdfast_replica::limits::Limits;
use holdfast_wire::hash::HashKey;
use holdfast_wire::log::Header;
use holdfast_wire::message::Message;
use holdfast_wire::packet::TcpPacket;
use std::collections::VecDeque;

impl KeeperHost for AtHost<'_> {
    fn begin_keeping(&mut self) -> Result<Option<(HashKey, Limits)>, String> {
        if self.world.plan.rebuild.is_none() {
            return Ok(None);
        }
        (self.d.copy, self.d.own) = (None, true);
        self.world.check.keeping_begins(self.d.at);
        self.host_mut().tap = Some(VecDeque::new());
        Ok(Some((KEY, self.world.plan.limits.backup)))
    }

    fn stop_keeping(&mut self) {
        (self.d.copy, self.d.keeps, self.d.own) = (None, false, false);
        self.world.check.keeps_not(self.d.at);
        self.host_mut().tap = None;
    }

    fn fall(&mut self) -> Option<Fall> {
        // Nobody asks a simulated server to end.
        Some(Fall::Crashed)
    }

    fn drain_own_tap(&mut self, most: usize, each: &mut dyn FnMut(&TcpPacket<'_>)) {
        self.drain_tap(most, &mut |_, packet| each(packet));
    }

    fn watch_own_tap(&mut self, _: bool) {
        // `World::tap_rings` wakes the daemon.
    }

    fn handed(&mut self, message: &Message<'_>) {
        self.judge(message);
    }

    fn look_at_kept(&mut self) {}

    fn kept(&self) -> Replica {
        self.spool().unwrap_or(Replica::Replays)
    }

    fn keep_record(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        // There is no spool before its image begins.
        self.d.copy.is_some() && self.replay(header, payload)
    }

    fn keep_acked(&mut self, accept: u32, bytes: Option<u64>) {
        match (&mut self.d.copy, bytes) {
            (Some(copy), Some(bytes)) => copy.acked(accept, bytes),
            (Some(copy), None) => copy.gone(accept),
            (None, _) => {}
        }
    }

    fn log_kept(&self) -> u64 {
        self.d.copy.as_ref().map_or(0, |copy| copy.spool_bytes)
    }

    fn has_keeping_room(&self) -> bool {
        self.d.copy.as_ref().is_some_and(Copy::has_room)
    }

    fn begin_kept_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.d.copy = Some(Copy::new(log_from, image_bytes, true));
        Ok(())
    }

    fn keep_image(&mut self, bytes: &[u8]) {
        if let Some(copy) = &mut self.d.copy {
            copy.take(bytes);
        }
    }

    fn image_written(&self) -> u64 {
        self.image_kept()
    }

    fn end_kept_image(&mut self) {
        self.end_image();
    }

    fn is_image_kept(&mut self) -> bool {
        let now = self.world.time_at(self.d.at);
        let Some(copy) = &mut self.d.copy else { return false };
        if copy.due.take_if(|due| due.0 <= now).is_none() {
            return false;
        }
        copy.cold = Some(Cold::Keeps);
        let records = self.world.records_of(&copy.bytes).expect("an image of its own server");
        self.world.check.copy_made(Holder::Itself(self.d.at), records);
        true
    }
}
