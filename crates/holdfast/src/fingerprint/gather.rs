//! Where the parts of this host's fingerprint come from.

use super::lacks::user_of;
use super::{FingerprintError, Hasher, Kind, Part, libraries};
use crate::config::{Arbiter, ArbiterKind, Config, Mode, Server};
use holdfast_linux::limits;
use holdfast_linux::snapshot::restore::own_vdso;
use holdfast_linux::spawn::{Use, try_use};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Bytes of a file that count; of a longer file, also its length.
const FILE_BYTES_MAX: u64 = 256 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const SHIM: &str = "libholdfast_shim.so";

/// Inherited variables that tell where the daemon was started from: they differ
/// by nature, and the server does not get them.
const OF_THE_SESSION: [&str; 28] = [
    "_",
    "COLORTERM",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LS_COLORS",
    "MAIL",
    "MANAGERPID",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "RUNTIME_DIRECTORY",
    "SHLVL",
    "STATE_DIRECTORY",
    "STY",
    "SYSTEMD_EXEC_PID",
    "TERM",
    "TMUX",
    "TMUX_PANE",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];
const PREFIXES_OF_THE_SESSION: [&str; 4] = ["HOLDFAST_", "SSH_", "SUDO_", "XDG_"];
/// Variable set by the daemon: the shim, which is compared as a library.
const PRELOAD: &str = "LD_PRELOAD";

/// The code that the kernel gives each process, which is in a server's image.
const KERNELS: &str = "linux-vdso.so.1 of the kernel";

/// Endings of names that a server writes to and does not read.
const WRITTEN: [&str; 2] = ["log", "pid"];

pub(super) fn parts(
    config: &Config,
    hasher: &Hasher,
    shim: &Path,
) -> Result<Vec<Part>, FingerprintError> {
    let server = &config.server;
    let environment = environment_of(server);
    let name = server.command.first().map_or("", String::as_str);
    let program =
        find_program(server).ok_or_else(|| FingerprintError::NoProgram(name.to_owned()))?;
    let mut parts = vec![hasher.file(Kind::Program, &program.display().to_string(), &program)?];
    parts.push(hasher.file(Kind::Library, SHIM, shim)?);
    for (soname, path) in libraries::of(&program, &environment)? {
        parts.push(hasher.file(Kind::Library, &soname, &path)?);
    }
    for (index, argument) in server.command.iter().enumerate() {
        parts.push(hasher.part(Kind::Argument, &index.to_string(), argument.as_bytes()));
    }
    for path in named_files(server) {
        parts.push(hasher.file(Kind::File, &path.display().to_string(), &path)?);
    }
    for (name, value) in &environment {
        parts.push(hasher.part(Kind::Variable, &name.to_string_lossy(), value.as_bytes()));
    }
    if config.group.mode == Mode::Cold {
        // A takeover is too late to learn that this host's kernel cannot have the image.
        let code = own_vdso().unwrap_or_default();
        parts.push(hasher.part(Kind::Library, KERNELS, &code));
    }
    for setting in settings(config).into_iter().chain(places(config, shim)) {
        parts.push(hasher.part(Kind::Setting, &setting, b""));
    }
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    parts.extend(cpu_features(&cpu).map(|flag| hasher.part(Kind::CpuFeature, flag, b"")));
    Ok(parts)
}

/// The program that the server's command names, searched as `execvp` would: what its user may not
/// run is passed over, as long as there is another one.
#[must_use]
pub fn find_program(server: &Server) -> Option<PathBuf> {
    let name = server.command.first().map_or("", String::as_str);
    let runs = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(in_directory(server, name)).filter(runs);
    }
    let own = || std::env::var_os("PATH").unwrap_or_default();
    let folders = server.env.get("PATH").map_or_else(own, OsString::from);
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).filter(runs);
    let mut found: Vec<PathBuf> = found.collect();
    let user = server.user.as_deref().and_then(|name| user_of(name).ok());
    let first = match found.len() {
        0 => return None,
        1 => 0,
        _ => found.iter().position(|it| try_use(user.as_ref(), it, Use::Run).is_ok()).unwrap_or(0),
    };
    Some(found.swap_remove(first))
}

/// Path of the shim: beside the program, as it is built, or in `lib/holdfast` beside the
/// program's folder, as it is installed.
///
/// # Errors
/// [`FingerprintError::NoShim`].
pub fn shim_path() -> Result<PathBuf, FingerprintError> {
    // Without `/proc` there is no daemon either.
    shim_of(&std::env::current_exe().unwrap_or_default())
}

pub(super) fn shim_of(program: &Path) -> Result<PathBuf, FingerprintError> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let installed = folder.parent().unwrap_or(folder).join("lib/holdfast");
    let mut places = [folder.to_owned(), installed.clone()].map(|it| it.join(SHIM)).into_iter();
    let none = || FingerprintError::NoShim(program.to_owned(), installed);
    places.find(|path| path.is_file()).ok_or_else(none)
}

/// Variables of this process that the server does not get.
#[must_use]
pub fn inherited_but_not_passed() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_of_the_session(name)).collect()
}

