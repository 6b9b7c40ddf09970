//! What can be told about the server's program before it is started: whether the
//! shim can be loaded into it, and whether it is known to serve by several
//! processes or to go into the background, which no replica would notice.

use super::Finding;
use crate::config::{Run, Server};
use crate::fingerprint::find_program;
use crate::support::{Lost, Way, follow, obstacle};
use std::path::{Path, PathBuf};

const NAME: &str = "server";
/// Longest configuration that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Number of words of the command among which the program is: launchers come
/// before it.
const WORDS_MAX: usize = 4;
/// Remedy where there is none.
pub(crate) const UNSUPPORTED: &str = "it cannot be protected yet";
const IN_FRONT: &str = "the process that is started would end, and its children are not protected";
const RACES: &str = "its threads race beside the locks that are in the log";
const FAMILY: &str = "it serves clients by children of its own, which are not protected";
const SHARES: &str = "its processes share memory, whose changes are not in the log's order";

/// Everything to be said about the server; empty if nothing is known against it.
#[must_use]
pub fn findings(server: &Server) -> Vec<Finding> {
    let mut found = by_command(server);
    let way = follow(server);
    if found.is_empty() {
        found.extend(by_script(server, &way));
    }
    found.extend(by_file(&way));
    found.extend(server.log.as_deref().and_then(log));
    found.extend(server.state_dirs.iter().filter_map(|folder| state_dir(folder)));
    found
}

/// Checks the file for the server's output, which is made if it does not exist.
fn log(path: &Path) -> Option<Finding> {
    const NAME: &str = "log";
    let shown = path.display();
    if path.is_dir() {
        let found = format!("{shown} is a folder: the server could not be started");
        return Some(Finding::fail(NAME, found, "name a file, as `log` of [server]"));
    }
    let folder = path.parent().filter(|folder| !folder.is_dir())?.display();
    let found = format!("{folder} is no folder: the server could not be started");
    Some(Finding::fail(NAME, found, format!("mkdir -p {folder}")))
}

/// Checks a folder whose content a joining member replaces. Whether it can be written is tried
/// before a start, too (`fingerprint::lacks`).
fn state_dir(folder: &Path) -> Option<Finding> {
    const NAME: &str = "state_dirs";
    // One that is not there is named by that, too.
    let real = folder.canonicalize().ok().filter(|real| real != folder)?;
    let (shown, real) = (folder.display(), real.display());
    let found = format!("{shown} has a symbolic link in its way: no member could join");
    Some(Finding::fail(NAME, found, format!("name {real} in its place")))
}

/// What the file of the program that is reached says: a shim is loaded by the loader, and sees libc's
/// calls.
fn by_file(way: &Way) -> Option<Finding> {
    let path = way.files.last().filter(|_| way.lost.is_none())?;
    let (found, remedy) = obstacle(path, &way.bytes)?;
    Some(Finding::fail(NAME, found, remedy))
}

/// What is known of the program that a script ends as.
fn by_script(server: &Server, way: &Way) -> Option<Finding> {
    if let Some(lost @ (Lost::NoInterpreter { .. } | Lost::NoExec(_) | Lost::Unexpanded { .. })) =
        &way.lost
    {
        let (found, remedy) = lost.told();
        let severity = if lost.is_fatal() { Finding::fail } else { Finding::warn };
        return Some(severity(NAME, found, remedy));
    }
    if way.server.command == server.command {
        None
    } else {
        by_command(&way.server).into_iter().next()
    }
}

/// What the command line says, and the configuration that it names.
#[must_use]
pub fn by_command(server: &Server) -> Vec<Finding> {
    let words: Vec<&str> = server.command.iter().map(String::as_str).collect();
    let base = |word: &&str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = words.iter().take(WORDS_MAX).map(base).collect();
    let real = find_program(server).and_then(|path| path.canonicalize().ok());
    names.extend(real.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())));
    let found = names.iter().find_map(|name| judge(name, &words, server));
    found.into_iter().collect()
}

