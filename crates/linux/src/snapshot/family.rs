//! The processes of which one image is taken, and looks at all of them.

use super::bounds::{LOOK_MAX, Patience};
use super::describe::Refusals;
use super::describe::areas::{Areas, Common, Found};
use super::describe::descriptors::{Files, Held, Look, Opened, Who};
use super::describe::process::{Status, lasting, refusals};
use super::describe::same::memory_is_shared;
use super::describe::segments;
use super::describe::shared::Objects;
use super::error::{Doing, Result, refuse};
use super::insides::Inside;
use super::maps::Mapping;
use super::{Options, last_pid};
use crate::process;
use holdfast_wire::snapshot::{Books, PAGE};
use std::collections::BTreeSet;

const CHANGED: &str = "its processes have changed meanwhile";
const NO_NAMESPACE: &str =
    "it has several processes, and the first is not number 1 of a pid namespace";

/// A family; see the module.
pub(super) struct Family<'a> {
    /// Process ids, each behind its parent's; the first is the server's.
    pub pids: Vec<u32>,
    options: &'a Options,
    pub common: Common<'a>,
    /// Bytes of shared memory that the last look at it has found.
    pub shared_bytes: u64,
    relatives: Vec<Relative>,
}

/// One process.
struct Relative {
    /// Its number in its own pid namespace.
    own: u32,
    areas: Areas,
    /// What it was allowed to do at the first look.
    rights: Vec<String>,
}

/// What a look has found; of what each process has, in their order.
pub(super) struct Looked {
    pub found: Vec<Found>,
    pub held: Vec<Held>,
    pub objects: Objects,
    pub opened: Opened,
}

impl<'a> Family<'a> {
    /// Looks at what each process is, and touches nothing.
    pub fn of(pids: &[u32], options: &'a Options) -> Result<Self> {
        let pids = in_order(pids, options)?;
        let (mut reasons, mut pages, mut relatives) = (Refusals::default(), 0u64, Vec::new());
        for pid in &pids {
            let status = Status::read(*pid)?;
            refusals(*pid, &status, &pids, &mut reasons);
            pages = pages.saturating_add(status.own_pages());
            let (own, areas) = (status.number("NSpid") as u32, Areas::new(*pid));
            relatives.push(Relative { own, areas, rights: status.rights() });
        }
        if pages.saturating_mul(PAGE) > options.limits.memory_bytes {
            reasons.add("it has more memory than the limit of memory_bytes");
        }
        reasons.refuse()?;
        let common = Common::new(options.key, options.limits.memory_bytes, &options.external)?;
        let family = Self { pids, options, common, shared_bytes: 0, relatives };
        if family.pids.len() > 1 && !family.is_namespace() {
            return refuse(NO_NAMESPACE);
        }
        Ok(family)
    }

    /// Refuses a family that is not the same any more, once all of it stands.
    pub fn check(&self) -> Result<()> {
        if !self.is_namespace() {
            return Ok(());
        }
        let now: BTreeSet<u32> = process::living_family(self.pids[0]).into_iter().collect();
        if now == self.pids.iter().copied().collect() { Ok(()) } else { refuse(CHANGED) }
    }

    /// Index of a process's parent; the first one's is not here.
    pub fn parent(&self, index: usize) -> Result<u32> {
        if index == 0 {
            return Ok(0);
        }
        // The number of the namespace in which /proc is mounted, which is this process's.
        let parent = Status::read(self.pids[index])?.number("PPid") as u32;
        match self.pids[..index].iter().position(|pid| *pid == parent) {
            Some(parent) => Ok(parent as u32),
            None => refuse(CHANGED),
        }
    }

    /// The number that was given last in their namespace, if it is theirs alone; 0: another's.
    pub fn last_pid(&self) -> Result<u32> {
        let what = "the number of the next process";
        if self.is_namespace() { last_pid::of(self.pids[0]).doing(what) } else { Ok(0) }
    }

    /// Whether the first is the first process of its pid namespace.
    pub fn is_namespace(&self) -> bool {
        self.relatives[0].own == 1
    }

    pub fn statuses(&self) -> Result<Vec<Status>> {
        self.pids.iter().map(|pid| Status::read(*pid)).collect()
    }

    /// The areas of one process, as they were found last.
    pub fn mappings(&self, index: usize) -> &[Mapping] {
        self.relatives[index].areas.mappings()
    }

    /// Lists all areas again.
    pub fn refresh(&mut self) -> Result<()> {
        self.relatives.iter_mut().try_for_each(|it| it.areas.refresh())
    }

