//! What a process of a family passes on to the program that it becomes by exec (decision 33):
//! which process of the family it is, and what its descriptors are. It lies in a memory file,
//! whose descriptor number is passed on together with those from the daemon.

use crate::base::binds::{self, CARRIED_BYTES};
use crate::base::fds::{self, Carried};
use crate::base::state::{self, MEMORY_FD, header};
use crate::base::sys::{sys, syscall};
use crate::base::{conns, processes};
use crate::calls::{adopted, inherited};
use core::sync::atomic::Ordering::*;
use holdfast_wire::log::NO_CONN;
use holdfast_wire::shm::mode as shared_mode;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The beginning of the file; the descriptors follow, then the addresses of sockets, and the ids
/// of children.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
struct Head {
    place: u32,
    thread: u32,
    is_threaded: u32,
    descriptors: u32,
    addresses: u32,
    children: u32,
}

/// An empty file that survives exec, under a descriptor number that is out of the server's way.
/// `-errno` if it cannot be made.
pub fn file() -> isize {
    let name = c"holdfast-exec";
    // SAFETY: a string of ours.
    let low = unsafe { syscall!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    if low < 0 {
        return low;
    }
    let high = sys!(SYS_fcntl, low, libc::F_DUPFD, MEMORY_FD.load(Relaxed));
    sys!(SYS_close, low);
    high
}

/// Fills a [`file`] with what this process, which has one thread left, knows.
pub fn save(file: i32) {
    let mut head = Head {
        place: state::place() as u32,
        thread: u32::from(state::tid()),
        is_threaded: u32::from(state::threaded()),
        ..Head::default()
    };
    put(file, head.as_bytes());
    fds::for_each(|fd, f| {
        if f.kind() != fds::Kind::Own && !fds::ends_at_exec(fd) {
            head.descriptors += 1;
            put(file, Carried::of(fd, f).as_bytes());
        }
    });
    binds::for_each_carried(|bind| {
        head.addresses += 1;
        put(file, bind);
    });
    adopted::for_each(|child| {
        head.children += 1;
        put(file, &child.to_ne_bytes());
    });
    sys!(SYS_lseek, file, 0, libc::SEEK_SET);
    put(file, head.as_bytes());
    sys!(SYS_lseek, file, 0, libc::SEEK_SET);
}

fn put(file: i32, bytes: &[u8]) {
    // SAFETY: memory of ours, of the sizes that are said. It is memory on both sides.
    unsafe { syscall!(SYS_write, file, bytes.as_ptr(), bytes.len()) };
}

/// The next bytes of the file; zeros if there are no more.
fn get<const N: usize>(file: i32) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: as above.
    unsafe { syscall!(SYS_read, file, bytes.as_mut_ptr(), N) };
    bytes
}

/// At start-up of a program that a process of a family has become: reads the file.
pub fn load(file: i32) {
    let head: Head = zerocopy::transmute!(get::<{ size_of::<Head>() }>(file));
    state::set_process(head.place as usize, head.thread as u16);
    state::THREADED.store(head.is_threaded != 0, SeqCst);
    for _ in 0..head.descriptors {
        let carried: Carried = zerocopy::transmute!(get::<{ size_of::<Carried>() }>(file));
        carried.restore();
        if carried.conn != NO_CONN {
            conns::add_ref(carried.conn);
        }
    }
    for _ in 0..head.addresses {
        binds::carry_on(get::<CARRIED_BYTES>(file));
    }
    for _ in 0..head.children {
        adopted::made(i32::from_ne_bytes(get(file)));
    }
    sys!(SYS_close, file);
    if shared_mode::is_alone(header().mode.0.load(SeqCst)) {
        inherited::forget();
    }
}

/// Called when the exec's record is in the log: forgets the other threads, and descriptors that
/// the next program does not get.
pub fn settle() {
    processes::alone();
    fds::for_each(|fd, f| {
        if f.kind() != fds::Kind::Own && fds::ends_at_exec(fd) {
            fds::closed(fd);
        }
    });
    binds::publish();
}