fn judge(name: &str, words: &[&str], server: &Server) -> Option<Finding> {
    let has = |word: &str| words.contains(&word);
    let fail = |why: &str, remedy: &str| {
        Some(Finding::fail(NAME, format!("{name}: {why}"), remedy.to_owned()))
    };
    let warn = |why: &str, remedy: &str| {
        Some(Finding::warn(NAME, format!("{name}: {why}"), remedy.to_owned()))
    };
    // Servers whose processes can be in one log.
    let family = |alone: &str| {
        let remedy = format!("write `run = \"parallel\"` into [server], or {alone}");
        if server.run == Run::Auto { fail(FAMILY, &remedy) } else { None }
    };
    // Servers whose processes, besides, share memory.
    let ordered = |or: &str| {
        let remedy = format!("write `run = \"one-at-a-time\"` into [server]{or}");
        match server.run {
            Run::Auto => fail(FAMILY, &remedy),
            Run::Parallel => fail(SHARES, &remedy),
            Run::OneAtATime => None,
        }
    };
    match name {
        "nginx" => nginx(words, server),
        "redis-server" | "valkey-server" => {
            let text = words.get(1).map(|path| read(&place(server, path))).unwrap_or_default();
            // What the command line says holds.
            let said = words.windows(2).rfind(|w| w[0] == "--daemonize").map(|w| w[1]);
            let daemon = said.map_or_else(|| says(&text, "daemonize yes"), |said| said == "yes");
            if daemon { fail(IN_FRONT, "remove `daemonize yes`") } else { None }
        }
        "apache2" | "httpd" | "apache2ctl" if has("-X") => None,
        "apache2" | "httpd" | "apache2ctl" if !has("-DFOREGROUND") => {
            fail(IN_FRONT, "start it with -DFOREGROUND")
        }
        "apache2" | "httpd" | "apache2ctl" => ordered(", or start it with -X"),
        "haproxy" if has("-D") => fail(IN_FRONT, "start it without -D"),
        "haproxy" if has("-W") || has("-Ws") => family("start it with -db, without -W and -Ws"),
        "haproxy" if !has("-db") => {
            warn("its configuration may send it into the background", "start it with -db")
        }
        "dnsmasq" if has("-d") || has("--no-daemon") => None,
        "dnsmasq" if !has("-k") && !has("--keep-in-foreground") => {
            fail(IN_FRONT, "start it with -k, or with -d")
        }
        "dnsmasq" => family("start it with -d"),
        "lighttpd" if !has("-D") => fail(IN_FRONT, "start it with -D"),
        "memcached" | "mosquitto" if has("-d") => fail(IN_FRONT, "remove -d"),
        "uvicorn" | "hypercorn" if words.iter().any(|word| word.starts_with("--workers")) => {
            fail(FAMILY, "remove --workers")
        }
        "gunicorn" if has("-D") || has("--daemon") => fail(IN_FRONT, "remove -D"),
        "gunicorn" => family("use a server of one process, such as uvicorn"),
        "dropbear" if !has("-F") => fail(IN_FRONT, "start it with -F"),
        "smbd" if !has("--foreground") && !has("-F") => {
            fail(IN_FRONT, "start it with --foreground --no-process-group")
        }
        "dropbear" | "vsftpd" | "smbd" => family("use another server"),
        "postgres" | "postmaster" => ordered(""),
        "sshd" | "varnishd" => fail(FAMILY, UNSUPPORTED),
        "node" | "nodejs" | "java" if server.run == Run::OneAtATime => None,
        "node" | "nodejs" if !has("--single-threaded") => warn(
            RACES,
            "start it with --single-threaded --v8-pool-size=0, or write `run = \"one-at-a-time\"` \
             into [server]",
        ),
        "java" => warn(RACES, "write `run = \"one-at-a-time\"` into [server]"),
        "mariadbd" | "mysqld" | "beam.smp" | "erl" => warn(RACES, UNSUPPORTED),
        _ => None,
    }
}

/// nginx: two directives, on the command line (`-g`) or in the file (`-c`, `-p`). One is
/// enough where all processes are in one log.
fn nginx(words: &[&str], server: &Server) -> Option<Finding> {
    let after =
        |option: &str| words.windows(2).find(|w| w[0] == option).map(|w| w[1]).unwrap_or_default();
    let file = match after("-c") {
        "" => "/etc/nginx/nginx.conf",
        file => file,
    };
    let path = Path::new(after("-p")).join(file);
    let path = place(server, &path.to_string_lossy());
    let text = format!("{};{}", after("-g"), read(&path));
    let is_needed = |statement: &str| statement == "daemon off" || server.run == Run::Auto;
    let missing: Vec<&str> = ["daemon off", "master_process off"]
        .into_iter()
        .filter(|statement| is_needed(statement) && !says(&text, statement))
        .collect();
    // With all processes in one log, the foreground is all that it needs.
    let (why, or) = match missing[..] {
        [] => return None,
        ["daemon off"] => (IN_FRONT, ""),
        ["daemon off", ..] => (
            IN_FRONT,
            ", or only `daemon off;`, and `run = \"parallel\"` into [server], which keeps its workers",
        ),
        _ => (FAMILY, ", or `run = \"parallel\"` into [server]"),
    };
    let (wanted, file) = (missing.join("; "), path.display());
    if !path.exists() {
        let found = format!("nginx: {file} is not on this host, and nothing else says `{wanted}`");
        let remedy = format!("put it there as on the members, with `{wanted};`{or}");
        return Some(Finding::fail(NAME, found, remedy));
    }
    let remedy = format!("write `{wanted};` into {file}{or}");
    Some(Finding::fail(NAME, format!("nginx: {why}"), remedy))
}

