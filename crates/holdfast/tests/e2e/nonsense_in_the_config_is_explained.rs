//! `holdfast config check` of files with mistakes: every mistake is reported with its line and a
//! remedy, all of them at once, with exit code 2.

use crate::world;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A correct file and its key, in a folder that is removed when this is dropped.
struct Files {
    folder: PathBuf,
    text: String,
}

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let key = world::holdfast(&["key", "gen"]);
        assert!(key.status.success());
        fs::write(folder.join("demo.key"), key.stdout).expect("a key");
        allow(&folder.join("demo.key"), 0o600);
        let example = world::holdfast(&["config", "example"]);
        let text = String::from_utf8(example.stdout).expect("text");
        let text = text.replace("/etc/holdfast", &folder.display().to_string());
        Self { folder, text }
    }

    /// Exit code and standard error for the file after one replacement.
    fn check(&self, from: &str, to: &str) -> (Option<i32>, String) {
        assert!(self.text.contains(from), "{from}");
        let file = self.folder.join("demo.toml");
        fs::write(&file, self.text.replacen(from, to, 1)).expect("a file");
        let done = world::holdfast(&["config", "check", &file.display().to_string()]);
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // A folder that stays in /tmp harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn each_mistake_comes_with_its_line_and_a_remedy() {
    let files = Files::new("mistakes");
    assert_eq!(files.check("[group]", "[group]"), (Some(0), String::new()));
    let members = files.text.lines().zip(1..).filter(|(line, _)| *line == "[[member]]");
    let second = format!("demo.toml:{}", members.map(|(_, number)| number).nth(1).expect("two"));
    for (from, to, words) in [
        ("key_file", "keyfile", &["keyfile", "did you mean `key_file`", "demo.toml:6"][..]),
        ("[server]", "[sever]", &["did you mean `server`"]),
        ("10.9.0.1:7700", "10.9.0.1", &["is not an address with a port"]),
        ("02:00:00:00:00:0a", "02:00:00:00:0a", &["is not a hardware address"]),
        ("demo.key", "none.key", &["none.key", "holdfast key gen"]),
        ("name = \"b\"", "name = \"a\"", &["a"]),
        ("[[member]]", "[member]", &[second.as_str(), "duplicate key"]),
        ("= [", "= = [", &["demo.toml"]),
    ] {
        let (code, text) = files.check(from, to);
        assert_eq!(code, Some(2), "{to}: {text}");
        for word in words {
            assert!(text.contains(word), "{to}: no `{word}` in: {text}");
        }
    }
}

/// Whoever asked for JSON gets the object that the help promises, also of a file without its key.
#[test]
fn mistakes_are_told_in_json_too() {
    let files = Files::new("json");
    for (from, to, found) in [
        ("key_file", "keyfile", "demo.toml:6:1: unknown key `keyfile`"),
        ("demo.key", "none.key", "none.key"),
    ] {
        assert_eq!(files.check(from, to).0, Some(2));
        let file = files.folder.join("demo.toml").display().to_string();
        for verb in
            [&["config", "check", "--json", &file][..], &["check", "--json", "--config", &file]]
        {
            // `check` looks at the key among other things.
            if verb[0] == "check" && to == "none.key" {
                continue;
            }
            let done = world::holdfast(verb);
            assert_eq!(done.status.code(), Some(2), "{verb:?}");
            let told: serde_json::Value = serde_json::from_slice(&done.stdout).expect("an object");
            assert_eq!(told["schema"], "holdfast.check/1");
            let first = &told["findings"][0];
            assert_eq!(first["verdict"], "fail", "{told}");
            assert!(first["found"].as_str().is_some_and(|it| it.contains(found)), "{told}");
            assert!(!first["remedy"].as_str().unwrap_or_default().is_empty(), "{told}");
        }
    }
}

#[test]
fn a_second_backup_is_refused_with_a_reason() {
    let files = Files::new("three");
    let third = "[[member]]\nname = \"c\"\naddress = \"10.9.0.4:7701\"\ninterface = \"c0\"\n\
                 edge_port = \"ec2\"\nmac = \"02:00:00:00:00:0c\"\n\n[server]";
    let (code, text) = files.check("[server]", third);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("backup") && text.contains("remedy"), "{text}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let files = Files::new("open");
    allow(&files.folder.join("demo.key"), 0o644);
    let (code, text) = files.check("[group]", "[group]");
    assert_ne!(code, Some(0));
    assert!(text.contains("chmod 600"), "{text}");
}

#[test]
fn who_may_not_touch_the_network_is_told_before_anything_is() {
    let files = Files::new("rights");
    let file = files.folder.join("demo.toml");
    fs::write(&file, &files.text).expect("a file");
    let file = file.display().to_string();
    for verb in [
        &["run", "--role", "a", "--config", &file][..],
        &["capture", "--role", "edge", "--config", &file, "-o", "/dev/null"],
        &["demo"],
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(world::binary()).args(verb);
        let done = command.output().expect("setpriv");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(3), "{verb:?}: {said}");
        assert!(said.contains("CAP_NET_ADMIN") && said.contains("as root"), "{verb:?}: {said}");
    }
}
