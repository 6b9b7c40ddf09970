//! Two namespaces joined by a wire, and an end of a tunnel in each.

use serde_json::Value;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The two ends.
pub const A: usize = 0;
pub const B: usize = 1;

/// Addresses outside, and inside where it is an interface.
pub const OUTSIDE: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
pub const OUTSIDE_V6: [&str; 2] = ["fd77::1", "fd77::2"];
pub const INSIDE: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
pub const INSIDE_V6: [&str; 2] = ["fd09::1", "fd09::2"];
pub const PORT: u16 = 51900;

/// How long an end may take until it is up, or somebody until he notices something.
pub const SOON: Duration = Duration::from_secs(15);

/// Tells the beds of one process apart.
static BEDS: AtomicU32 = AtomicU32::new(0);

pub struct Bed {
    names: [String; 2],
    pub folder: PathBuf,
    keys: [String; 2],
    ends: [Option<Child>; 2],
}

impl Bed {
    /// Two hosts with a key each; `None` if the test may be skipped.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let may_skip = std::env::var_os("HOLDFAST_MAY_SKIP").is_some_and(|it| it == "1");
            assert!(may_skip, "this test needs root; or set HOLDFAST_MAY_SKIP=1");
            return None;
        }
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let id = format!("hft-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&id);
        fs::create_dir_all(&folder).expect("a folder");
        let names = ["a", "b"].map(|it| format!("{id}-{it}"));
        let mut bed = Self { names, folder, keys: Default::default(), ends: [const { None }; 2] };
        bed.wire();
        for end in [A, B] {
            let made = bed.verb(end, &["key", "gen", &bed.path(end, "key")]);
            assert!(made.status.success(), "{made:?}");
            bed.keys[end] = String::from_utf8(made.stdout).expect("text").trim().to_owned();
        }
        Some(bed)
    }

    fn wire(&self) {
        for name in &self.names {
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
            // Addresses count at once.
            let settings = ["net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0"];
            let mut sysctl = Command::new("ip");
            sysctl.args(["netns", "exec", name, "sysctl", "-q", "-w"]).args(settings);
            assert!(sysctl.status().expect("sysctl").success());
        }
        let [a, b] = &self.names;
        ip(&["-n", a, "link", "add", "w0", "type", "veth", "peer", "name", "w0", "netns", b]);
        for end in [A, B] {
            let name = &self.names[end];
            ip(&["-n", name, "address", "add", &format!("{}/24", OUTSIDE[end]), "dev", "w0"]);
            ip(&["-n", name, "address", "add", &format!("{}/64", OUTSIDE_V6[end]), "dev", "w0"]);
            ip(&["-n", name, "link", "set", "w0", "up"]);
        }
    }

    /// A command of `ip` in a namespace.
    pub fn ip(&self, end: usize, words: &[&str]) {
        ip(&[&["-n", &self.names[end]], words].concat());
    }

    pub fn path(&self, end: usize, ending: &str) -> String {
        let name = ["a", "b"][end];
        self.folder.join(format!("{name}.{ending}")).to_string_lossy().into_owned()
    }

    pub fn public_key(&self, end: usize) -> &str {
        &self.keys[end]
    }

    /// Writes the file of an end: lines of `[tunnel]` and of `[peer]` beside the keys.
    pub fn write(&self, end: usize, tunnel: &str, peer: &str) {
        let text = format!(
            "[tunnel]\nkey = \"{}\"\nrun_dir = \"{}\"\n{tunnel}\n[peer]\nkey = \"{}\"\n{peer}\n",
            self.path(end, "key"),
            self.folder.join("run").display(),
            self.keys[1 - end]
        );
        fs::write(self.path(end, "toml"), text).expect("a file");
    }

    /// Files of a tunnel with interfaces, between these addresses.
    pub fn write_tun(&self, outside: [&str; 2]) {
        for end in [A, B] {
            let peer = format!("address = \"{}\"", at(outside[1 - end]));
            self.write(end, &self.tun(end, ""), &peer);
        }
    }

    /// The lines of `[tunnel]` of an end with an interface.
    pub fn tun(&self, end: usize, more: &str) -> String {
        format!(
            "mode = \"tun\"\nlisten = \"[::]:{PORT}\"\ninterface = \"t0\"\n\
             address = [\"{}/24\", \"{}/64\"]\n{more}",
            INSIDE[end], INSIDE_V6[end]
        )
    }

    /// A command in a namespace.
    pub fn command(&self, end: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end], program]).stdin(Stdio::null());
        command
    }

    /// Runs a verb to its end.
    pub fn verb(&self, end: usize, words: &[&str]) -> Output {
        let mut command = self.command(end, env!("CARGO_BIN_EXE_holdfast-tunnel"));
        command.args(words).output().expect("the program")
    }

    /// Starts an end, and waits until it answers.
    pub fn start(&mut self, end: usize) {
        self.start_as(end, &[]);
        wait("an end that answers", SOON, || self.status(end).is_some());
    }

    /// Starts an end with `setpriv` and these words of it.
    pub fn start_as(&mut self, end: usize, words: &[&str]) {
        let log = File::options().create(true).append(true).open(self.path(end, "log"));
        let mut command = self.command(end, "setpriv");
        command.args(["--pdeathsig", "KILL"]).args(words);
        command.arg(env!("CARGO_BIN_EXE_holdfast-tunnel"));
        command.args(["up", "--config", &self.path(end, "toml")]);
        let child = command.stderr(log.expect("a log")).spawn().expect("the program");
        self.ends[end] = Some(child);
    }

    /// Starts both, and waits until they have heard each other.
    pub fn start_both(&mut self) {
        self.start(A);
        self.start(B);
        self.wait_up();
    }

    pub fn wait_up(&self) {
        for end in [A, B] {
            wait("ends that hear each other", SOON, || self.is_up(end));
        }
    }

    pub fn is_up(&self, end: usize) -> bool {
        self.status(end).is_some_and(|status| status["state"] == "up")
    }

    /// What an end says of itself; `None` if it does not answer.
    pub fn status(&self, end: usize) -> Option<Value> {
        let asked = self.verb(end, &["status", "--json", "--config", &self.path(end, "toml")]);
        if asked.status.code() == Some(4) {
            return None;
        }
        let text = String::from_utf8(asked.stdout).expect("text");
        let status: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{error} in {text:?}; {}", String::from_utf8_lossy(&asked.stderr))
        });
        let code = if status["state"] == "up" { 0 } else { 1 };
        assert_eq!(asked.status.code(), Some(code), "{status}");
        Some(status)
    }

    pub fn pid(&self, end: usize) -> rustix::process::Pid {
        let child = self.ends[end].as_ref().expect("it runs");
        rustix::process::Pid::from_child(child)
    }

    /// Ends an end by a signal, and returns its exit code.
    pub fn stop(&mut self, end: usize, signal: rustix::process::Signal) -> Option<i32> {
        rustix::process::kill_process(self.pid(end), signal).expect("it runs");
        let mut child = self.ends[end].take().expect("it runs");
        child.wait().expect("it ended").code()
    }

    pub fn log(&self, end: usize) -> String {
        fs::read_to_string(self.path(end, "log")).unwrap_or_default()
    }

    pub fn has_interface(&self, end: usize, name: &str) -> bool {
        let shown = self.command(end, "ip").args(["link", "show", name]).output();
        shown.expect("ip").status.success()
    }

    /// Runs something on a thread in a namespace.
    pub fn inside<T: Send + 'static>(
        &self,
        end: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let place = Path::new("/run/netns").join(&self.names[end]);
        std::thread::spawn(move || {
            let namespace = File::open(&place).expect("a namespace");
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
                .expect("to enter it");
            work()
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for end in [A, B] {
            if let Some(mut child) = self.ends[end].take() {
                let _ = child.kill();
                let _ = child.wait();
            }
            if std::thread::panicking() {
                eprintln!("log of {}:\n{}", ["a", "b"][end], self.log(end));
            }
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An address with the tunnels' port.
pub fn at(address: &str) -> String {
    match address.parse::<Ipv4Addr>() {
        Ok(v4) => format!("{v4}:{PORT}"),
        Err(_) => format!("[{address}]:{PORT}"),
    }
}

fn ip(words: &[&str]) {
    let done = Command::new("ip").args(words).output().expect("ip");
    assert!(done.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until something is so.
pub fn wait(what: &str, most: Duration, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + most;
    while !is_so() {
        assert!(Instant::now() < until, "waited {most:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
