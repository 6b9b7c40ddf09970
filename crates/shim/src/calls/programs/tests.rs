use super::{Next, look, path_of};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A shim is any file that can be read.
const SHIM: &[u8] = b"/bin/sh";

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hf-programs-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a folder");
    dir
}

fn write(path: PathBuf, content: impl AsRef<[u8]>, mode: u32) -> Vec<u8> {
    fs::write(&path, content).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    path.into_os_string().into_encoded_bytes()
}

#[test]
fn dynamic_programs_and_scripts_for_them_are_followed() {
    let dir = scratch("dynamic");
    let script = write(dir.join("script"), "#! /bin/sh -e\nexit\n", 0o755);
    assert_eq!(look(b"/bin/sh", None, SHIM), Next::Followed);
    assert_eq!(look(b"sh", Some(b"/nowhere:/bin"), SHIM), Next::Followed);
    assert_eq!(look(&script, None, SHIM), Next::Followed);
    fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn what_is_not_there_or_cannot_run_is_nothing() {
    let dir = scratch("nothing");
    let text = write(dir.join("text"), "#!/bin/sh\n", 0o644);
    let lost = write(dir.join("lost"), "#!/nowhere/sh\n", 0o755);
    let name = dir.into_os_string().into_encoded_bytes();
    for path in [&b"/nowhere"[..], &text, &lost, &name, b""] {
        assert_eq!(look(path, None, SHIM), Next::Nothing, "{path:?}");
    }
    assert_eq!(look(b"sh", Some(b"/nowhere:"), SHIM), Next::Nothing);
    assert!(path_of(&[&[b'a'; 5000]]).is_none());
    let dir = std::ffi::OsString::from(String::from_utf8(name).expect("text"));
    fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn programs_that_the_shim_cannot_be_in_are_apart() {
    let dir = scratch("apart");
    let own = fs::read("/bin/sh").expect("a program");
    let rights = write(dir.join("rights"), &own, 0o4755);
    let mut other = own.clone();
    other[18] = 183;
    let machine = write(dir.join("machine"), &other, 0o755);
    // Its program headers say that no loader runs it.
    let mut headless = own.clone();
    headless[56] = 0;
    let lone = write(dir.join("static"), &headless, 0o755);
    let itself = write(dir.join("line"), "echo\n", 0o755);
    for path in [&rights, &machine, &lone, &itself] {
        assert_eq!(look(path, None, SHIM), Next::Apart, "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(look(b"/bin/sh", None, b"/nowhere/shim.so"), Next::Apart);
    fs::remove_dir_all(dir).expect("removed");
}
