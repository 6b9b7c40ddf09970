//! What is left to do on a host when its files are there: settings of its kernel, and its daemon.

use super::meeting::Lack;
use crate::check::{Finding, Report, Verdict};
use crate::config::FOLDER;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a finding's remedy says when one setting is all that is missing.
const SYSCTL: &str = "sysctl -w ";
/// Settings of this part of the kernel are changed, and no others.
const PART: &str = "net";
/// Where the unit's files are, and where it looks for groups.
const UNIT_FOLDERS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const UNIT: &str = "holdfast@.service";
/// States of a unit whose daemon has read its file, or is about to (systemctl(1)).
const ACTIVE: [&str; 5] = ["active", "reloading", "refreshing", "activating", "deactivating"];
/// How often `check` looks again: it names one interface at a time, and a host has few.
const ROUNDS_MAX: usize = 16;

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    pub name: String,
    pub before: String,
    pub now: String,
}

/// What came of changing settings.
#[derive(Debug, Default)]
pub struct Changes {
    pub applied: Vec<Applied>,
    /// The file that sets them at each boot.
    pub kept_in: Option<PathBuf>,
    /// What could not be done.
    pub failed: Vec<Lack>,
}

/// The settings of this host's kernel, and the file of a group from which they are set at each boot.
pub struct Settings<'a> {
    group: &'a str,
    kernel: PathBuf,
    file: PathBuf,
}

/// What was done about the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// systemd has started it, and does so at each boot.
    Unit(String),
    /// It is for a person to start.
    ByHand,
}

/// The settings that `check` wants to have another value, with that value.
#[must_use]
pub fn applicable(report: &Report) -> Vec<(String, String)> {
    let wrong = report.findings.iter().filter(|it| it.verdict != Verdict::Ok);
    wrong.filter_map(setting).collect()
}

/// The setting in a remedy that begins with one.
fn setting(finding: &Finding) -> Option<(String, String)> {
    let command = finding.remedy.strip_prefix(SYSCTL)?;
    let word = command.split([' ', ',', ';']).next()?;
    let (name, value) = word.split_once('=')?;
    let is_of_net = name.strip_prefix(PART).is_some_and(|rest| rest.starts_with(['.', '/']));
    let is_plain =
        |part: &str| !part.is_empty() && part != ".." && !part.contains(char::is_control);
    let is_number = value.parse::<u32>().is_ok();
    (is_of_net && is_number && name.split('/').all(is_plain))
        .then(|| (name.to_owned(), value.to_owned()))
}

impl<'a> Settings<'a> {
    #[must_use]
    pub fn new(group: &'a str) -> Self {
        let file = PathBuf::from(format!("/etc/sysctl.d/60-holdfast-{group}.conf"));
        Self { group, kernel: PathBuf::from("/proc/sys"), file }
    }

    /// Changes what `report` wants to be changed, now and for each boot, and what is wanted when
    /// that is done; returns the last report, too. What cannot be changed does not stop the rest.
    pub fn apply(&self, report: Report, look: &mut dyn FnMut() -> Report) -> (Changes, Report) {
        let (mut changes, mut report) = (Changes::default(), report);
        let mut tried = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let before = changes.applied.len();
            for (name, value) in applicable(&report) {
                // Some wishes stay whatever is done.
                if tried.insert((name.clone(), value.clone())) {
                    match self.set(&name, &value) {
                        Ok(applied) => changes.applied.push(applied),
                        Err(error) => changes.failed.push(unset(&name, &value, &error)),
                    }
                }
            }
            if changes.applied.len() == before {
                break;
            }
            report = look();
        }
        if !changes.applied.is_empty() {
            match keep(&self.file, self.group, &changes.applied) {
                Ok(()) => changes.kept_in = Some(self.file.clone()),
                Err(error) => changes.failed.push(unkept(&self.file, &error)),
            }
        }
        (changes, report)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<Applied> {
        let path = self.kernel.join(path_of(name));
        let before = std::fs::read_to_string(&path)?.trim().to_owned();
        std::fs::write(&path, value)?;
        Ok(Applied { name: name.to_owned(), before, now: value.to_owned() })
    }
}

fn unset(name: &str, value: &str, error: &io::Error) -> Lack {
    Lack::new(
        format!("{name} cannot be set to {value}: {error}"),
        format!("`{SYSCTL}{name}={value}` by hand; in a container, on its host"),
    )
}

fn unkept(file: &Path, error: &io::Error) -> Lack {
    Lack::new(
        format!("the settings are changed until the next boot only: {}: {error}", file.display()),
        "write them there as `NAME = VALUE`, one a line",
    )
}

