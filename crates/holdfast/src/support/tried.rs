//! What became of a server when it was tried: rows of `docs/SERVERS.md`.

use super::Verdict;
use serde::Serialize;
use std::path::Path;

/// The page, kept beside the other documents.
const PAGE: &str = include_str!("../../../../docs/SERVERS.md");

/// Programs whose rows and packages have other names.
const ALSO: [(&str, &str); 5] = [
    ("mariadbd", "mariadb"),
    ("mysqld", "mariadb"),
    ("postgres", "postgresql"),
    ("postmaster", "postgresql"),
    ("smbd", "samba"),
];

/// One row about a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// Name of the row.
    pub name: &'static str,
    pub package: &'static str,
    /// What became of it, in the page's words.
    pub said: &'static str,
}

/// Rows about a program, by its name or its package's.
#[must_use]
pub fn of(program: &Path) -> Vec<Tried> {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let names = [program, &real].map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    let is_of = |it: &Tried| names.iter().any(|name| belongs(it, name));
    rows().filter(is_of).collect()
}

fn rows() -> impl Iterator<Item = Tried> {
    PAGE.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.splitn(4, " | ").collect::<Vec<_>>();
        let &[name, package, said, _] = &cells[..] else { return None };
        Some(Tried { name, package, said }).filter(|row| of_row(row).is_some())
    })
}

/// Whether a row, or the package in it, is that of a program: `nginx-tls` is nginx's,
/// `apache2-bin` has apache2. A program may have its version behind its name: `php8.2`.
fn belongs(row: &Tried, program: &str) -> bool {
    let package = row.package.split(' ').next().unwrap_or_default();
    let is_begin = |name: &str, of: &str| {
        name.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let also = ALSO.iter().find(|(name, _)| *name == program).map(|(_, row)| *row);
    let bare = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let mut names = [Some(program), also, Some(bare)].into_iter().flatten();
    names.any(|of| !of.is_empty() && (is_begin(row.name, of) || is_begin(package, of)))
}

fn of_row(row: &Tried) -> Option<Verdict> {
    if row.said.starts_with("works with") {
        Some(Verdict::WorksWithASetting)
    } else if row.said.starts_with("works") {
        Some(Verdict::Works)
    } else if row.said.starts_with("refused") || row.said.starts_with("FAILED") {
        Some(Verdict::Refused)
    } else {
        None
    }
}

/// What the rows say together: the best of them. Where a command `is_judged`, it has the setting
/// that they name, for else it had been complained of before.
#[must_use]
pub fn verdict(rows: &[Tried], is_judged: bool) -> Option<Verdict> {
    let all: Vec<Verdict> = rows.iter().filter_map(of_row).collect();
    match (all.contains(&Verdict::Works), all.contains(&Verdict::WorksWithASetting)) {
        (true, _) => Some(Verdict::Works),
        (false, true) if is_judged => Some(Verdict::Works),
        (false, true) => Some(Verdict::WorksWithASetting),
        (false, false) => all.first().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(program: &str) -> Vec<&'static str> {
        of(Path::new(program)).into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_found_by_a_programs_name() {
        assert!(rows().count() > 35);
        assert_eq!(names("/none/redis-server"), ["redis", "redis-aof", "redis-tls"]);
        assert!(names("/none/nginx").contains(&"nginx-workers"));
        assert!(names("/none/apache2").contains(&"apache-event"));
        assert_eq!(names("/none/named"), ["named"]);
        assert!(names("/none/a").is_empty() && names("/").is_empty());
    }

    /// Each row of the page, and the program that Debian starts.
    const PROGRAMS: [(&str, &str); 40] = [
        ("nginx", "/usr/sbin/nginx"),
        ("nginx-tls", "/usr/sbin/nginx"),
        ("lighttpd", "/usr/sbin/lighttpd"),
        ("apache-x", "/usr/sbin/apache2"),
        ("haproxy", "/usr/sbin/haproxy"),
        ("squid", "/usr/sbin/squid"),
        ("tinyproxy", "/usr/bin/tinyproxy"),
        ("stunnel", "/usr/bin/stunnel4"),
        ("redis", "/usr/bin/redis-server"),
        ("redis-aof", "/usr/bin/redis-server"),
        ("redis-tls", "/usr/bin/redis-server"),
        ("memcached", "/usr/bin/memcached"),
        ("mariadb", "/usr/sbin/mariadbd"),
        ("mariadb-no-aio", "/usr/sbin/mysqld"),
        ("slapd", "/usr/sbin/slapd"),
        ("mosquitto", "/usr/sbin/mosquitto"),
        ("mosquitto-tls", "/usr/sbin/mosquitto"),
        ("prosody", "/usr/bin/prosody"),
        ("unbound", "/usr/sbin/unbound"),
        ("named", "/usr/sbin/named"),
        ("dnsmasq-d", "/usr/sbin/dnsmasq"),
        ("python-http", "/usr/bin/python3"),
        ("python-asyncio", "/usr/bin/python3.11"),
        ("uvicorn", "/usr/bin/uvicorn"),
        ("php", "/usr/bin/php8.2"),
        ("node-one-thread", "/usr/bin/node"),
        ("node", "/usr/bin/nodejs"),
        ("java", "/usr/bin/java"),
        ("java-interpreter", "/usr/bin/java"),
        ("nginx-workers", "/usr/sbin/nginx"),
        ("apache-prefork", "/usr/sbin/apache2"),
        ("apache-event", "/usr/sbin/apache2"),
        ("haproxy-w", "/usr/sbin/haproxy"),
        ("gunicorn", "/usr/bin/gunicorn"),
        ("vsftpd", "/usr/sbin/vsftpd"),
        ("dnsmasq", "/usr/sbin/dnsmasq"),
        ("postgresql", "/usr/lib/postgresql/15/bin/postgres"),
        ("sshd", "/usr/sbin/sshd"),
        ("dropbear", "/usr/sbin/dropbear"),
        ("samba", "/usr/sbin/smbd"),
    ];

    #[test]
    fn each_row_is_found_by_the_program_that_was_tried() {
        for (row, program) in PROGRAMS {
            assert!(names(program).contains(&row), "{row} by {program}: {:?}", names(program));
        }
        for row in rows() {
            let is_of = |(name, _): &(&str, &str)| *name == row.name;
            assert!(PROGRAMS.iter().any(is_of), "{}: name its program here", row.name);
        }
        assert!(names("/none/9.1").is_empty());
    }

    #[test]
    fn the_best_of_its_rows_counts() {
        let redis = of(Path::new("/none/redis-server"));
        assert_eq!(verdict(&redis, false), Some(Verdict::Works));
        let squid = of(Path::new("/none/squid"));
        assert_eq!(verdict(&squid, false), Some(Verdict::WorksWithASetting));
        assert_eq!(verdict(&squid, true), Some(Verdict::Works));
        assert_eq!(verdict(&of(Path::new("/none/named")), false), Some(Verdict::Refused));
        assert_eq!(verdict(&[], true), None);
    }
}
