//! What keeps the shim out of a program, whatever that does.

use super::elf::{self, Elf, Strange};
use holdfast_linux::spawn::gains_capabilities;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const SETUID: u32 = 0o6000;
/// glibc's loader for x86_64, the only one that the shim is made for.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const WITHOUT_SHIM: &str = "no shim can be loaded into it: it would run unprotected";

/// Why a program with this content could not be protected, and the remedy; `None` if nothing is
/// known against it, or it is no program.
#[must_use]
pub fn obstacle(path: &Path, bytes: &[u8]) -> Option<(String, String)> {
    let shown = path.display();
    let said = |found: String, remedy: &str| Some((found, remedy.to_owned()));
    let elf = match elf::parse(bytes) {
        Ok(elf) => elf,
        Err(Strange::Other) => return None,
        Err(Strange::Foreign(machine)) => {
            let found = format!("{shown} is for another machine: {machine}");
            return said(found, "install the program for x86_64");
        }
        Err(Strange::Damaged(why)) => {
            let found = format!("{shown} is damaged, or cut off: {why}");
            return said(found, "install it again");
        }
    };
    if std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & SETUID != 0) {
        let found = format!("{shown} is setuid or setgid; {WITHOUT_SHIM}");
        return said(found, "remove the bit, and name its `user` in [server]");
    }
    if gains_capabilities(path) {
        let found = format!("{shown} has capabilities of its own (setcap); {WITHOUT_SHIM}");
        let remedy = format!("setcap -r {shown}, and have the daemon's user start it with them");
        return Some((found, remedy));
    }
    if elf.is_go {
        let found = format!("{shown} is a Go program: its system calls bypass libc");
        return said(found, "Go programs cannot be protected");
    }
    by_loader(&elf, &shown.to_string())
}

fn by_loader(elf: &Elf, shown: &str) -> Option<(String, String)> {
    let Some(loader) = &elf.interpreter else {
        let found = format!("{shown} is linked statically; {WITHOUT_SHIM}");
        return Some((found, "use a build that is linked dynamically".to_owned()));
    };
    let name = loader.display();
    if name.to_string().contains("musl") {
        let found = format!("{shown} is made for musl: the shim knows glibc's calls only");
        return Some((found, "use a build for glibc, as Debian's packages are".to_owned()));
    }
    if !loader.is_file() {
        let found = format!("{shown} names {name} as its loader, which is not there");
        return Some((found, "install it, or use a build for this system".to_owned()));
    }
    let is_known = loader.canonicalize().ok() == Path::new(LOADER).canonicalize().ok();
    (!is_known).then(|| {
        let found =
            format!("{shown} has a loader of its own, {name}: the shim is made for {LOADER}");
        (found, "use a build for this system's glibc".to_owned())
    })
}
