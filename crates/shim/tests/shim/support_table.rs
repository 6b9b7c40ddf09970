//! `docs/SUPPORT.md` is made from the shim's table of calls. The shim is a
//! library that no test can link, so its text is read. `UPDATE=1` rewrites the page.

use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# What the shim does with each call

A server is protected as far as everything it learns from its machine passes
through the calls below. *Replayed*: made on the primary, answered from the log
on the backup. *Passed*: made on both members, with results that are equal by
construction or by the condition given. *Refused*: fails with `ENOSYS` on both
members and is reported in the server's log.

Made from `crates/shim/src/base/table.rs` by `UPDATE=1 cargo test -p holdfast-shim
--test support_table`; do not edit.
";

const TAIL: &str = "
## What escapes, and what then happens

- **System calls made without libc** (inline `syscall` instructions, as in
  liburing, Go or static runtimes) stop protection: the shim reports the call,
  its address and library once, in the server's log and in `holdfast status`.
  The server runs on, unprotected. Linux 5.11 or newer and glibc are needed to
  notice them; otherwise the shim says at start that it cannot. Calls that tell
  the server nothing (`futex`, `mmap`, `exit` and their like) are let through.
- **Watching** costs about 5 ns on a system call through libc (50 instead of
  45 ns); a call from the loader or the vDSO costs 0.7 us.
- **With `[server] run = \"parallel\"`** children are in the log and watched, like the
  server (decision 33 of REPLICATION.md), and the next three points do not hold. Memory
  that processes share is not ordered. With `\"one-at-a-time\"` it is, and so is what
  threads do to theirs without locks (decision 34).
- **Children are not watched** by the alarm: fork and exec end it in the child,
  which is outside protection.
