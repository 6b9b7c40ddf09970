use super::*;
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn a_log_is_never_another_file_than_the_one_that_is_named() {
    let folder = std::env::temp_dir().join(format!("holdfast-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let at = |name: &str| folder.join(name);
    open_log(&at("own")).unwrap();
    open_log(&at("own")).expect("appended to");
    open_log(Path::new("/dev/null")).unwrap();
    symlink(at("own"), at("link")).unwrap();
    symlink(&folder, at("folder")).unwrap();
    std::fs::hard_link(at("own"), at("second")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for name in ["link", "folder/own", "second", "own", "pipe"] {
        let error = open_log(&at(name)).expect_err(name).to_string();
        assert!(error.contains("the server's log"), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