    /// Looks at the memory and the descriptors of processes that run. The freeze looks again.
    pub fn look_at_running(&mut self, statuses: &[Status]) -> Result<Refusals> {
        let (mut refusals, patience) = (Refusals::default(), Patience::of(LOOK_MAX));
        let known: BTreeSet<u32> = self.options.external.connections.iter().copied().collect();
        let Looked { found, objects, opened, .. } =
            self.look(statuses, &|_| known.clone(), patience, &mut refusals)?;
        self.shared_bytes = objects.bytes;
        let whole = found.iter().flat_map(|it| it.whole.values().flatten());
        let contents = objects.bytes.saturating_add(opened.unlinked_bytes);
        let own = statuses.iter().map(|status| status.own_pages() * PAGE);
        let bytes = own.chain(whole.map(|(start, end)| end - start));
        let bytes = bytes.fold(contents, u64::saturating_add);
        let too_much = bytes > self.options.limits.memory_bytes;
        refusals.add_if(too_much, "it has more memory and files than the limit of memory_bytes");
        Ok(refusals)
    }

    /// Like [`Self::look_at_running`], for stopped processes: what they have become since
    /// then.
    pub fn look_again(
        &mut self,
        insides: &[Inside],
        books: Option<&Books>,
        patience: Patience,
    ) -> Result<Looked> {
        let mut refusals = Refusals::default();
        let statuses = self.statuses()?;
        for ((pid, status), relative) in self.pids.iter().zip(&statuses).zip(&self.relatives) {
            lasting(*pid, status, &self.pids, &mut refusals);
            let changed = status.rights() != relative.rights;
            refusals.add_if(changed, "its rights changed while it was looked at");
        }
        let shared = memory_is_shared(&self.pids);
        refusals.add_if(shared, "two of its processes have the same memory (vfork)");
        std::mem::take(&mut refusals).refuse()?;
        let is_alone = self.pids.len() == 1;
        let own: Vec<u32> = self.relatives.iter().map(|it| it.own).collect();
        let connections = |index: usize| {
            let open = books.iter().flat_map(|it| it.open());
            let own = open.filter(|(_, it)| is_alone || it.pid == own[index].cast_signed());
            own.map(|(number, _)| number).collect()
        };
        let looked = self.look(&statuses, &connections, patience, &mut refusals)?;
        let alarm = insides.iter().any(|inside| inside.alarm_is_set);
        refusals.add_if(alarm && !self.options.external.alarms, "it has set an alarm");
        refusals.refuse()?;
        Ok(looked)
    }

    /// Looks at all processes; `connections` gives the descriptors of which nothing is asked.
    fn look(
        &mut self,
        statuses: &[Status],
        connections: &dyn Fn(usize) -> BTreeSet<u32>,
        patience: Patience,
        refusals: &mut Refusals,
    ) -> Result<Looked> {
        let (mut objects, mut found) = (Objects::default(), Vec::new());
        for relative in &mut self.relatives {
            let areas = &mut relative.areas;
            found.push(areas.look(&mut self.common, &mut objects, patience, refusals)?);
        }
        segments::complete(&mut objects, self.pids[0], refusals)?;
        let Options { external, shares_files, state_dirs, .. } = self.options;
        let (mounts, shares_files) = (&self.common.mounts, *shares_files);
        let pids = &self.pids[..];
        let look = Look { pids, external, mounts, shares_files, state_dirs, patience };
        let (mut files, mut held) = (Files::new(look, refusals), Vec::new());
        for (index, (pid, status)) in self.pids.iter().zip(statuses).enumerate() {
            let (user, connections) = (status.file_user()?, connections(index));
            let who = Who { index: index as u32, pid: *pid, user, connections };
            held.push(files.read(who, &found[index], &mut objects)?);
        }
        Ok(Looked { found, held, objects, opened: files.end() })
    }
}

/// The same processes, each behind its parent.
fn in_order(pids: &[u32], options: &Options) -> Result<Vec<u32>> {
    let Some(first) = pids.first() else { return refuse("it has no process") };
    if pids.len() == 1 {
        return Ok(pids.to_vec());
    }
    if pids.len() > options.limits.members {
        return refuse(format!("it has more than {} processes", options.limits.members));
    }
    let mut listed = process::family(*first);
    listed.retain(|pid| pids.contains(pid));
    if listed.len() == pids.len() { Ok(listed) } else { refuse(CHANGED) }
}