/// Where the kernel has a setting, below /proc/sys: a name with slashes has dots that belong to an
/// interface.
fn path_of(name: &str) -> PathBuf {
    PathBuf::from(if name.contains('/') { name.to_owned() } else { name.replace('.', "/") })
}

/// Adds the settings to the file from which they are set at each boot.
fn keep(file: &Path, group: &str, applied: &[Applied]) -> io::Result<()> {
    let before = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!("# What `holdfast check` wants for the group {group}; made by --apply.\n")
        }
        Err(error) => return Err(error),
    };
    // A person's editor may have left its last line open.
    let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let line = |it: &Applied| format!("{} = {}", it.name, it.now);
    let new = applied.iter().map(line).filter(|it| !before.lines().any(|had| had == it));
    let new: String = new.map(|it| it + "\n").collect();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut to = std::fs::File::create(file)?;
    to.write_all(before.as_bytes())?;
    to.write_all(end.as_bytes())?;
    to.write_all(new.as_bytes())?;
    to.sync_all()
}

/// Starts the daemon by systemd, where that runs and has the unit.
///
/// # Errors
/// What systemctl says.
pub fn start(group: &str, file: &Path) -> io::Result<Started> {
    let Some(unit) = unit_of(group, file) else { return Ok(Started::ByHand) };
    let done = Command::new("systemctl").args(["enable", "--now", &unit]).output()?;
    if done.status.success() {
        return Ok(Started::Unit(unit));
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!(
        "systemd does not start {unit}: {}\n  remedy: look at `journalctl -u {unit}`",
        said.trim()
    )))
}

/// The unit of a group, where systemd runs and has it, and the group's file is where it looks.
fn unit_of(group: &str, file: &Path) -> Option<String> {
    let runs = Path::new("/run/systemd/system").is_dir();
    let has_unit = UNIT_FOLDERS.iter().any(|it| Path::new(it).join(UNIT).exists());
    let is_its = file.parent() == Some(Path::new(FOLDER));
    (runs && has_unit && is_its).then(|| format!("holdfast@{group}.service"))
}

/// Why a group's files must not be replaced: systemd runs its daemon, which would go on with the
/// former ones, since starting what runs does nothing.
#[must_use]
pub fn in_use(group: &str, file: &Path) -> Option<Lack> {
    let unit = unit_of(group, file)?;
    // Where nobody answers nothing is known against it.
    let said = Command::new("systemctl").args(["is-active", &unit]).output().ok()?;
    runs_already(group, String::from_utf8_lossy(&said.stdout).trim())
}

