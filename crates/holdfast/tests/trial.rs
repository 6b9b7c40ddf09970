//! `holdfast support --try`: a program is run under the shim with a client, and once more from its
//! log; what would cost its protection is told. It needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Answers each line with what `answer()` says, on one connection after the other.
const SERVER: &str = r#"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>
static long answer(void) {
#ifdef DIFFERS
    return *(long *)getauxval(AT_RANDOM);
#else
    return getpid();
#endif
}
static void serve(int listener) {
    for (;;) {
        int client = accept(listener, 0, 0);
        char line[64];
        while (read(client, line, sizeof line) > 0) {
            int n = snprintf(line, sizeof line, "%ld\n", answer());
            if (write(client, line, n) != n) break;
        }
        close(client);
    }
}
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7000) };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 8)) return 1;
#ifdef HIDES
    if (fork()) return 0;
    setsid();
#endif
#ifdef STRAYS
    if (!fork()) {
        if (!fork()) for (;;) pause();
        _exit(0);
    }
#endif
#ifdef WRITES
    int file = open("large", O_CREAT | O_RDWR, 0600);
    return ftruncate(file, 2L << 30) ? 77 : 78;
#endif
#ifdef FORKS
    if (fork()) for (;;) wait(0);
#endif
    serve(listener);
}
"#;
/// A client that asks twice.
const CLIENT: &str = "exec 3<>/dev/tcp/127.0.0.1/7000; for i in 1 2; do echo ask >&3; read -r it <&3 || exit 1; done";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("holdfast-trial-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn cc(&self, name: &str, define: &str) -> String {
        let (source, path) = (self.0.join("server.c"), self.0.join(name));
        fs::write(&source, SERVER).expect("a source");
        let mut cc = Command::new("cc");
        cc.arg("-w").arg(format!("-D{define}")).arg(source).arg("-o").arg(&path);
        assert!(cc.status().expect("cc").success());
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays in /tmp harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, with the shim beside it.
fn binary() -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_holdfast"));
    let shim = binary.with_file_name("libholdfast_shim.so");
    if !shim.is_file() {
        let name = shim.parent().and_then(Path::file_name).filter(|name| *name != "debug");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "-p", "holdfast-shim", "--profile"]);
        build.arg(name.unwrap_or("dev".as_ref()));
        assert!(build.status().expect("cargo starts").success(), "the shim does not build");
    }
    binary
}

/// Exit code of a trial, and what it told.
fn tried(options: &[&str], program: &str, client: &str) -> (Option<i32>, serde_json::Value) {
    let mut command = Command::new(binary());
    // Nobody else may be allowed to read where the tests lie.
    command.args(["support", "--json", "--try", "--user", "root"]).args(options).arg(program);
    let done = command.args(["--", "bash", "-c", client]).output().expect("the program");
    let said = String::from_utf8_lossy(&done.stderr);
    let told = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{said}"));
    (done.status.code(), told)
}

/// Processes that run this program, and that do not end soon: who is killed needs a moment.
fn running(program: &str) -> usize {
    let begun = Instant::now();
    while count(program) > 0 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    count(program)
}

fn count(program: &str) -> usize {
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let runs = |it: &fs::DirEntry| {
        fs::read_link(it.path().join("exe")).is_ok_and(|exe| exe == Path::new(program))
    };
    all.filter(runs).count()
}

#[test]
fn a_trial_leaves_nothing_behind() {
    let folder = Folder::new("left");
    let hides = folder.cc("hides", "HIDES");
    let (code, told) = tried(&[], &hides, CLIENT);
    let why = told["trial"]["primary"].as_str().unwrap_or_default().to_owned();
    assert_eq!((code, running(&hides)), (Some(1), 0), "{told}");
    // Whichever of the two is noticed first.
    assert!(why.contains("background") || why.contains("child process"), "{why}");

    let strays = folder.cc("strays", "STRAYS");
    let (_, told) = tried(&[], &strays, CLIENT);
    assert_eq!((&told["trial"]["ports"][0], running(&strays)), (&7000.into(), 0), "{told}");

    // What the client leaves: a program under a name of its own.
    let sleeper = folder.0.join("sleeper");
    fs::copy(fs::canonicalize("/bin/sleep").expect("sleep"), &sleeper).expect("a copy");
    let sleeper = sleeper.display().to_string();
    let client = format!("(setsid {sleeper} 1000 >/dev/null 2>&1 &); {CLIENT}");
    let (code, told) = tried(&[], &folder.cc("same", "SAME"), &client);
    assert_eq!((code, running(&sleeper)), (Some(0), 0), "{told}");

    let (_, told) = tried(&[], &folder.cc("writes", "WRITES"), CLIENT);
    let why = told["trial"]["primary"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("exit status 77"), "{why}");
}

#[test]
fn what_a_trial_shows_is_true() {
    let folder = Folder::new("true");
    let (code, told) = tried(&[], &folder.cc("same", "SAME"), CLIENT);
    let trial = &told["trial"];
    assert_eq!(code, Some(0), "{trial}");
    assert_eq!((&trial["ports"][0], &trial["replica"]), (&7000.into(), &serde_json::Value::Null));
    let counts = ["accept", "read", "write"].map(|call| trial["calls"][call].as_u64());
    assert_eq!(counts, [Some(1), Some(3), Some(2)], "{trial}");
    assert!(trial["calls"]["getpid"].as_u64() >= Some(1), "{trial}");

    let (code, told) = tried(&[], &folder.cc("differs", "DIFFERS"), CLIENT);
    let why = told["trial"]["replica"].as_str().unwrap_or_default().to_owned();
    assert_eq!(code, Some(1), "{told}");
    assert!(why.contains("writes other bytes"), "{why}");

    let forks = folder.cc("forks", "FORKS");
    let (code, told) = tried(&[], &forks, CLIENT);
    let why = told["trial"]["primary"].as_str().unwrap_or_default().to_owned();
    assert_eq!(code, Some(1), "{told}");
    assert!(why.contains("child process"), "{why}");
    let (code, told) = tried(&["--run", "parallel"], &forks, CLIENT);
    assert_eq!(code, Some(0), "{told}");

    let (code, told) = tried(&[], &folder.cc("same", "SAME"), "exit 3");
    assert_eq!((code, &told["trial"]["has_client_failed"]), (Some(1), &true.into()), "{told}");
}