/// What a server is started with by this process.
pub(crate) fn environment_of(server: &Server) -> BTreeMap<OsString, OsString> {
    environment(server, std::env::vars_os())
}

/// What the server is started with, except what the daemon adds for the shim.
pub(super) fn environment(
    server: &Server,
    inherited: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let mut all: BTreeMap<OsString, OsString> =
        inherited.filter(|(name, _)| !is_of_the_session(name)).collect();
    all.extend(server.env.iter().map(|(name, value)| (name.into(), value.into())));
    all.remove(OsStr::new(PRELOAD));
    all
}

fn is_of_the_session(name: &OsStr) -> bool {
    OF_THE_SESSION.iter().any(|own| name == *own)
        || PREFIXES_OF_THE_SESSION.iter().any(|p| name.as_bytes().starts_with(p.as_bytes()))
}

/// Files that the command line names, as a word of its own, behind a `=` or
/// behind a one-letter option; not what the server writes.
pub(super) fn named_files(server: &Server) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = server
        .command
        .iter()
        .skip(1)
        .flat_map(|w| candidates(w))
        .map(|w| in_directory(server, w))
        .collect();
    files.retain(|path| {
        let written = path.extension().is_some_and(|e| WRITTEN.iter().any(|w| e == *w));
        !written && server.log.as_ref() != Some(path) && path.is_file()
    });
    files.sort();
    files.dedup();
    files
}

fn candidates(word: &str) -> impl Iterator<Item = &str> {
    let value = word.split_once('=').map(|(_, value)| value);
    let glued = word.strip_prefix('-').and_then(|rest| rest.get(1..));
    [Some(word), value, glued].into_iter().flatten().filter(|w| !w.is_empty())
}

/// A path of the server's command, which is from its directory.
pub fn in_directory(server: &Server, name: &str) -> PathBuf {
    server.directory.as_deref().unwrap_or(Path::new("")).join(name)
}

/// Who decides. Members may name the nearest one of an etcd first, and keep their own records where
/// they like.
fn arbiter_setting(arbiter: &Arbiter) -> String {
    let of = match &arbiter.kind {
        ArbiterKind::Witness(at) => at.to_string(),
        ArbiterKind::Etcd(etcd) => {
            let mut endpoints = etcd.endpoints.clone();
            endpoints.sort();
            endpoints.join(" ")
        }
        ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => String::new(),
    };
    format!("arbiter.{} = {of}", arbiter.name())
}

/// Settings that both members must have in common; the name contains the value.
fn settings(config: &Config) -> Vec<String> {
    let services: Vec<String> = config.group.services.iter().map(ToString::to_string).collect();
    let state_dirs = config.server.state_dirs.iter().map(|it| it.display().to_string());
    let state_dirs: Vec<String> = state_dirs.collect();
    // An edge compares what it shares with its members; here they compare it themselves.
    let front = config.segment.iter().zip(&config.arbiter).flat_map(|(segment, arbiter)| {
        [
            format!("segment.mac = {}", segment.mac),
            format!("segment.mode = {}", segment.mode.word()),
            format!("segment.first = {}", segment.first),
            arbiter_setting(arbiter),
        ]
    });
    let server = [
        format!("mode = {}", config.group.mode.word()),
        format!("buffering = {}", config.group.buffering.word()),
        format!("heartbeat_ms = {}", config.group.heartbeat_ms),
        format!("connections_max = {}", config.group.connections_max),
        format!("services = {}", services.join(" ")),
        format!("ring_bytes = {}", config.server.ring_bytes),
        format!("aslr = {}", config.server.aslr),
        format!("trap_tsc = {}", config.server.trap_tsc),
        format!("run = {}", config.server.run.word()),
        format!("user = {}", config.server.user.as_deref().unwrap_or("")),
        format!("state_dirs = {}", state_dirs.join(" ")),
        format!(
            "directory = {}",
            config.server.directory.as_deref().unwrap_or(Path::new("")).display()
        ),
    ];
    front.chain(server).collect()
}

/// Lengths of what lies on the server's stack, and how far the stack may grow:
/// they decide where the kernel places a server whose addresses are not random.
fn places(config: &Config, shim: &Path) -> Vec<String> {
    if config.server.aslr {
        return Vec::new();
    }
    let stack = limits::stack_bytes().map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    vec![format!("shim = {}", shim.display()), format!("stack limit = {stack}")]
}

/// The flags of the first processor.
pub(super) fn cpu_features(cpuinfo: &str) -> impl Iterator<Item = &str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags"));
    line.and_then(|line| line.split_once(':')).map_or("", |(_, flags)| flags).split_whitespace()
}

/// Gives a file's length and its first [`FILE_BYTES_MAX`] bytes to `take`.
pub(super) fn feed_file(path: &Path, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let file = File::open(path)?;
    take(&file.metadata()?.len().to_le_bytes());
    let mut limited = file.take(FILE_BYTES_MAX);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match limited.read(&mut chunk)? {
            0 => return Ok(()),
            n => take(&chunk[..n]),
        }
    }
}