/// Judges what `systemctl is-active` says of a group's unit.
fn runs_already(group: &str, state: &str) -> Option<Lack> {
    ACTIVE.contains(&state).then(|| {
        Lack::new(
            format!(
                "systemd runs holdfast@{group} on this host ({state}), which would go on with its former file \
                 and key"
            ),
            format!(
                "`systemctl stop holdfast@{group}` there, after `holdfast switchover` where it is the primary; \
                 then begin again"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn finding(remedy: &str) -> Finding {
        Finding::fail("x", "y", remedy)
    }

    #[test]
    fn only_settings_of_the_network_are_taken_from_remedies() {
        let of =
            |remedy: &str| setting(&finding(remedy)).map(|(name, value)| format!("{name}={value}"));
        for (remedy, wanted) in [
            (
                "sysctl -w net.ipv4.tcp_syncookies=0 on both members, and a long backlog",
                Some("net.ipv4.tcp_syncookies=0"),
            ),
            (
                "sysctl -w net.ipv4.conf.all.rp_filter=2, unless all traffic",
                Some("net.ipv4.conf.all.rp_filter=2"),
            ),
            (
                "sysctl -w net/ipv4/conf/eth0.7/forwarding=1",
                Some("net/ipv4/conf/eth0.7/forwarding=1"),
            ),
            (
                "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or a notrack rule",
                Some("net.netfilter.nf_conntrack_tcp_be_liberal=1"),
            ),
            ("sysctl -w kernel.core_pattern=|/bin/x", None),
            ("sysctl -w net/../kernel/panic=1", None),
            ("sysctl -w net.x=a", None),
            ("sysctl -w network.x=1", None),
            ("write sysctl -w net.ipv4.ip_forward=1", None),
        ] {
            assert_eq!(of(remedy).as_deref(), wanted, "{remedy}");
        }
        assert_eq!(path_of("net.ipv4.ip_forward"), Path::new("net/ipv4/ip_forward"));
        let dotted = path_of("net/ipv4/conf/eth0.7/forwarding");
        assert_eq!(dotted, Path::new("net/ipv4/conf/eth0.7/forwarding"));
    }

    /// What `check` says of this host: each setting that it wants is there.
    #[test]
    fn what_check_wants_can_be_set() {
        for (name, _) in applicable(&check::run(None)) {
            assert!(Path::new("/proc/sys").join(path_of(&name)).exists(), "{name}");
        }
    }

    /// A kernel of files: `check` names the first setting that is off.
    struct Kernel(PathBuf);

    impl Kernel {
        fn new(name: &str, settings: &[&str]) -> Self {
            let own = format!("holdfast-settings-{name}-{}", std::process::id());
            let kernel = Self(std::env::temp_dir().join(own));
            for setting in settings {
                let path = kernel.0.join(setting);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "0\n").unwrap();
            }
            kernel
        }

        fn settings(&self) -> Settings<'static> {
            let file = self.0.join("sysctl.d/60-holdfast-demo.conf");
            Settings { group: "demo", kernel: self.0.clone(), file }
        }

        fn is_off(&self, name: &str) -> bool {
            std::fs::read_to_string(self.0.join(name)).is_ok_and(|it| it.trim() == "0")
        }

        fn report(&self, wanted: &[&str]) -> Report {
            let first = wanted.iter().find(|it| self.is_off(it));
            let found = first.map(|it| finding(&format!("sysctl -w {it}=1")));
            Report::of(None, found.into_iter().collect())
        }
    }

    impl Drop for Kernel {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn settings_that_are_named_one_after_the_other_are_all_changed() {
        let names = ["net/a", "net/b", "net/c.7/d"];
        let kernel = Kernel::new("loop", &names);
        let mut look = || kernel.report(&names);
        let (changes, report) = kernel.settings().apply(look(), &mut look);
        assert!(report.findings.is_empty() && changes.failed.is_empty(), "{changes:?}");
        let applied: Vec<&str> = changes.applied.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(applied, names);
        let kept = std::fs::read_to_string(changes.kept_in.expect("a file")).unwrap();
        assert!(kept.ends_with("net/a = 1\nnet/b = 1\nnet/c.7/d = 1\n"), "{kept}");
    }

    #[test]
    fn what_cannot_be_set_does_not_stop_the_rest() {
        let kernel = Kernel::new("fails", &["net/a", "net/b"]);
        let wants = |name: &str| finding(&format!("sysctl -w {name}=1"));
        let look = || Report::of(None, vec![wants("net/a"), wants("net/gone"), wants("net/b")]);
        let mut looks = 0;
        let (changes, _) = kernel.settings().apply(look(), &mut || {
            looks += 1;
            look()
        });
        assert_eq!(looks, 1, "what was tried is not tried again");
        let [failed] = &changes.failed[..] else { panic!("one fails: {changes:?}") };
        assert!(failed.what.contains("net/gone"), "{failed}");
        assert!(failed.remedy.contains("sysctl -w net/gone=1"), "{failed}");
        assert!(!kernel.is_off("net/a") && !kernel.is_off("net/b"));
        let kept = std::fs::read_to_string(changes.kept_in.expect("a file")).unwrap();
        assert!(kept.ends_with("net/a = 1\nnet/b = 1\n"), "{kept}");
        // Nor does a file that cannot be written: its place is a folder.
        let kernel = Kernel::new("unkept", &["net/a"]);
        let settings = kernel.settings();
        std::fs::create_dir_all(&settings.file).unwrap();
        let mut look = || kernel.report(&["net/a"]);
        let (changes, _) = settings.apply(look(), &mut look);
        assert_eq!((changes.applied.len(), changes.failed.len()), (1, 1), "{changes:?}");
        assert!(changes.kept_in.is_none());
    }

    #[test]
    fn a_unit_whose_daemon_has_read_its_file_keeps_it() {
        for state in ["active", "reloading", "activating", "deactivating"] {
            let lack = runs_already("demo", state).expect("a reason");
            assert!(lack.what.contains("holdfast@demo"), "{lack}");
            assert!(lack.remedy.contains("systemctl stop holdfast@demo"), "{lack}");
            assert!(lack.remedy.contains("holdfast switchover"), "{lack}");
        }
        for state in ["inactive", "failed", "unknown", ""] {
            assert_eq!(runs_already("demo", state), None, "{state}");
        }
        assert_eq!(unit_of("demo", Path::new("/srv/demo.toml")), None, "no unit looks there");
    }

    #[test]
    fn settings_are_added_to_those_that_were_kept() {
        let folder = std::env::temp_dir().join(format!("holdfast-sysctl-{}", std::process::id()));
        let file = folder.join("60-holdfast-demo.conf");
        let one = |name: &str| Applied {
            name: name.to_owned(),
            before: "1".to_owned(),
            now: "0".to_owned(),
        };
        keep(&file, "demo", &[one("net.a")]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.trim_end()).unwrap();
        keep(&file, "demo", &[one("net.a"), one("net.b")]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["net.a = 0", "net.b = 0"]);
    }
}
