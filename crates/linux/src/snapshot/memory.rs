//! The copy of a frozen process's memory: all of it, or what the rounds before the
//! freeze have missed.

use super::bounds::{Patience, Room};
use super::error::Result;
use super::maps::Mapping;
use super::pages::{PageMap, Region, Shows};
use super::precopy::Tracker;
use super::store::{Memory, Store};
use holdfast_wire::snapshot::{Area, Backing, Holds, ImageError, Member, PAGE, Writer};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;

pub(super) struct MemoryCopy {
    map: PageMap,
    pub memory: Memory,
    store: Store,
    tracker: Option<Tracker>,
    /// The ranges of the store that are in the image, by address.
    ranges: Vec<(u64, u64)>,
    /// Pages copied in the freeze.
    pub frozen_pages: u64,
}

impl MemoryCopy {
    /// Opens the memory of a process that has `resident` pages of its own, to copy
    /// at most `bytes_max` of it. `earlier` are the other processes of the image before it.
    pub fn begin(
        pid: u32,
        earlier: &[u32],
        mappings: &[Mapping],
        (resident, bytes_max): (u64, u64),
    ) -> Result<Self> {
        let map = PageMap::open(pid)?;
        let tracker = Tracker::begin(pid, earlier, &map, mappings)?;
        let mut store = Store::new((bytes_max / PAGE) as usize);
        if tracker.is_none() {
            // Pages added before the freeze find room, too.
            store.reserve((resident + resident / 16) as usize);
        }
        let memory = Memory::open(pid)?;
        Ok(Self { map, memory, store, tracker, ranges: Vec::new(), frozen_pages: 0 })
    }

    /// Does one round while the process runs; returns the number of pages copied.
    /// `None`: memory is copied in the freeze alone.
    pub fn round(&mut self, mappings: &[Mapping], is_off: &AtomicBool) -> Result<Option<u64>> {
        let Some(tracker) = &mut self.tracker else { return Ok(None) };
        tracker.register(mappings);
        tracker.round(&self.map, &self.memory, &mut self.store, is_off).map(Some)
    }

    /// Brings the copy up to date in the freeze. `whole` gives, for areas of files that
    /// are gone, the ranges in which the file had data.
    pub fn freeze(
        &mut self,
        areas: &[Area],
        whole: &BTreeMap<u64, Vec<(u64, u64)>>,
        room: &mut Room,
        patience: Patience,
    ) -> Result<()> {
        let mut stale = Vec::new();
        for area in areas.iter().filter(|area| area.has_pages()) {
            let (mut regions, whole) = (Vec::new(), whole.get(&area.start));
            let of_file = whole.is_some() || matches!(area.backing, Backing::Private { .. });
            let shows = if of_file { Shows::File } else { Shows::Own };
            self.map.own(area.start, area.end, (shows, patience), &mut regions)?;
            match whole {
                Some(data) => {
                    let own = regions.iter().map(|region| (region.start, region.end));
                    let all = merged(own.chain(data.iter().copied()).collect());
                    stale.extend_from_slice(&all);
                    self.ranges.extend(all);
                }
                None => self.note(&regions, &mut stale),
            }
        }
        let bytes = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| end - start).sum();
        room.take(bytes(&self.ranges))?;
        self.frozen_pages = bytes(&stale) / PAGE;
        self.store.take(&self.memory, &stale)
    }

    fn note(&mut self, regions: &[Region], stale: &mut Vec<(u64, u64)>) {
        for region in regions {
            self.ranges.push((region.start, region.end));
            if region.is_dirty() {
                stale.push((region.start, region.end));
            } else {
                self.store.missing(region.start, region.end, stale);
            }
        }
    }

    /// Releases the server; what was copied stays.
    pub fn let_go(&mut self) {
        self.tracker = None;
    }

    /// Bytes that the copy takes.
    pub fn bytes(&self) -> u64 {
        self.store.pages() as u64 * PAGE
    }

    /// Bytes of all pages of the image.
    pub fn image_bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Writes the pages; zeros only where they cover a file's data.
    pub fn write<W: Write>(
        &self,
        (number, member): (u32, &Member),
        out: &mut Writer<W>,
    ) -> std::result::Result<(), ImageError> {
        for (start, end) in &self.ranges {
            let at = member.areas.partition_point(|area| area.end <= *start);
            let covers_file = matches!(member.areas[at].backing, Backing::Private { .. });
            for (address, bytes) in self.store.copies(*start, *end) {
                if covers_file {
                    out.chunk(Holds::Pages { member: number, address }, bytes)?;
                } else {
                    write_without_zeros((number, address), bytes, out)?;
                }
            }
        }
        Ok(())
    }
}

/// The same ranges in order, without overlaps.
pub(super) fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some((_, last)) if *last >= start => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged
}

fn write_without_zeros<W: Write>(
    (member, address): (u32, u64),
    bytes: &[u8],
    out: &mut Writer<W>,
) -> std::result::Result<(), ImageError> {
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let pages: Vec<&[u8]> = bytes.chunks(PAGE as usize).collect();
    let mut at = 0;
    for run in pages.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = run.len() * PAGE as usize;
        if !is_zero(run[0]) {
            let holds = Holds::Pages { member, address: address + at as u64 };
            out.chunk(holds, &bytes[at..at + len])?;
        }
        at += len;
    }
    Ok(())
}
