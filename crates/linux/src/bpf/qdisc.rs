//! The `clsact` qdisc that tc filters are attached to: lists its filters, and removes a qdisc
//! that Holdfast has made and nobody else uses.
//!
//! An empty directory beside the pins records that the qdisc was made here. It lasts exactly as
//! long as the pins: until a reboot, or until somebody removes it.

use super::{kept, net};
use crate::netlink;
use aya::programs::{TcAttachType, tc};
use libc::c_int;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
/// `TC_H_CLSACT` of `<linux/pkt_sched.h>`.
const PARENT: u32 = 0xffff_fff1;
/// The handle that the kernel gives such a qdisc.
const HANDLE: u32 = 0xffff_0000;
const PARENT_INGRESS: u32 = 0xffff_fff2;
const PARENT_EGRESS: u32 = 0xffff_fff3;
/// Beginning of the name of such a directory. The interface's index follows, not its name, which
/// may have dots: a BPF file system takes none.
const MARK: &str = "clsact-";
/// Size of the buffer for the kernel's list, in bytes: more than one of its
/// datagrams.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A tc filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub priority: u16,
    /// Name given to the eBPF program when it was attached; else empty.
    pub name: String,
    /// The program's id in the kernel, if it is known.
    pub program: Option<u32>,
}

/// Makes the qdisc if there is none, and records that in `pin_dir`.
pub(super) fn ensure(interface: &str, pin_dir: &Path) {
    // Fails if the interface already has the qdisc, which is as good.
    if tc::qdisc_add_clsact(interface).is_ok()
        && let Ok(index) = net::ifindex(interface)
    {
        // Without this record the empty qdisc stays when everything is removed.
        let _unmarked = std::fs::create_dir(pin_dir.join(format!("{MARK}{index}")));
    }
    keep_marks(pin_dir);
}

/// Makes [`kept`] restore the records in `pin_dir`, those of earlier processes too.
pub(super) fn keep_marks(pin_dir: &Path) {
    marks(pin_dir).into_iter().for_each(|(path, _)| kept::keep_folder(path));
}

/// The filters of one direction.
pub(super) fn filters(index: u32, direction: TcAttachType) -> io::Result<Vec<Filter>> {
    let parent = match direction {
        TcAttachType::Egress => PARENT_EGRESS,
        _ => PARENT_INGRESS,
    };
    let fd = netlink::open(libc::NETLINK_ROUTE)?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let mut request = Vec::new();
    netlink::append(&mut request, RTM_GETTFILTER, flags, 1, &message(index, 0, parent));
    netlink::send(&fd, &request)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; ANSWER_BYTES_MAX]);
    loop {
        for answer in netlink::answers(netlink::receive(&fd, &mut buffer)?) {
            match (c_int::from(answer.kind), answer.errno()) {
                (_, Some(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                (libc::NLMSG_DONE, _) => return Ok(found),
                _ if answer.kind == RTM_NEWTFILTER => found.extend(parse(answer.body)),
                _ => {}
            }
        }
    }
}

/// Removes every qdisc that [`ensure`] has made and that is empty. Returns the
/// indices of their interfaces.
pub(super) fn remove_made(pin_dir: &Path) -> Vec<u32> {
    let is_empty = |index| {
        let of = |direction| filters(index, direction).is_ok_and(|found| found.is_empty());
        of(TcAttachType::Ingress) && of(TcAttachType::Egress)
    };
    let mut removed = Vec::new();
    for (path, index) in marks(pin_dir) {
        if is_empty(index) && remove(index).is_ok() {
            removed.push(index);
        }
        kept::forget(&path);
        let _gone = std::fs::remove_dir(path);
    }
    removed
}

fn marks(pin_dir: &Path) -> Vec<(PathBuf, u32)> {
    let entries = std::fs::read_dir(pin_dir).into_iter().flatten().flatten();
    let index = |name: &str| name.strip_prefix(MARK)?.parse().ok();
    let mark = |entry: std::fs::DirEntry| Some((entry.path(), index(entry.file_name().to_str()?)?));
    entries.filter_map(mark).collect()
}

fn remove(index: u32) -> io::Result<()> {
    let fd = netlink::open(libc::NETLINK_ROUTE)?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    let mut request = Vec::new();
    netlink::append(&mut request, RTM_DELQDISC, flags, 1, &message(index, HANDLE, PARENT));
    netlink::discard(fd.as_fd());
    netlink::send(&fd, &request)?;
    let mut buffer = [0; 1024];
    let datagram = netlink::receive(&fd, &mut buffer)?;
    match netlink::answers(datagram).find_map(|answer| answer.errno()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `struct tcmsg`.
fn message(index: u32, handle: u32, parent: u32) -> Vec<u8> {
    let words = [0, index, handle, parent, 0];
    words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
}

/// One filter of the kernel's list; `None` for the head of a chain.
fn parse(body: &[u8]) -> Option<Filter> {
    const MESSAGE: usize = 20;
    let info: [u8; 4] = body.get(16..MESSAGE)?.try_into().ok()?;
    let priority = (u32::from_ne_bytes(info) >> 16) as u16;
    let attributes = body.get(MESSAGE..)?;
    let mut filter = Filter { priority, ..Filter::default() };
    let is_bpf = netlink::attributes(attributes)
        .any(|(kind, value)| kind == TCA_KIND && value == b"bpf\0".as_slice());
    let options = netlink::attributes(attributes).find(|(kind, _)| *kind == TCA_OPTIONS);
    let options = options.filter(|_| is_bpf).map_or(&[][..], |(_, value)| value);
    for (kind, value) in netlink::attributes(options) {
        if kind == TCA_BPF_NAME {
            let name = CStr::from_bytes_until_nul(value).map_or(value, CStr::to_bytes);
            filter.name = String::from_utf8_lossy(name).into_owned();
        } else if kind == TCA_BPF_ID {
            filter.program = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        }
    }
    Some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_the_kernels_list_is_read_and_nonsense_is_not() {
        let mut options = Vec::new();
        netlink::attribute(&mut options, TCA_BPF_NAME, b"gate_egress\0");
        netlink::attribute(&mut options, TCA_BPF_ID, &77u32.to_ne_bytes());
        let mut body = message(7, 1, PARENT_EGRESS);
        body[16..20].copy_from_slice(&(100u32 << 16 | 3).to_ne_bytes());
        netlink::attribute(&mut body, TCA_KIND, b"bpf\0");
        netlink::attribute(&mut body, TCA_OPTIONS, &options);
        let bare = Filter { priority: 100, ..Filter::default() };
        let whole = Filter { name: "gate_egress".into(), program: Some(77), ..bare.clone() };
        assert_eq!(parse(&body), Some(whole));
        assert_eq!(parse(&body[..20]), Some(bare));
        for len in 0..20 {
            assert_eq!(parse(&body[..len]), None);
        }
        for len in 20..body.len() {
            assert_eq!(parse(&body[..len]).map(|filter| filter.priority), Some(100));
        }
    }
}
