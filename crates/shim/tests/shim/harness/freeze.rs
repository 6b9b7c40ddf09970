//! Stopping a server as its daemon does for a copy: threads are asked to stand still,
//! stopped, and looked at, until none is in the middle of a logged call.

use holdfast_linux::snapshot::SnapshotError;
use holdfast_linux::snapshot::Stand;
use holdfast_linux::snapshot::quiet::{Quiescence, Resume, Standing};
use holdfast_linux::spawn::{Server, StandStill};
use holdfast_linux::threads::Threads;
use holdfast_wire::quiet::state::PARKED;
use std::time::{Duration, Instant};

/// A server all of whose threads are stopped, and may be copied as they are.
pub struct Frozen<'a> {
    server: &'a Server,
    stand: Option<Stand>,
    pub threads: Vec<Still>,
}

/// One of its threads.
pub struct Still {
    pub name: String,
    /// It came to a logged call meanwhile.
    pub is_parked: bool,
    /// How it goes on in a copy.
    pub how: Resume,
}

/// Longer than this no server is looked for a quiet moment.
const FREEZE_MAX: Duration = Duration::from_secs(5);

/// A daemon that does what threads may wait for.
struct Serving<'a, F> {
    still: StandStill<'a>,
    serve: F,
}

impl<F: FnMut()> Quiescence for Serving<'_, F> {
    fn ask(&mut self, deadline: Instant) {
        while !self.still.is_quiet() && Instant::now() < deadline {
            (self.serve)();
            std::thread::yield_now();
        }
    }

    fn stopped(&mut self) -> Result<(), SnapshotError> {
        self.still.stopped()
    }

    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume> {
        self.still.look(thread)
    }
}

/// Asks for the moment and takes it; how long that took. `serve` does meanwhile what
/// threads may wait for.
pub fn freeze_while(server: &Server, serve: impl FnMut()) -> (Frozen<'_>, Duration) {
    let mut quiet = Serving { still: server.stand_still(&server.processes(), false), serve };
    let stand = Stand::of(&server.processes(), &mut quiet, FREEZE_MAX);
    let stand = stand.unwrap_or_else(|error| panic!("{error}: {:x?}", quiet.still.said()));
    let took = stand.began.elapsed();
    let said = quiet.still.said().expect("a process");
    let parked = |tid: u32| said.list().iter().any(|it| (it.tid as u32, it.state) == (tid, PARKED));
    let thread = |still: &holdfast_linux::snapshot::Still| Still {
        name: name(server.pid(), still.tid),
        is_parked: parked(still.tid),
        how: still.resume,
    };
    let threads = stand.threads().iter().map(thread).collect();
    (Frozen { server, stand: Some(stand), threads }, took)
}

/// As [`freeze_while`], of a server that speaks alone.
pub fn freeze(server: &Server) -> (Frozen<'_>, Duration) {
    freeze_while(server, || {})
}

/// Where the threads stand.
pub fn told(server: &Server) -> Threads {
    Threads::read(&server.memory, server.pid()).expect("what the shim says")
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.server.memory.unpark();
        self.stand = None;
    }
}

fn name(pid: u32, tid: u32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    comm.unwrap_or_default().trim_end().to_owned()
}
