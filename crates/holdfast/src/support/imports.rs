//! Which calls of the shim's table a program and its libraries may make, by the functions that
//! they take from others.

use super::elf::{self, Elf};
use super::table::{Level, Row, row_of, rows};
use crate::check::Finding;
use crate::config::{Run, Server};
use crate::fingerprint::{FingerprintError, environment_of, libraries_of};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Most libraries that are looked into.
const LIBRARIES_MAX: usize = 1024;
/// Libraries of glibc itself: what they call is not seen by a shim, nor by a look at them.
const OF_GLIBC: [&str; 13] = [
    "ld-linux-x86-64.so.2",
    "libBrokenLocale.so.1",
    "libanl.so.1",
    "libc.so.6",
    "libc_malloc_debug.so.0",
    "libdl.so.2",
    "libm.so.6",
    "libmvec.so.1",
    "libnsl.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libutil.so.1",
];
/// Calls that are refused on sockets and pipes only, or where nobody misses them: a program that
/// could make them is usually able to do without.
const RARELY_MISSED: [&str; 5] = ["splice", "sendmmsg", "recvmmsg", "pthread_cancel", "clone"];

/// A call that a program may make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Use {
    #[serde(flatten)]
    pub row: Row,
    /// Functions through which, in order of name.
    pub functions: BTreeSet<String>,
    /// Names of the files that take these functions: the program first.
    pub by: Vec<String>,
}

/// What a program and its libraries take from others.
#[derive(Debug, Default)]
pub(super) struct Imports {
    /// Libraries that were looked into.
    pub libraries: Vec<PathBuf>,
    /// Refused calls first.
    pub calls: Vec<Use>,
    /// Files that make system calls without libc, with some of their numbers.
    bypassing: Vec<(String, Vec<u32>)>,
    /// Libraries of which nothing can be said, and why.
    unread: Vec<String>,
    /// All functions that have a row.
    functions: BTreeSet<String>,
}

/// Looks at a program and at every library that the loader would map into it.
pub(super) fn of(
    program: &Path,
    bytes: &[u8],
    server: &Server,
) -> Result<Imports, FingerprintError> {
    let mut found = Imports::default();
    let mut uses: BTreeMap<&str, Use> = BTreeMap::new();
    let Ok(own) = elf::parse(bytes) else { return Ok(found) };
    if let Some(why) = own.unlisted {
        // The loader may run code of a stranger while it lists the libraries.
        found.unread.push(format!("the libraries of {}: {why}", program.display()));
    }
    note(&mut found, &mut uses, program, &own);
    let listed = match own.unlisted {
        Some(_) => Vec::new(),
        None => libraries_of(program, &environment_of(server))?,
    };
    for (soname, path) in listed.into_iter().take(LIBRARIES_MAX) {
        if OF_GLIBC.contains(&soname.as_str()) {
            continue;
        }
        let read = elf::bytes_of(&path).map_err(|error| error.to_string());
        match read.and_then(|bytes| elf::parse(&bytes).map_err(|why| format!("{why:?}"))) {
            Ok(elf) => note(&mut found, &mut uses, &path, &elf),
            Err(why) => found.unread.push(format!("{}: {why}", path.display())),
        }
        found.libraries.push(path);
    }
    found.calls = in_order(uses);
    Ok(found)
}

fn note(found: &mut Imports, uses: &mut BTreeMap<&str, Use>, path: &Path, elf: &Elf) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for function in &elf.imports {
        let Some(row) = row_of(function) else { continue };
        let of_row = uses.entry(row.call).or_insert_with(|| Use {
            row: row.clone(),
            functions: BTreeSet::new(),
            by: Vec::new(),
        });
        of_row.functions.insert(function.clone());
        if of_row.by.last() != Some(&name) {
            of_row.by.push(name.clone());
        }
        found.functions.insert(function.clone());
    }
    if !elf.own_calls.is_empty() {
        found.bypassing.push((name, elf.own_calls.clone()));
    }
}

/// Refused calls first, then as in the table.
fn in_order(mut uses: BTreeMap<&str, Use>) -> Vec<Use> {
    let mut all: Vec<Use> = rows().iter().filter_map(|row| uses.remove(row.call)).collect();
    all.sort_by_key(|it| it.row.level != Level::Refused);
    all
}

