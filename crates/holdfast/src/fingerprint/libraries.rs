//! The shared objects that the loader would map into a program.

use super::FingerprintError;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// glibc's loader for x86_64. Called by its own path, it maps a program and
/// lists what it needs without running any of it; a program that names another
/// loader has no influence, unlike with `ldd`.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// Soname and file of every library of `program`, the loader among them; empty
/// if it is a script or linked statically.
pub(crate) fn of(
    program: &Path,
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Vec<(String, PathBuf)>, FingerprintError> {
    let fail =
        |said: String| FingerprintError::Loader { loader: LOADER, program: program.into(), said };
    // The kernel tells the loader the program's own place, which `$ORIGIN` means.
    let place = program.canonicalize().map_err(|error| fail(error.to_string()))?;
    let ask = |what: &str| -> Result<Output, FingerprintError> {
        Command::new(LOADER)
            .args([what.as_ref(), place.as_os_str()])
            .env_clear()
            .envs(environment.get_key_value(OsStr::new(SEARCH_PATH)))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| fail(error.to_string()))
    };
    if !ask("--verify")?.status.success() {
        return Ok(Vec::new());
    }
    let listed = ask("--list")?;
    let libraries = parse(&String::from_utf8_lossy(&listed.stdout))
        .map_err(|library| FingerprintError::NoLibrary { program: program.into(), library })?;
    if !listed.status.success() {
        return Err(fail(String::from_utf8_lossy(&listed.stderr).trim().to_owned()));
    }
    Ok(libraries)
}

/// Parses lines such as `libz.so.1 => /lib/libz.so.1 (0x7f..)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x7f..)`; the vDSO has no file. The error is
/// the name of a library that was not found.
fn parse(listed: &str) -> Result<Vec<(String, PathBuf)>, String> {
    let mut found = Vec::new();
    for line in listed.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if place == "not found" {
            return Err(name.to_owned());
        }
        let path = place.rsplit_once(" (").map_or(place, |(path, _)| path);
        if path.starts_with('/') {
            let name = name.rsplit_once(" (").map_or(name, |(name, _)| name);
            let soname = name.rsplit('/').next().unwrap_or(name);
            found.push((soname.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_read() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibssl.so.3 => /lib/x86_64-linux-gnu/libssl.so.3 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            ("libssl.so.3", "/lib/x86_64-linux-gnu/libssl.so.3"),
            ("ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ]
        .map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
        assert_eq!(parse(listed), Ok(expected.to_vec()));
        assert_eq!(parse("\tlibnone.so.1 => not found\n"), Err("libnone.so.1".to_owned()));
        assert_eq!(parse("\tstatically linked\n"), Ok(Vec::new()));
    }

    #[test]
    fn libraries_beside_the_program_are_found_through_a_link_to_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-origin-{}", std::process::id()));
        let (apart, library) = (folder.join("apart"), folder.join("libbeside.so"));
        std::fs::create_dir_all(&apart).unwrap();
        let cc = |source: &str, words: &[&str]| {
            let path = folder.join("source.c");
            std::fs::write(&path, source).unwrap();
            let done = Command::new("cc").arg(&path).args(words).status().unwrap();
            assert!(done.success());
        };
        let text = |path: &Path| path.display().to_string();
        let program = folder.join("program");
        let words = ["-o", &text(&program), &text(&library), "-Wl,-rpath,$ORIGIN"];
        // Named without its folder, the library is searched for.
        let soname = "-Wl,-soname,libbeside.so";
        cc("int beside(void) { return 0; }\n", &["-shared", soname, "-o", &text(&library)]);
        cc("int beside(void); int main(void) { return beside(); }\n", &words);
        let link = apart.join("program");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let found = of(&link, &BTreeMap::new()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(found.iter().any(|(soname, _)| soname == "libbeside.so"), "{found:?}");
    }

    #[test]
    fn a_program_needs_libc_and_a_script_nothing() {
        let own = std::env::current_exe().unwrap();
        let names: Vec<String> =
            of(&own, &BTreeMap::new()).unwrap().into_iter().map(|l| l.0).collect();
        for name in ["libc.so.6", "ld-linux-x86-64.so.2"] {
            assert!(names.iter().any(|n| n == name), "no {name} in {names:?}");
        }
        let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert_eq!(of(script, &BTreeMap::new()).unwrap(), []);
    }
}