- **Children that serve** end protection at their first call on a client's socket or
  on a listener of the service (accept, read, write, poll, select, epoll_ctl, or exec
  with a client's socket left open). The log and `holdfast status` name the program, the
  call and, where one is known, the directive that makes it one process; the server
  and its children run on, unprotected. A child that executes another program which
  accepts from a listener that it has inherited is not seen.
- **What children write** is on both members: the replica forks as well, and its
  child works on files and pipes, but ends where it would make or use a socket, run
  another program or signal another process. So redis' saves and rewritten logs
  survive. A child that another disk makes slower by more than 0.9 s may not have
  written its file when the server opens it: the replica differs then, and says so.
- **A server that becomes another program** (`exec`) stays protected as long as it
  has neither accepted a connection nor opened a socket, pipe or epoll set that
  the next program inherits: scripts that end with `exec`, `env`, `nice` and the
  like may start the server. One that replaces itself while it serves ends
  protection loudly.
- **The vDSO** is hidden from programs that look for it; they make system calls
  instead, which are reported.
- **`rdtsc`** is not noticed by default. With `[server] trap_tsc = true`, reading the
  counter is reported like a system call; every clock read then takes a system
  call (117 instead of 19 ns), and a trapped read takes 3.6 us.
- **`rdrand`, `cpuid` and races without locks** cannot be seen. A replica that
  computes other bytes is found at its next write, one that takes another lock at
  that lock; it is reported, and never promoted. What a race changes without ever
  showing in a call is not found.
- **Locks of other make** (atomics and futexes, as in Rust's and Go's libraries,
  `std::atomic::wait`, static variables of C++ that are made on first use) do not
  order anything on the replica, unless `[server] run` is `one-at-a-time`.
- **Descriptors that libc opens for itself** (`getaddrinfo`, `getpwnam`, `syslog`)
  are not in the log. Where threads compete for a number, the replica notices and
  is reported.
- **Python** threads switch only where they wait: the forced switch after 5 ms comes
  at a place that no other member can name, so the shim sets its interval to 1000 s
  (`sys.setswitchinterval`). A thread that only computes keeps the others waiting.
- **Addresses** are the same on both members as long as address randomisation is
  off, which is the default for a server under protection. With it, whoever draws
  random numbers from addresses diverges where it shows them: OpenSSL (so every
  server with TLS), Python's sets, haproxy's `rand()`, programs in Lua. The kernel's
  `AT_RANDOM` differs all the same.
- **Static and setuid programs** do not load the shim and cannot be protected: no
  connection is let in for 5 s, then the primary says so and runs on alone.
- **Netlink and other sockets to somewhere else** answer ECONNRESET after a
  takeover, and streams among them are readable and hung up for poll, select and
  epoll; UNIX listeners listen on the survivor.
- **SIGSYS** belongs to the shim: a server's own handler is called only for
  signals that the alarm did not cause, and cannot block it.

## Servers that were tried

[SERVERS.md](SERVERS.md) has forty, each tried by `holdfast-lab servers`; what follows was found before.

Recorded under load and replayed without a difference, by the tests
`shim_replays_a_server`, `shim_replays_more_servers` and `shim_replays_threads`
(Debian 12): redis, nginx (one process), lighttpd, mosquitto, a Python asyncio
server, `python3 -m http.server` (a thread for each connection), beanstalkd,
ngircd, memcached (one worker, and four), haproxy (one thread, see *Addresses*),
dnsmasq, tinyproxy. By hand: iperf3, webfs, nghttpd, bitlbee, prosody (see
*Addresses*). A BGP session of BIRD's outlives its router in the end-to-end
test `a_bgp_session_survives`.

memcached with several workers counts each other's free read buffers without a
lock: `stats` asked for under load shows it (`read_buf_bytes_free`), and the
replica diverges. With one worker it does not. Its maintenance threads read its
clock without a lock: a replica that is stopped again and again diverges now and
then, and its primary goes on alone.

By hand, with clients that check every byte and takeovers in the middle of traffic
(Debian 12): also inspircd, icecast2, prosody, unbound, coturn, aria2, `php -S`,
uvicorn, pypy, slapd, ruby (now and then it diverges), squid (`-N`), apache2 (`-X`).
With a setting that helps: nginx (`daemon off; master_process off;`), haproxy
(`-db`, one thread), dnsmasq (`-d`), node (`--single-threaded --v8-pool-size=0`).

With `[server] run = \"parallel\"` (tests `shim_replays_families` and
`shim_replays_sessions`, and end to end): nginx with workers, gunicorn with workers,
vsftpd, dropbear, haproxy with its master (`-W`, `nbthread 1`). apache2 prefork diverges
there now and then: how many processes it makes hangs on memory that they share. smbd is
followed in its test, but diverged at its start between two hosts.

With `[server] run = \"one-at-a-time\"` (test `shim_runs_one_at_a_time`, and memcached with
four workers and `stats` end to end): what races, in threads or in memory that processes
share. By hand, recorded under load and followed, without takeovers: stunnel, node, the
JVM with its own HTTP server, and PostgreSQL. named diverges there, too.

Not: other servers that accept in child processes (sshd, dovecot). Nor, without that
setting, what races without locks in threads:
the JVM, Erlang, node by default, MariaDB, varnish, knot; nor Go, which has no libc.
";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Rows and section headings between `calls! {` and its end.
fn rows(source: &str) -> impl Iterator<Item = &str> {
    let table = source.split_once("\ncalls! {\n").expect("a table of calls").1;
    table.lines().take_while(|line| *line != "}").map(str::trim)
}

fn page(source: &str) -> String {
    let mut page = HEAD.to_owned();
    for row in rows(source) {
        if let Some(section) = row.strip_prefix("// ") {
            write!(page, "\n## {section}\n\n| call | | |\n|---|---|---|\n").expect("memory");
            continue;
        }
        let (call, rest) = row.split_once(' ').expect("name and level");
        let (level, note) = rest.split_once(' ').expect("level and note");
        let note = note.trim_end_matches(';').trim_matches('"');
        assert!(["Replayed", "Passed", "Refused"].contains(&level), "{row}");
        writeln!(page, "| `{call}` | {} | {note} |", level.to_lowercase()).expect("memory");
    }
    page + TAIL
}

#[test]
fn the_support_page_is_the_shims_table() {
    let source = std::fs::read_to_string(repository().join("crates/shim/src/base/table.rs"));
    let page = page(&source.expect("the shim's table"));
    let path = repository().join("docs/SUPPORT.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).expect("page written");
    }
    let now = std::fs::read_to_string(&path).expect("the page");
    assert!(now == page, "docs/SUPPORT.md is old: run this test with UPDATE=1");
}