impl Imports {
    fn has(&self, functions: &[&str]) -> bool {
        functions.iter().any(|function| self.functions.contains(*function))
    }

    /// What may stand against a program that nobody has tried.
    pub fn concerns(&self, run: Run) -> Vec<Finding> {
        let mut found = Vec::new();
        for (file, numbers) in &self.bypassing {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            found.push(Finding::warn(
                "server",
                format!(
                    "{file} makes system calls without libc (numbers {}): the first one ends protection",
                    numbers.join(", ")
                ),
                "start it without the option or library that does this",
            ));
        }
        let missed =
            |it: &&Use| it.row.level == Level::Refused && !RARELY_MISSED.contains(&it.row.call);
        found.extend(self.calls.iter().filter(missed).map(|it| {
            let remedy = if it.row.note.is_empty() { "do without it" } else { it.row.note };
            Finding::warn(
                "server",
                format!("it may call {}, which is refused", it.row.call),
                remedy,
            )
        }));
        if self.has(&["daemon"]) {
            let what = "it can go into the background, where nothing is protected";
            found.push(Finding::warn("server", what, "start it in the foreground"));
        }
        let serves = self.has(&["accept", "accept4"]);
        if run == Run::Auto && serves && self.has(&["fork", "vfork"]) {
            let what = "it can fork: children that serve clients are not protected";
            let remedy = "if they do, write `run = \"parallel\"` into [server]; \
                          or \"one-at-a-time\", if they share memory";
            found.push(Finding::warn("server", what, remedy));
        }
        found
    }

    /// What is not seen by looking at functions' names.
    pub fn unseen(&self) -> Vec<String> {
        let mut unseen: Vec<String> = self.unread.clone();
        if self.has(&["pthread_create", "thrd_create"]) {
            unseen.push(
                "whether its threads share memory without locks: a replica differs then, and they \
                 run one at a time since; `run = \"one-at-a-time\"` in [server] begins so"
                    .to_owned(),
            );
        }
        if self.has(&["dlopen", "dlmopen"]) {
            unseen.push("modules that it loads while it runs, and what they call".to_owned());
        }
        if self.has(&["syscall"]) {
            unseen.push("which calls it makes by number".to_owned());
        }
        let rest = "the time stamp counter, random numbers of the processor (rdtsc, rdrand), and which \
                    of these calls it really makes: `--try` runs it";
        unseen.push(rest.to_owned());
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn cc(source: &Path, text: &str, words: &[&str]) {
        fs::write(source, text).unwrap();
        assert!(Command::new("cc").arg(source).args(words).status().unwrap().success());
    }

    #[test]
    fn nothing_runs_that_a_file_without_sections_names() {
        let folder = std::env::temp_dir().join(format!("holdfast-audit-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [source, module, program, mark] =
            ["source.c", "module.so", "program", "mark"].map(|name| folder.join(name));
        let text = |path: &Path| path.display().to_string();
        let runs = format!(
            "#include <fcntl.h>\nunsigned la_version(unsigned it) {{ creat(\"{}\", 0600); return it; }}\n",
            text(&mark)
        );
        cc(&source, &runs, &["-shared", "-fPIC", "-o", &text(&module)]);
        let audit = format!("-Wl,--audit={}", text(&module));
        cc(&source, "int main(void) { return 0; }\n", &["-o", &text(&program), &audit]);
        let mut bytes = fs::read(&program).unwrap();
        // Where sections are, and how many.
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
        fs::write(&program, &bytes).unwrap();
        let server = crate::support::server_of(vec![text(&program)]);
        let (found, ran) = (of(&program, &bytes, &server), mark.exists());
        // With the loader, it runs: this is a test of something.
        let _listed = libraries_of(&program, &environment_of(&server));
        let would_run = mark.exists();
        fs::remove_dir_all(&folder).unwrap();
        assert!(!ran && would_run, "{ran} {would_run}");
        assert!(found.unwrap().unread[0].contains("LD_AUDIT"));
    }
}
