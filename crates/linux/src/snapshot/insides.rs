//! What /proc does not say about a process, read by an eBPF iterator over the
//! kernel's tasks (`bpf/insides.bpf.c`).

use super::error::{Doing, Result, refuse};
use aya::maps::HashMap;
use aya::programs::Iter;
use aya::programs::iter::IterLink;
use aya::{Btf, Ebpf, EbpfLoader};
use holdfast_wire::snapshot::{Action, AltStack, SIGNALS};
use std::io::{self, Read};
use zerocopy::{FromBytes, Immutable, KnownLayout};

static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/insides.bpf.o"));

/// Layout of the program's record.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
struct Record {
    tid: u32,
    secure_bits: u32,
    clear_tid: u64,
    stack_address: u64,
    stack_size: u64,
    stack_flags: u32,
    alarm_is_set: u32,
    brk: u64,
    /// Handler, flags, restorer and mask of each signal.
    actions: [[u64; 4]; SIGNALS],
}

/// What was found about a thread.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    pub tid: u32,
    pub secure_bits: u32,
    pub clear_tid: u64,
    pub alt_stack: AltStack,
    pub alarm_is_set: bool,
    pub brk: u64,
    pub actions: Vec<Action>,
}

/// The loaded program, for one family of processes.
pub(super) struct Insides {
    program: Ebpf,
}

impl Insides {
    /// Loads the program; takes 100 ms and more, because the kernel's types are
    /// read.
    pub fn of(pids: &[u32]) -> Result<Self> {
        let failed = |error: &dyn std::error::Error| {
            let chain = std::iter::successors(error.source(), |cause| cause.source());
            let said = chain.map(|cause| format!(": {cause}")).collect::<String>();
            io::Error::other(format!("{error}{said}"))
        };
        let what = "the iterator over tasks";
        let btf = Btf::from_sys_fs().map_err(|error| failed(&error)).doing(what)?;
        let mut program = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("wanted", &pids[0], true)
            .override_global("others", &(pids.len() as u32 - 1), true)
            .load(PROGRAM)
            .map_err(|error| failed(&error))
            .doing(what)?;
        let iterator: &mut Iter = program
            .program_mut("insides")
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| io::Error::other("it is not in its object"))
            .doing(what)?;
        iterator.load("task", &btf).map_err(|error| failed(&error)).doing(what)?;
        let others = program.map_mut("insides_others");
        let others = others.ok_or_else(|| io::Error::other("a map is missing")).doing(what)?;
        let mut others: HashMap<_, u32, u8> =
            others.try_into().map_err(|error| failed(&error)).doing(what)?;
        for pid in &pids[1..] {
            others.insert(pid, 1, 0).map_err(|error| failed(&error)).doing(what)?;
        }
        Ok(Self { program })
    }

    /// All threads of the processes.
    pub fn read(&mut self) -> Result<Vec<Inside>> {
        let what = "iterating over tasks";
        let bytes = self.bytes().doing(what)?;
        let (records, rest) =
            <[Record]>::ref_from_prefix_with_elems(&bytes, bytes.len() / size_of::<Record>())
                .map_err(|_| io::Error::other("an odd answer"))
                .doing(what)?;
        if records.is_empty() || !rest.is_empty() {
            return refuse("the kernel lists no threads of it");
        }
        Ok(records.iter().map(Inside::from).collect())
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let iterator: &mut Iter = self
            .program
            .program_mut("insides")
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| io::Error::other("the program is gone"))?;
        let id = iterator.attach().map_err(io::Error::other)?;
        let link: IterLink = iterator.take_link(id).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        link.into_file().map_err(io::Error::other)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl From<&Record> for Inside {
    fn from(record: &Record) -> Self {
        let action =
            |[handler, flags, restorer, mask]: [u64; 4]| Action { handler, flags, restorer, mask };
        Self {
            tid: record.tid,
            secure_bits: record.secure_bits,
            clear_tid: record.clear_tid,
            alt_stack: AltStack {
                address: record.stack_address,
                size: record.stack_size,
                flags: record.stack_flags,
            },
            alarm_is_set: record.alarm_is_set != 0,
            brk: record.brk,
            actions: record.actions.into_iter().map(action).collect(),
        }
    }
}
