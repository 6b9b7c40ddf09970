//! What the shim's functions do, it does by number, too: every function that has a system call's
//! name has its row. The shim is a library that no test can link, so its text is read.

use std::collections::BTreeSet;
use std::path::Path;

/// Kernel's names of calls for which libc's function has another one.
const ALIASES: [(&str, &str); 10] = [
    ("_exit", "exit_group"),
    ("fstatat", "newfstatat"),
    ("prlimit", "prlimit64"),
    ("pselect", "pselect6"),
    ("sigaction", "rt_sigaction"),
    ("sigpending", "rt_sigpending"),
    ("sigprocmask", "rt_sigprocmask"),
    ("sigsuspend", "rt_sigsuspend"),
    ("sigtimedwait", "rt_sigtimedwait"),
    ("eventfd", "eventfd2"),
];

/// Functions of libc whose timers have other numbers than the kernel's.
const NOT_BY_NUMBER: [&str; 2] = ["timer_gettime", "timer_settime"];

/// Every text of the shim's calls, with its file's name.
fn sources() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/calls");
    let entries = std::fs::read_dir(folder).expect("sources").map(|it| it.expect("entry").path());
    let files = entries.filter(|it| it.extension().is_some_and(|it| it == "rs"));
    let read = |it: std::path::PathBuf| {
        let name = it.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(it).expect("a source"))
    };
    files.map(read).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|it| !it.is_empty())
}

/// Names of functions that servers call: `extern "C" fn name`, and the rows of the macros that
/// make such functions.
fn functions(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, text) in sources {
        for (at, _) in text.match_indices("pub unsafe extern \"C\" fn ") {
            all.extend(words(&text[at..]).nth(5).map(str::to_owned));
        }
        for start in
            ["\npaths! {\n", "\nstats! {\n", "\nrefuse! {\n", "\nreads! {\n", "\nchanges! {\n"]
        {
            let rows = text.split_once(start).map_or("", |(_, rest)| rest);
            let rows = rows.lines().take_while(|line| *line != "}");
            let rows = rows.filter(|line| line.starts_with("    ") && !line.starts_with("     "));
            all.extend(rows.filter_map(|row| words(row).next()).map(str::to_owned));
        }
    }
    all
}

/// The numbers that libc's `syscall` knows here.
fn numbers() -> Option<BTreeSet<String>> {
    let header = ["x86_64-linux-gnu/asm", "asm"].into_iter().find_map(|folder| {
        std::fs::read_to_string(format!("/usr/include/{folder}/unistd_64.h")).ok()
    });
    let named =
        |line: &str| Some(line.strip_prefix("#define __NR_")?.split(' ').next()?.to_owned());
    header.map(|text| text.lines().filter_map(named).collect())
}

#[test]
fn whatever_is_intercepted_by_name_is_intercepted_by_number() {
    let Some(numbers) = numbers() else { return };
    let sources = sources();
    let functions = functions(&sources);
    for name in ["read", "rename", "fstat", "recvmmsg", "sched_getaffinity"] {
        assert!(functions.contains(name), "{name} was not found");
    }
    let is_table = |name: &str| ["numbers.rs", "routes.rs"].contains(&name);
    let tables = sources.iter().filter(|(name, _)| is_table(name));
    let routed: BTreeSet<&str> =
        tables.flat_map(|(_, text)| words(text)).filter_map(|it| it.strip_prefix("SYS_")).collect();
    let of_kernel = |name: &str| {
        let other = ALIASES.iter().find(|(function, _)| *function == name).map(|it| it.1);
        let same = numbers.contains(name).then(|| name.to_owned());
        same.into_iter().chain(other.map(str::to_owned)).collect::<Vec<_>>()
    };
    for name in functions.iter().filter(|it| !NOT_BY_NUMBER.contains(&it.as_str())) {
        for number in of_kernel(name) {
            assert!(routed.contains(number.as_str()), "{name} has no row for SYS_{number}");
        }
    }
}

#[test]
fn what_goes_by_number_goes_to_the_function_of_that_name() {
    let sources = sources();
    let (_, routes) = sources.iter().find(|(name, _)| name == "routes.rs").expect("the routes");
    let mut rows = 0;
    for line in routes.lines().filter(|it| it.trim().starts_with("SYS_")) {
        let row: Vec<&str> = words(line).collect();
        let number = row[0].strip_prefix("SYS_").expect("a number");
        let is_kin = |function: &str| {
            let stem = number.trim_start_matches("rt_").trim_end_matches(char::is_numeric);
            let stem = stem.trim_start_matches("new");
            function == number || function == stem
        };
        assert!(is_kin(row[2]) || number == "creat", "{line}");
        rows += 1;
    }
    assert!(rows > 100, "only {rows} rows");
}
