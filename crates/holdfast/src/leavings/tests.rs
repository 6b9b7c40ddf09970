use super::*;
use std::process::{Command, Stdio};

const MILLISECOND: Duration = Duration::from_millis(1);

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn only_who_spoke_alone_is_a_survivor() {
    let folder = folder("survivor");
    assert!(survivor(&folder, "a").is_none());
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let standard = [None, Some("pipe:[7]".into()), Some("/var/log/a log".into())];
    note_server(&folder, "a", child.id(), &standard).unwrap();
    assert!(survivor(&folder, "a").is_none(), "it may have been protected");
    note_loose(&folder, "a").unwrap();
    let keys = ["10.6.0.1:1>10.9.0.100:80", "[2001:db8::1]:2>[2001:db8::2]:80"];
    let keys = keys.map(|text| text.parse().unwrap());
    let noted_at = monotonic();
    note_unanswered(&folder, "a", &keys).unwrap();
    let found = survivor(&folder, "a").unwrap();
    assert_eq!(found.standard, standard);
    assert_eq!(found.unanswered.iter().map(|(_, key)| *key).collect::<Vec<_>>(), keys);
    let is_now = |(since, _): &(Duration, ConnKey)| {
        (noted_at..noted_at + Duration::from_secs(1)).contains(&(*since + MILLISECOND))
    };
    assert!(found.unanswered.iter().all(is_now));
    assert_eq!(orphan(&folder, "a", None).unwrap().len(), 1);
    child.wait().unwrap();
    assert!(survivor(&folder, "a").is_none());
    std::fs::write(server_file(&folder, "a"), format!("{} 1\nloose\n", std::process::id()))
        .unwrap();
    assert!(survivor(&folder, "a").is_none(), "another process of that number");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A process that maps the server's memory is the server's, even if its parents
/// are gone.
const INTO_THE_BACKGROUND: &str = r"
import mmap, os, sys, time
fd = os.memfd_create(sys.argv[1]); os.ftruncate(fd, 4096)
memory = mmap.mmap(fd, 4096)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sys.stdout.write('%d\n' % os.getpid()); sys.stdout.flush(); time.sleep(60)
    os._exit(0)
";

#[test]
fn what_went_into_the_background_is_found_without_a_file() {
    let folder = folder("back ground");
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", INTO_THE_BACKGROUND, &mark(&folder, "a").unwrap()]).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(orphan(&folder, "b", None).unwrap(), [], "another member's");
    assert_eq!(orphan(&folder, "a", Some(65534)).unwrap(), [], "another user's");
    let killed = orphan(&folder, "a", None).unwrap();
    assert!(killed.iter().any(|one| one.what == line.trim()), "{killed:?}, not {line}");
    assert_eq!(orphan(&folder, "a", None).unwrap(), []);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_orphan_is_killed_with_its_children_and_nobody_else() {
    let folder = folder("orphan");
    assert_eq!(orphan(&folder, "a", None).unwrap(), []);
    let shell = ["-c", "sleep 60 & echo; wait"];
    let mut child = Command::new("sh").args(shell).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    note_server(&folder, "a", child.id(), &Standard::default()).unwrap();
    let killed: Vec<String> =
        orphan(&folder, "a", None).unwrap().into_iter().map(|removed| removed.what).collect();
    assert_eq!(killed.len(), 2, "{killed:?}");
    assert_eq!(killed[0], child.id().to_string());
    assert!(!child.wait().unwrap().success());
    assert_eq!(orphan(&folder, "a", None).unwrap(), [], "it is noted no more");

    // A reused number, and nonsense.
    let own = std::process::id();
    for text in [format!("{own} 1\n"), format!("{own}"), "x y\n".into(), String::new()] {
        std::fs::write(server_file(&folder, "a"), text).unwrap();
        assert_eq!(orphan(&folder, "a", None).unwrap(), []);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
