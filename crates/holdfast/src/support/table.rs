//! What the shim does with each call: the table of `docs/SUPPORT.md`, which is made from the shim's
//! own, and the row in it that a function of libc belongs to.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The page, kept beside the other documents.
pub const PAGE: &str = include_str!("../../../../docs/SUPPORT.md");

/// What the shim does with a call; the page says what that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Refused,
    Passed,
    Replayed,
}

impl Level {
    /// As the page writes it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Passed => "passed",
            Self::Refused => "refused",
        }
    }
}

/// One row of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Heading above it.
    pub section: &'static str,
    pub call: &'static str,
    pub level: Level,
    /// What an operator must know; may be empty.
    pub note: &'static str,
}

/// Rows whose names are beginnings of their functions' names.
const FAMILIES: [&str; 10] = [
    "pthread_mutex",
    "pthread_rwlock",
    "pthread_cond",
    "pthread_spin",
    "pthread_barrier",
    "mtx",
    "sem",
    "timerfd",
    "inotify",
    "io_uring",
];
/// Functions that rows stand for without naming them: the function, and its row.
const ALSO: [(&str, &str); 38] = [
    ("access", "stat"),
    ("arc4random_buf", "getrandom"),
    ("arc4random_uniform", "getrandom"),
    ("close_range", "close"),
    ("closefrom", "close"),
    ("epoll_create1", "epoll_create"),
    ("fclose", "stdio"),
    ("fexecve", "exec"),
    ("fgetxattr", "getxattr"),
    ("flistxattr", "getxattr"),
    ("freeifaddrs", "getifaddrs"),
    ("fremovexattr", "getxattr"),
    ("fsetxattr", "getxattr"),
    ("lgetxattr", "getxattr"),
    ("linkat", "readdir"),
    ("llistxattr", "getxattr"),
    ("lremovexattr", "getxattr"),
    ("lsetxattr", "getxattr"),
    ("mkdirat", "readdir"),
    ("openat", "open"),
    ("pipe2", "pipe"),
    ("pthread_clockjoin_np", "pthread_join"),
    ("pthread_timedjoin_np", "pthread_join"),
    ("pthread_tryjoin_np", "pthread_join"),
    ("readlinkat", "readlink"),
    ("renameat", "readdir"),
    ("renameat2", "readdir"),
    ("rewinddir", "readdir"),
    ("seekdir", "readdir"),
    ("setrlimit", "sysinfo"),
    ("signal", "sigaction"),
    ("symlinkat", "readdir"),
    ("system", "spawn"),
    ("telldir", "readdir"),
    ("thrd_sleep", "sleep"),
    ("timer_gettime", "alarm"),
    ("unlinkat", "readdir"),
    ("vfork", "fork"),
];
/// Words of notes that are functions' names elsewhere.
const WORDS: [&str; 3] = ["log", "random", "stdin"];

/// All rows, in the page's order, which is that of the numbers in records: the first has 1.
#[must_use]
pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| read(PAGE))
}

fn read(page: &'static str) -> Vec<Row> {
    let mut section = "";
    let mut found = Vec::new();
    for line in page.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let mut cells = line.trim_matches('|').splitn(3, " | ").map(str::trim);
        let call = cells.next().and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
        let level = cells.next().and_then(|word| {
            [Level::Replayed, Level::Passed, Level::Refused]
                .into_iter()
                .find(|it| it.word() == word)
        });
        if let (Some(call), Some(level)) = (call, level) {
            found.push(Row { section, call, level, note: cells.next().unwrap_or_default() });
        }
    }
    found
}

/// The row that a function of libc belongs to, if it has one: by its name, or named in the note.
#[must_use]
pub fn row_of(function: &str) -> Option<&'static Row> {
    static BY_NAME: OnceLock<BTreeMap<&'static str, &'static Row>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| {
        let named = rows().iter().flat_map(|row| words(row.note).map(move |word| (word, row)));
        // A function's own row comes before other rows' notes, and the first of these before others.
        let mut all: BTreeMap<_, _> = named.rev().collect();
        let own = |call| rows().iter().find(|row| row.call == call);
        all.extend(ALSO.iter().filter_map(|(function, call)| Some((*function, own(*call)?))));
        all.extend(rows().iter().map(|row| (row.call, row)));
        all
    });
    let plain = plain(function);
    let is_of = |name: &&&str| plain.strip_prefix(**name).is_some_and(|it| it.starts_with('_'));
    let family = || FAMILIES.iter().find(is_of);
    let find = |name: &str| by_name.get(name).copied();
    find(function).or_else(|| find(&plain)).or_else(|| family().and_then(|name| find(name)))
}

/// Words of a note that can be functions' names.
fn words(note: &'static str) -> impl DoubleEndedIterator<Item = &'static str> {
    const fn is_of_name(c: char) -> bool {
        c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
    }
    let all = note.split(|c: char| !is_of_name(c) && !c.is_ascii_uppercase());
    all.filter(|word| !word.is_empty() && word.chars().all(is_of_name) && !WORDS.contains(word))
}

/// A function's name without what libc's headers add to it: `__open64_2`, `__read_chk`,
/// `__lxstat64`.
fn plain(function: &str) -> String {
    let name = function.trim_start_matches('_').to_ascii_lowercase();
    let name = name.strip_suffix("_chk").or(name.strip_suffix("_2")).unwrap_or(&name);
    let name = name.strip_suffix("64").unwrap_or(name);
    match name {
        "xstat" => "stat".to_owned(),
        "lxstat" => "lstat".to_owned(),
        "fxstat" => "fstat".to_owned(),
        "fxstatat" => "fstatat".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_read_whole() {
        let lines = PAGE.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!((rows().len(), rows()[0].call), (lines, "socket"));
        assert!(lines > 90);
        for level in [Level::Replayed, Level::Passed, Level::Refused] {
            assert!(rows().iter().any(|row| row.level == level && !row.note.is_empty()));
        }
        assert_eq!(rows().last().map(|row| row.section), Some("More on files"));
    }

    #[test]
    fn functions_are_found_by_name_and_by_note() {
        for (function, call) in [
            ("read", "read"),
            ("__read_chk", "read"),
            ("readv", "read"),
            ("open64", "open"),
            ("__open64_2", "open"),
            ("fopen64", "open"),
            ("__lxstat64", "stat"),
            ("fstatat64", "stat"),
            ("pthread_mutex_lock", "pthread_mutex"),
            ("sem_wait", "sem"),
            ("epoll_create1", "epoll_create"),
            ("inotify_add_watch", "inotify"),
            ("dup3", "dup"),
            ("fork", "fork"),
            ("system", "spawn"),
            ("_exit", "exit"),
            ("fdopen", "stdio"),
            ("dprintf", "stdio"),
            ("gethostbyname", "getaddrinfo"),
            ("mkdtemp", "mkstemp"),
            ("timerfd_settime", "timerfd"),
            ("io_uring_setup", "io_uring"),
        ] {
            assert_eq!(row_of(function).map(|row| row.call), Some(call), "{function}");
        }
        for (function, call) in ALSO {
            assert_eq!(row_of(function).map(|row| row.call), Some(call), "{function}");
        }
        for function in ["random", "strlen", "malloc", "log", "_ZNSt6vector", "", "memcpy", "index"]
        {
            assert_eq!(row_of(function), None, "{function}");
        }
    }
}
