//! The memory that a server shares with its daemon goes into no image: these books
//! hold what a copy's own memory must contain.

use crate::shm::SharedMemory;
use holdfast_wire::group::{Group, Process};
use holdfast_wire::shm::Listener;
use holdfast_wire::shm::{CONNS_MAX, ConnEntry, conn_state, leash};
use holdfast_wire::snapshot::{Books, Connection, Family, Kin, Listening};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// The books of a stopped server, whose log begins at `log_from`.
pub(super) fn read(memory: &SharedMemory, log_from: u64) -> Books {
    let h = memory.header();
    Books {
        log_from,
        control: h.control.load(SeqCst),
        handed: h.handed.each_ref().map(|fd| fd.load(Relaxed)),
        userfault: h.userfault.load(Relaxed),
        logs: h.logs.load(Relaxed),
        forks: h.forks.load(Relaxed),
        takes_turns: memory.takes_turns(),
        connections: (0..CONNS_MAX as u32)
            .filter_map(|place| connection(place, memory.entry(place)))
            .collect(),
        listeners: memory.listeners().into_iter().map(listening).collect(),
        family: memory.is_family().then(|| family(memory.group())),
    }
}

fn listening(Listener { fd, backlog, addr_len, addr, pid, .. }: Listener) -> Listening {
    Listening { fd, backlog, addr_len, addr, pid }
}

/// What a family's processes share. Their locks are free, and nobody waits for a turn: all threads
/// stand outside of the log.
fn family(group: &Group) -> Family {
    let owners = (0..).zip(&group.owners).map(|(number, owner)| (number, owner.load(Relaxed)));
    Family {
        last_conn: group.last_conn.load(Relaxed),
        last_thread: group.last_thread.load(Relaxed),
        latest: group.latest.each_ref().map(|clock| clock.load(Relaxed)),
        offsets: group.offsets.each_ref().map(|clock| clock.load(Relaxed)),
        processes: kin(group).collect(),
        owners: owners.filter(|(_, owner)| *owner != 0).collect(),
    }
}

/// The processes of a family, as their shims say.
pub(super) fn kin(group: &Group) -> impl Iterator<Item = Kin> {
    let kin = |(place, it): (u32, &Process)| Kin {
        place,
        pid: it.pid.load(Acquire),
        first: it.first.load(Relaxed),
        threads: it.threads.load(Relaxed),
        at_end: it.at_end.load(Relaxed),
        control: it.control.load(Relaxed),
    };
    (0..).zip(&group.processes).map(kin).filter(|it| it.pid != 0)
}

fn enter_family(group: &Group, family: &Family) {
    group.last_conn.store(family.last_conn, Relaxed);
    group.last_thread.store(family.last_thread, Relaxed);
    for (to, clock) in group.latest.iter().zip(family.latest) {
        to.store(clock, Relaxed);
    }
    for (to, clock) in group.offsets.iter().zip(family.offsets) {
        to.store(clock, Relaxed);
    }
    for kin in &family.processes {
        let Some(process) = group.processes.get(kin.place as usize) else { continue };
        process.first.store(kin.first, Relaxed);
        process.threads.store(kin.threads, Relaxed);
        process.at_end.store(kin.at_end, Relaxed);
        process.control.store(kin.control, Relaxed);
        process.pid.store(kin.pid, SeqCst);
    }
    for (number, owner) in &family.owners {
        group.owners[usize::from(*number)].store(*owner, Relaxed);
    }
}

/// A connection; `None` if its place was never used, or the server has written
/// nonsense there.
fn connection(place: u32, entry: &ConnEntry) -> Option<Connection> {
    let (conn, state) = (entry.conn.load(Relaxed), entry.state.load(Relaxed));
    let used = state != conn_state::FREE && state <= conn_state::DONE;
    (used && conn % CONNS_MAX as u32 == place).then(|| Connection {
        conn,
        state,
        fd: entry.fd.load(Relaxed),
        shut: entry.shut.load(Relaxed),
        in_bytes: entry.in_bytes.load(Relaxed),
        out_bytes: entry.out_bytes.load(Relaxed),
        keep_addr: entry.keep_addr.load(Relaxed),
        keep_cap: entry.keep_cap.load(Relaxed),
        pid: entry.pid.load(Relaxed),
        eof: entry.eof.load(Relaxed),
        holders: entry.holders.each_ref().map(|word| word.load(Relaxed)),
    })
}

/// Writes the books into a copy's memory before the copy runs; the output that the
/// server had written until then is not kept here.
pub(super) fn write(memory: &SharedMemory, books: &Books) {
    let h = memory.header();
    for connection in &books.connections {
        let entry = memory.entry(connection.conn);
        entry.conn.store(connection.conn, Relaxed);
        entry.fd.store(connection.fd, Relaxed);
        entry.shut.store(connection.shut, Relaxed);
        entry.in_bytes.store(connection.in_bytes, Relaxed);
        for out in [&entry.out_bytes, &entry.acked_bytes, &entry.keep_from] {
            out.store(connection.out_bytes, Relaxed);
        }
        entry.keep_addr.store(connection.keep_addr, Relaxed);
        entry.keep_cap.store(connection.keep_cap, Relaxed);
        entry.pid.store(connection.pid, Relaxed);
        entry.eof.store(connection.eof, Relaxed);
        for (to, word) in entry.holders.iter().zip(connection.holders) {
            to.store(word, Relaxed);
        }
        entry.state.store(connection.state, Relaxed);
    }
    let listener = |it: &Listening| Listener {
        fd: it.fd,
        backlog: it.backlog,
        addr_len: it.addr_len,
        addr: it.addr,
        pid: it.pid,
        // The copy's sockets are others.
        socket: 0,
    };
    memory.set_listeners(books.listeners.iter().map(listener));
    for position in [&h.head.0, &h.tail.0, &h.stable.0] {
        position.store(books.log_from, SeqCst);
    }
    for (to, fd) in h.handed.iter().zip(books.handed) {
        to.store(fd, Relaxed);
    }
    if books.family.is_some() {
        // Its first process is nobody's ward in its namespace, and is let loose like the original.
        h.leash.store(leash::HELD, SeqCst);
    }
    h.userfault.store(books.userfault, Relaxed);
    h.logs.store(books.logs, Relaxed);
    h.forks.store(books.forks, Relaxed);
    if let Some(family) = &books.family {
        enter_family(memory.group(), family);
    }
    h.takes_turns.store(u32::from(books.takes_turns), Relaxed);
    h.control.store(books.control, SeqCst);
}
