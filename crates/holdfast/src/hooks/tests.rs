use super::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

struct Bed {
    folder: PathBuf,
    caller: Option<Caller>,
    told: Receiver<Report>,
}

impl Bed {
    /// A hook that runs this script, in which `$OUT` is a file.
    fn new(name: &str, script: &str, timeout_s: u64, user: Option<&str>) -> Self {
        let own = format!("holdfast-hook-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&folder).unwrap();
        let script = format!("OUT={}; {script}", folder.join("out").display());
        let on_state = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        let (tell, told) = channel();
        let user = user.map(str::to_owned);
        let caller = Caller::start(Hooks { on_state, timeout_s, user }, tell).unwrap();
        Self { folder, caller: Some(caller), told }
    }

    fn call(&self, old: State, new: State) {
        let status =
            Status { state: new, epoch: 7, reason: "so".to_owned(), ..Status::new("g", "a") };
        self.caller.as_ref().unwrap().call(Change::new(&status, old));
    }

    fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    fn wait_for(path: &Path, what: &str) -> String {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if text.contains(what) {
                return text;
            }
            assert!(Instant::now() < until, "{what} is missing in {text:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.caller = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_program_gets_what_changed_and_nothing_of_the_daemons() {
    let script = "cat > $OUT; env | grep ^HOLDFAST_ >> $OUT; grep -E '^Sig(Blk|Ign)' \
        /proc/self/status >> $OUT; ls -l /proc/self/fd >> $OUT; echo end >> $OUT";
    let _blocked = Signals::block().unwrap();
    let inherited = std::fs::File::open("/etc/hostname").unwrap();
    let bed = Bed::new("env", script, 10, None);
    bed.call(State::Protected, State::Unprotected);
    let text = Bed::wait_for(&bed.out(), "end\n");
    for part in [
        "\"group\":\"g\",\"member\":\"a\",\"role\":\"none\",\"old\":\"protected\",\"new\":\"unprotected\"",
        "HOLDFAST_OLD=protected\n",
        "HOLDFAST_NEW=unprotected\n",
        "HOLDFAST_REASON=so\n",
        "HOLDFAST_EPOCH=7\n",
        "HOLDFAST_GROUP=g\n",
        "HOLDFAST_TIME=20",
        "SigBlk:\t0000000000000000\n",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    // Two signals are libc's own, and nobody can send them by name.
    let of_libc = 0b11 << 31;
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & !of_libc, 0, "{text}");
    assert!(!text.contains("hostname"), "{text}");
    drop(inherited);
    assert!(bed.told.try_recv().is_err());
}

#[test]
fn one_runs_at_a_time_and_the_newest_change_waits() {
    let script = "echo \"$HOLDFAST_OLD $HOLDFAST_NEW\" >> $OUT; sleep 0.4";
    let bed = Bed::new("order", script, 10, None);
    bed.call(State::Waiting, State::Protected);
    Bed::wait_for(&bed.out(), "waiting protected\n");
    let begun = Instant::now();
    for (old, new) in [
        (State::Protected, State::Unprotected),
        (State::Unprotected, State::Hung),
        (State::Hung, State::Waiting),
    ] {
        bed.call(old, new);
    }
    assert!(begun.elapsed() < Duration::from_millis(100), "nobody waits");
    let text = Bed::wait_for(&bed.out(), "protected waiting\n");
    assert_eq!(text, "waiting protected\nprotected waiting\n");
    let report = bed.told.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(report.level == Level::Info && report.detail.starts_with("2 changes"), "{report:?}");
}

#[test]
fn a_program_that_hangs_is_killed_with_all_that_it_started() {
    let bed = Bed::new("hang", "echo so far; sleep 77 & echo $! > $OUT; wait", 1, None);
    bed.call(State::Waiting, State::Protected);
    let child: u32 = Bed::wait_for(&bed.out(), "\n").trim().parse().unwrap();
    let report = bed.told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(report.level, Level::Warn);
    assert!(report.detail.ends_with("killed after 1 s: so far"), "{report:?}");
    let until = Instant::now() + Duration::from_secs(5);
    while !holdfast_linux::process::is_over(child) {
        assert!(Instant::now() < until, "its child lives");
    }
}

#[test]
fn a_program_that_fails_is_reported_with_what_it_said() {
    let bed = Bed::new(
        "fail",
        "printf 'no \\033[31mway' >&2; head -c 100000 /dev/zero; exit 3",
        10,
        None,
    );
    bed.call(State::Waiting, State::Protected);
    let report = bed.told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(report.detail.contains("exit status: 3: no  [31mway"), "{report:?}");
    assert!(report.detail.len() < 600);
    let (tell, told) = channel();
    let hooks = Hooks { on_state: vec!["/nowhere".to_owned()], timeout_s: 1, user: None };
    let caller = Caller::start(hooks, tell).unwrap();
    caller.call(Change::new(&Status::new("g", "a"), State::Protected));
    let report = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(report.detail.contains("cannot run /nowhere"), "{report:?}");
}

#[test]
fn the_user_of_the_file_runs_it() {
    let bed = Bed::new("user", "id -un; exit 1", 10, Some("nobody"));
    bed.call(State::Waiting, State::Protected);
    let report = bed.told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(report.detail.ends_with(": nobody"), "{report:?}");
}

#[test]
fn the_end_of_the_daemon_waits_for_nobody_and_loses_no_last_word() {
    let mut bed = Bed::new("end", "echo \"$HOLDFAST_NEW\" > $OUT; sleep 2", 60, None);
    bed.call(State::Protected, State::Ended);
    let begun = Instant::now();
    bed.caller = None;
    assert!(begun.elapsed() < Duration::from_millis(1500), "it waited");
    Bed::wait_for(&bed.out(), "ended\n");
}
