use super::*;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

/// What a shell says that has entered these rights before its first word.
fn said(keep: Keep, words: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", words]);
    // SAFETY: the child has one thread; it makes system calls and allocates, which the test's
    // other threads do not keep it from with glibc.
    unsafe { command.pre_exec(move || keep.enter()) };
    command.output().expect("a shell")
}

fn held(keep: Keep) -> Held {
    let output = said(keep, "cat /proc/self/status");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Held::parse(&String::from_utf8_lossy(&output.stdout))
}

fn is_root() -> bool {
    Held::now().is_ok_and(|held| held.names().contains(&"CAP_SETPCAP"))
}

#[test]
fn what_is_kept_is_kept_and_nothing_else() {
    if !is_root() {
        return;
    }
    let few = set_of(&["CAP_NET_ADMIN", "CAP_BPF", "CAP_SETUID"]);
    let held_few = held(Keep { capabilities: few, ..Keep::default() });
    assert_eq!(held_few, Held { capabilities: few, gains_none: true, filtered: false });
    assert_eq!(held_few.names(), ["CAP_SETUID", "CAP_NET_ADMIN", "CAP_BPF"]);
    // A program that root starts would have all that it is not bound to.
    let bound = held(Keep { capabilities: few, gains: true, ..Keep::default() });
    assert_eq!((bound.capabilities, bound.gains_none), (few, false));
    assert_eq!(held(Keep::default()), Held { gains_none: true, ..Held::default() });
}

#[test]
fn a_denied_call_is_refused_and_others_are_made() {
    let denied = vec![libc::SYS_mkdir, libc::SYS_mkdirat];
    let place = std::env::temp_dir().join(format!("holdfast-rights-{}", std::process::id()));
    let words = format!("mkdir {0} 2>&1; : > {0}; echo made; rm {0}", place.display());
    let output = said(Keep { denied, ..Keep::default() }, &words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("not permitted") && text.ends_with("made\n"), "{text}");
    assert!(held(Keep { denied: HARMFUL.to_vec(), ..Keep::default() }).filtered);
}

#[test]
fn files_are_changed_in_own_folders_only() {
    let folder = std::env::temp_dir().join(format!("holdfast-folders-{}", std::process::id()));
    let (own, other) = (folder.join("own"), folder.join("other"));
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::create_dir_all(&other).expect("a folder");
    std::fs::write(other.join("here"), "as it was").expect("a file");
    let missing = folder.join("missing");
    let writes = Some(vec![own.clone(), missing, "/dev/null".into()]);
    let words = format!(
        "echo a > {own}/a && mv {own}/a {own}/b && rm {own}/b && cat {other}/here; \
         echo c > {other}/here; rm {other}/here; echo > {other}/c; echo > /dev/null && echo ends",
        own = own.display(),
        other = other.display()
    );
    let output = said(Keep { writes, ..Keep::default() }, &words);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "as it wasends\n");
    assert_eq!(std::fs::read_to_string(other.join("here")).ok().as_deref(), Some("as it was"));
    std::fs::remove_dir_all(folder).expect("removed");
}
