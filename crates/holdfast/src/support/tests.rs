use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// A folder for programs, which is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compiles a program.
    fn cc(&self, name: &str, source: &str, words: &[&str]) -> String {
        let (path, from) = (self.0.join(name), self.0.join(format!("{name}.c")));
        fs::write(&from, source).unwrap();
        let mut cc = Command::new("cc");
        assert!(
            cc.arg("-w").arg(&from).args(words).arg("-o").arg(&path).status().unwrap().success()
        );
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn of(words: &[&str]) -> Answer {
    answer(&server_of(words.iter().map(|word| (*word).to_owned()).collect()), Vec::new())
}

/// The first finding of an answer, with its remedy.
fn said(answer: &Answer) -> String {
    answer.findings.first().map(|it| format!("{} {}", it.found, it.remedy)).unwrap_or_default()
}

#[test]
fn what_keeps_the_shim_out_is_refused() {
    let folder = Folder::new("refused");
    let main = "int main(void) { return 0; }\n";
    let plain = folder.cc("plain", main, &[]);
    assert_eq!(of(&[&plain]).verdict, Verdict::Works);
    let chmod = |mode| fs::set_permissions(&plain, fs::Permissions::from_mode(mode)).unwrap();
    chmod(0o4755);
    assert!(said(&of(&[&plain])).contains("setuid"));
    chmod(0o755);
    let setcap = |words: &[&str]| Command::new("setcap").args(words).arg(&plain).status();
    if setcap(&["cap_net_bind_service+ep"]).is_ok_and(|done| done.success()) {
        assert!(said(&of(&[&plain])).contains("capabilities of its own"));
        assert!(setcap(&["-r"]).unwrap().success());
    }
    let loader = |name: &str, path: &str| folder.cc(name, main, &[&format!("-Wl,-I{path}")]);
    let cut = folder.0.join("cut");
    fs::write(&cut, &fs::read(&plain).unwrap()[..300]).unwrap();
    fs::set_permissions(&cut, fs::Permissions::from_mode(0o755)).unwrap();
    let library = folder.cc("libgone.so", "int gone(void) { return 1; }\n", &["-shared"]);
    let lacking =
        folder.cc("lacking", "int gone(void); int main(void) { return gone(); }\n", &[&library]);
    fs::remove_file(&library).unwrap();
    for (program, words) in [
        (folder.cc("fixed", main, &["-static"]), "linked statically"),
        (loader("musl", "/lib/ld-musl-x86_64.so.1"), "musl"),
        (loader("gone", "/none/ld.so"), "/none/ld.so as its loader"),
        (cut.display().to_string(), "damaged"),
        (lacking, "libgone.so"),
        ("/none/such".to_owned(), "no program of this host"),
    ] {
        let answer = of(&[&program]);
        assert_eq!(answer.verdict, Verdict::Refused, "{answer:?}");
        assert!(said(&answer).contains(words), "{program}: {answer:?}");
        assert!(answer.findings.iter().all(|it| !it.remedy.is_empty()));
    }
}

#[test]
fn calls_are_found_through_libraries_and_beside_the_program() {
    let folder = Folder::new("imports");
    let source = "#include <sys/socket.h>\n#include <unistd.h>\n\
                  int deep(void) { return accept(0, 0, 0) + fork(); }\n";
    folder.cc("libdeep.so", source, &["-shared", "-fPIC", "-Wl,-soname,libdeep.so"]);
    let at = folder.0.display().to_string();
    let near =
        ["-shared", "-fPIC", "-L", &at, "-ldeep", "-Wl,-soname,libnear.so", "-Wl,-rpath,$ORIGIN"];
    folder.cc("libnear.so", "int deep(void); int near_(void) { return deep(); }\n", &near);
    let words = ["-L", &at, "-lnear", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"];
    let program = folder.cc(
        "own",
        "int near_(void); int main(void) { return near_() + getpid(); }\n",
        &words,
    );
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    let answer = of(&[&link.display().to_string()]);
    let by =
        |call: &str| answer.calls.iter().find(|it| it.row.call == call).map(|it| it.by.clone());
    assert_eq!(by("accept"), Some(vec!["libdeep.so".to_owned()]), "{answer:?}");
    assert_eq!(by("getpid"), Some(vec!["link".to_owned()]));
    assert_eq!(by("popen"), None);
    assert_eq!(answer.libraries.len(), 2);
    assert_eq!(answer.verdict, Verdict::NotKnown);
    assert!(said(&answer).contains("it can fork") && said(&answer).contains("run = \"parallel\""));
}

#[test]
fn what_ends_protection_is_named() {
    let folder = Folder::new("concerns");
    let bare = "int main(void) { int r; __asm__ volatile(\"mov $0x1a9, %%eax\\n syscall\" : \"=a\"(r)); return r; }\n";
    let piped = "#include <stdio.h>\nint main(void) { return popen(\"true\", \"r\") == 0; }\n";
    let hidden = "#include <unistd.h>\nint main(void) { return daemon(0, 0); }\n";
    for (name, source, words) in [
        ("bare", bare, "without libc (numbers 425)"),
        ("piped", piped, "popen, which is refused"),
        ("hidden", hidden, "in the foreground"),
    ] {
        let answer = of(&[&folder.cc(name, source, &[])]);
        assert_eq!(answer.verdict, Verdict::NotKnown, "{answer:?}");
        assert!(said(&answer).contains(words), "{answer:?}");
    }
    let refused = of(&[&folder.cc("piped", piped, &[])]);
    assert_eq!(refused.calls[0].row.level, Level::Refused, "refused calls come first");
}

/// Servers of the distribution, where they are installed.
#[test]
fn servers_that_were_tried_are_known() {
    let is_here =
        |name: &str| ["/usr/bin", "/usr/sbin"].iter().any(|it| Path::new(it).join(name).exists());
    for (command, verdict, words) in [
        (&["redis-server"][..], Verdict::Works, ""),
        (&["redis-server", "--daemonize", "yes"], Verdict::WorksWithASetting, "daemonize yes"),
        (&["nginx", "-c", "/none"], Verdict::WorksWithASetting, "daemon off"),
        (&["memcached"], Verdict::Works, ""),
        (&["sshd"], Verdict::Refused, "not be protected"),
        (&["node"], Verdict::WorksWithASetting, "one-at-a-time"),
    ] {
        if !is_here(command[0]) {
            continue;
        }
        let answer = of(command);
        assert_eq!(answer.verdict, verdict, "{answer:?}");
        assert!(said(&answer).contains(words), "{answer:?}");
    }
}

/// Functions that the shim has, and that are no call of the table: what they do is the same on both
/// members.
const UNSEEN: [&str; 3] = ["prctl", "truncate", "truncate64"];

/// Every function that the shim has is found in its table, so that none is taken for one that it
/// does not see.
#[test]
fn every_function_of_the_shim_has_a_row() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim/src");
    let mut found = 0;
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let mut lines = text.lines();
            while lines.any(|line| line.trim() == "#[cfg_attr(not(test), unsafe(no_mangle))]") {
                let head = lines.find(|line| line.contains(" fn ")).unwrap();
                let name = head.split(" fn ").nth(1).unwrap().split('(').next().unwrap();
                // The names that a macro gives stand in its table, where they are said to be.
                if name.starts_with('$') || UNSEEN.contains(&name) {
                    continue;
                }
                found += 1;
                assert!(row_of(name).is_some(), "{name} of {}", path.display());
            }
        }
    }
    assert!(found > 150, "{found}");
}