fn place(server: &Server, path: &str) -> PathBuf {
    server.directory.as_deref().unwrap_or(Path::new("")).join(path)
}

/// A file's text; empty if it is not text, or too long to be a configuration.
fn read(path: &Path) -> String {
    let fits = std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= CONFIG_BYTES_MAX);
    if fits { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

/// Whether a configuration contains a statement outside of comments.
fn says(text: &str, statement: &str) -> bool {
    let wanted: Vec<&str> = statement.split(' ').collect();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split([';', '{', '}'])).any(|part| {
        part.split_whitespace().map(|word| word.trim_matches('"')).eq(wanted.iter().copied())
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::config::Config;
    use std::os::unix::fs::PermissionsExt as _;

    const CONFIG: &str = include_str!("../../../../docs/example.toml");

    fn worst(command: &[&str]) -> Option<(Verdict, String)> {
        let path = Path::new("/etc/holdfast/demo.toml");
        let mut server = Config::parse(path, CONFIG).unwrap().server.clone();
        server.command = command.iter().map(|word| (*word).to_owned()).collect();
        let found = findings(&server).into_iter().max_by_key(|f| f.verdict)?;
        assert!(!found.remedy.is_empty());
        Some((found.verdict, found.found))
    }

    #[test]
    fn programs_that_serve_by_several_processes_are_known() {
        for command in [
            &["/usr/sbin/nginx", "-c", "/none"][..],
            &["nginx", "-c", "/none", "-g", "daemon off;"],
            &["redis-server", "--daemonize", "yes"],
            &["env", "A=b", "apache2", "-DFOREGROUND"],
            &["python3", "-m", "gunicorn", "app"],
            &["python3", "-m", "uvicorn", "app", "--workers=4"],
            &["/usr/lib/postgresql/15/bin/postgres", "-D", "/var/lib/x"],
            &["haproxy", "-W", "-db"],
            &["dnsmasq", "-k"],
        ] {
            assert_eq!(worst(command).map(|w| w.0), Some(Verdict::Fail), "{command:?}");
        }
        for command in [
            &["nginx", "-c", "/none", "-g", "daemon off; master_process off;"][..],
            &["redis-server", "--save", ""],
            &["redis-server", "--daemonize", "no"],
            &["apache2", "-X"],
            &["haproxy", "-db", "-f", "x"],
            &["dnsmasq", "-d"],
            &["uvicorn", "app"],
        ] {
            assert_eq!(worst(command), None, "{command:?}");
        }
    }

    #[test]
    fn a_family_in_one_log_needs_the_foreground_only() {
        let path = Path::new("/etc/holdfast/demo.toml");
        let mut server = Config::parse(path, CONFIG).unwrap().server.clone();
        server.run = Run::Parallel;
        let of = |server: &Server| by_command(server).pop().map(|it| it.remedy);
        let with = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        server.command = with(&["nginx", "-c", "/none", "-g", "daemon off;"]);
        assert_eq!(of(&server), None);
        server.command = with(&["nginx", "-c", "/none"]);
        assert!(of(&server).is_some_and(|it| it.contains("daemon off") && !it.contains("master")));
        let families = [
            &["gunicorn", "app"][..],
            &["haproxy", "-W", "-db"],
            &["dropbear", "-F"],
            &["vsftpd", "x"],
            &["smbd", "--foreground", "--no-process-group"],
            &["dnsmasq", "-k"],
        ];
        for words in families {
            (server.command, server.run) = (with(words), Run::Parallel);
            assert_eq!(of(&server), None, "{words:?}");
            server.run = Run::Auto;
            let remedy = of(&server);
            assert!(remedy.is_some_and(|it| it.contains("run = \"parallel\"")), "{words:?}");
        }
        server.run = Run::Parallel;
        for words in [&["haproxy", "-W", "-D"][..], &["dropbear"], &["smbd"], &["gunicorn", "-D"]] {
            server.command = with(words);
            assert!(of(&server).is_some_and(|it| !it.contains("parallel")), "{words:?}");
        }
        server.command = with(&["nginx", "-c", "/none"]);
        server.run = Run::Auto;
        let remedy = of(&server).unwrap();
        assert!(remedy.contains("master_process off") && remedy.contains("parallel"), "{remedy}");
        server.command = with(&["nginx", "-c", "/none", "-g", "daemon off;"]);
        assert!(of(&server).is_some_and(|it| it.contains("run = \"parallel\"")));
    }

    #[test]
    fn a_family_that_shares_memory_runs_one_at_a_time() {
        let path = Path::new("/etc/holdfast/demo.toml");
        let mut server = Config::parse(path, CONFIG).unwrap().server.clone();
        for command in [&["apache2", "-DFOREGROUND"][..], &["postgres", "-D", "data"]] {
            server.command = command.iter().map(|word| (*word).to_owned()).collect();
            for (run, is_good) in
                [(Run::Auto, false), (Run::Parallel, false), (Run::OneAtATime, true)]
            {
                server.run = run;
                let remedy = by_command(&server).pop().map(|it| it.remedy);
                assert_eq!(remedy.is_none(), is_good, "{command:?} {run:?}: {remedy:?}");
                assert!(remedy.is_none_or(|it| it.contains("run = \"one-at-a-time\"")));
            }
        }
        server.command = vec!["apache2".to_owned()];
        assert!(!by_command(&server).is_empty(), "it would go into the background");
    }

    #[test]
    fn threads_that_race_may_run_one_at_a_time() {
        let path = Path::new("/etc/holdfast/demo.toml");
        let mut server = Config::parse(path, CONFIG).unwrap().server.clone();
        for command in [["node", "x.js"], ["java", "X"]] {
            server.command = command.map(str::to_owned).to_vec();
            server.run = Run::Parallel;
            let remedy = by_command(&server).pop().map(|it| it.remedy);
            assert!(remedy.is_some_and(|it| it.contains("run = \"one-at-a-time\"")));
            server.run = Run::OneAtATime;
            assert!(by_command(&server).is_empty());
        }
    }

    #[test]
    fn the_log_is_a_file_in_a_folder() {
        let folder = std::env::temp_dir();
        assert!(log(&folder.join("holdfast-server.log")).is_none());
        let found = |path: &Path| log(path).map(|it| it.found).unwrap_or_default();
        assert!(found(&folder).contains("is a folder"));
        assert!(found(Path::new("/none/server.log")).contains("/none is no folder"));
    }

    #[test]
    fn a_program_without_a_loader_is_no_place_for_the_shim() {
        let folder = std::env::temp_dir().join(format!("holdfast-program-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("main.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let build = |name: &str, words: &[&str]| {
            let program = folder.join(name);
            let mut cc = std::process::Command::new("cc");
            let done = cc.arg(&source).args(words).arg("-o").arg(&program).status().unwrap();
            assert!(done.success());
            program
        };
        let own = build("own", &[]);
        let fixed = build("fixed", &["-static"]);
        let verdict = |path: &Path| worst(&[&path.display().to_string()]).map(|w| w.1);
        assert_eq!(verdict(&own), None);
        assert!(verdict(&fixed).unwrap().contains("statically"));
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(verdict(&own).unwrap().contains("setuid"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_script_is_judged_by_what_it_ends_as() {
        let script = std::env::temp_dir().join(format!("holdfast-script-{}", std::process::id()));
        for (text, verdict, words) in [
            ("#!/bin/sh\nulimit -n 4096\nexec redis-server --save ''\n", None, ""),
            ("#!/bin/sh\nexec \"redis-server\" --daemonize yes\n", Some(Verdict::Fail), "redis"),
            ("#!/bin/bash\n exec apache2\n", Some(Verdict::Fail), "-DFOREGROUND"),
            ("#! /bin/sh\nredis-server &\nwait\n", Some(Verdict::Warn), "`exec`"),
            ("#!/none/sh\nexec redis-server\n", Some(Verdict::Fail), "not there"),
            ("#!/usr/bin/env python3\nimport os\n", None, ""),
        ] {
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            let path = Path::new("/etc/holdfast/demo.toml");
            let mut server = Config::parse(path, CONFIG).unwrap().server.clone();
            server.command = vec![script.display().to_string()];
            let found = findings(&server).pop();
            assert_eq!(found.as_ref().map(|it| it.verdict), verdict, "{text}");
            let said = found.map(|it| format!("{} {}", it.found, it.remedy)).unwrap_or_default();
            assert!(said.contains(words), "{text}: {said}");
        }
        std::fs::remove_file(script).unwrap();
    }

    #[test]
    fn statements_are_found_as_their_file_means_them() {
        assert!(says("daemon  off;", "daemon off"));
        assert!(says("a; daemon off; b", "daemon off"));
        assert!(!says("# daemon off;", "daemon off"));
        assert!(!says("xdaemon off;", "daemon off"));
        assert!(says("port 1\ndaemonize yes\n", "daemonize yes"));
    }
}
