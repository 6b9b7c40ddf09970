use super::gather::{cpu_features, environment, named_files, shim_of};
use super::*;
use crate::config::{Mode, Server};
use holdfast_wire::buffering::Buffering;
use std::collections::BTreeMap;
use std::ffi::OsString;

const CONFIG: &str = include_str!("../../../../docs/example.toml");

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hasher() -> Hasher {
    Hasher([7; 32])
}

fn config(command: &[&str]) -> Config {
    let mut config = Config::parse(Path::new("/etc/holdfast/demo.toml"), CONFIG).unwrap();
    config.server.command = command.iter().map(|w| (*w).to_owned()).collect();
    config
}

fn gathered(config: &Config) -> Fingerprint {
    let shim = std::env::current_exe().unwrap();
    Fingerprint::new(gather::parts(config, &hasher(), &shim).unwrap(), hasher()).unwrap()
}

/// The difference that `b` would report to `a`, if there is one.
fn between(a: &Fingerprint, b: &Fingerprint) -> Option<Difference> {
    let told: Vec<Part> = b.wire(true).iter().map(Part::from).collect();
    a.difference(&told, "a", "b")
}

fn server(command: &[&str]) -> Server {
    config(command).server.clone()
}

#[test]
fn the_shim_lies_beside_the_program_or_where_it_is_installed() {
    let folder = Folder::new("shim");
    let name = |place: &str| folder.0.join(place).join("libholdfast_shim.so");
    for place in ["bin", "lib/holdfast"] {
        std::fs::create_dir_all(folder.0.join(place)).unwrap();
    }
    let program = folder.0.join("bin/holdfast");
    let missing = shim_of(&program).unwrap_err().to_string();
    let installed = folder.0.join("lib/holdfast");
    assert!(missing.contains(&installed.display().to_string()), "{missing}");
    std::fs::write(name("lib/holdfast"), "").unwrap();
    assert_eq!(shim_of(&program).unwrap(), name("lib/holdfast"));
    // What was built last comes before what is installed.
    std::fs::write(name("bin"), "").unwrap();
    assert_eq!(shim_of(&program).unwrap(), name("bin"));
}

#[test]
fn kernels_are_compared_where_a_takeover_builds_the_server_of_an_image() {
    let mut config = config(&["/bin/sh", "-c", "true"]);
    let is_kernels = |part: &Part| part.name.contains("of the kernel");
    assert!(!gathered(&config).parts.iter().any(is_kernels));
    config.group.mode = Mode::Cold;
    let here = gathered(&config);
    let mut there = here.clone();
    there.parts.iter_mut().filter(|part| is_kernels(part)).for_each(|part| part.hash ^= 1);
    let found = between(&here, &there).unwrap();
    assert_eq!(found.what, "library linux-vdso.so.1 of the kernel");
}

#[test]
fn one_host_is_one_fingerprint() {
    let config = config(&["/bin/sh", "-c", "true"]);
    let (one, two) = (gathered(&config), gathered(&config));
    assert_eq!(between(&one, &two), None);
    assert_eq!(one.hash(), two.hash());
    let summary = one.summary();
    assert!(summary.starts_with(&format!("{:016x} (1 program ", one.hash())), "{summary}");
    assert!(summary.contains("3 arguments"), "{summary}");
    let has = |kind, name: &str| one.parts.iter().any(|p| p.kind == kind && p.name == name);
    assert!(has(Kind::Library, "libc.so.6") && has(Kind::Library, "libholdfast_shim.so"));
    assert!(has(Kind::Program, "/bin/sh") && has(Kind::Setting, "heartbeat_ms = 18"));
    // Every x86_64 processor has this feature.
    assert!(has(Kind::CpuFeature, "sse2"));
}

/// What a member says of its `PATH` in a later hello is no difference by itself.
#[test]
fn a_path_that_differs_is_told_and_one_that_does_not_is_not() {
    let with = |path: &str| {
        let part = hasher().part(Kind::Variable, PATH, path.as_bytes());
        let fingerprint = Fingerprint::new(vec![part], hasher()).unwrap();
        Fingerprint { path: path::explaining(path), ..fingerprint }
    };
    let (a, b) = (with("/usr/bin:/bin"), with("/bin:/opt/bin"));
    let found = between(&a, &b).unwrap();
    assert_eq!(found.what, "environment variable PATH (only on a: /usr/bin; only on b: /opt/bin)");
    assert!(found.of_path && found.remedy.contains("env = { PATH = "), "{}", found.remedy);
    assert_eq!(between(&a, &with("/usr/bin:/bin")), None);
    let short: Vec<Part> = b.wire(false).iter().map(Part::from).collect();
    let found = a.difference(&short, "a", "b").unwrap();
    assert_eq!(found.what, "environment variable PATH (a has /usr/bin:/bin)");
}

#[test]
fn each_difference_is_named_with_a_remedy() {
    let folder = Folder::new("world");
    let file = folder.write("x.conf", "listen 1\n");
    let one = config(&["/bin/sh", &file, "on"]);
    let before = gathered(&one);

    folder.write("x.conf", "listen 2\n");
    let found = between(&before, &gathered(&one)).unwrap();
    assert_eq!(found.what, format!("config file {file}"));
    assert!(found.remedy.starts_with("copy the files"), "{}", found.remedy);
    folder.write("x.conf", "listen 1\n");

    let mut other = one.clone();
    other.server.command[2] = "off".to_owned();
    other.server.env.insert("LANG_OF_TEST".to_owned(), "C".to_owned());
    other.group.heartbeat_ms = 100;
    let found = between(&before, &gathered(&other)).unwrap();
    assert_eq!(
        found.what,
        "argument 2; environment variable LANG_OF_TEST (only on b); \
         settings heartbeat_ms = 100 (only on b), heartbeat_ms = 18 (only on a)"
    );
    assert!(found.remedy.contains("same group file"), "{}", found.remedy);

    let mut lax = one.clone();
    lax.group.buffering = Buffering::Pr;
    let found = between(&before, &gathered(&lax)).unwrap();
    assert_eq!(found.what, "settings buffering = commit (only on a), buffering = pr (only on b)");

    let found = between(&before, &gathered(&config(&["/bin/ls", &file, "on"]))).unwrap();
    assert!(found.what.contains("program"), "{}", found.what);
    assert!(found.what.contains("/bin/ls (only on b)"), "{}", found.what);
    assert!(found.what.contains("argument 0"), "{}", found.what);
}

#[test]
fn libraries_and_cpu_features_are_named_and_counted() {
    let fingerprint = |parts: Vec<Part>| Fingerprint::new(parts, hasher()).unwrap();
    let part = |kind, name: &str, content: &[u8]| hasher().part(kind, name, content);
    let a = fingerprint(vec![
        part(Kind::Library, "libc.so.6", b"2.36"),
        part(Kind::Library, "libssl.so.3", b"3.0.17"),
        part(Kind::CpuFeature, "avx512f", b""),
    ]);
    let b = fingerprint(vec![
        part(Kind::Library, "libc.so.6", b"2.36"),
        part(Kind::Library, "libssl.so.3", b"3.0.18"),
    ]);
    let found = between(&a, &b).unwrap();
    assert_eq!(found.what, "library libssl.so.3; CPU feature avx512f (only on a)");
    assert!(found.remedy.contains("same packages") && found.remedy.contains("processor"));
    assert_eq!(between(&b, &a).unwrap().what.replace("on b", "on a"), found.what);

    let flags = (0..10).map(|n| part(Kind::CpuFeature, &format!("f{n}"), b"")).collect();
    let found = between(&fingerprint(flags), &fingerprint(Vec::new())).unwrap();
    assert!(found.what.ends_with("f3 (only on a) and 6 more"), "{}", found.what);
}

#[test]
fn what_the_command_line_names_is_found_wherever_it_stands() {
    let folder = Folder::new("named");
    let (a, b, c) =
        (folder.write("a.conf", ""), folder.write("b.conf", ""), folder.write("c.conf", ""));
    let log = folder.write("out.log", "");
    let own = folder.0.display().to_string();
    let mut it = server(&[
        "/bin/sh",
        &a,
        &format!("--config={b}"),
        &format!("-c{c}"),
        &log,
        &own,
        "/nonexistent/d.conf",
        "é",
        "-é",
        "",
    ]);
    let names = |it: &Server| -> Vec<String> {
        named_files(it).iter().map(|p| p.display().to_string()).collect()
    };
    assert_eq!(names(&it), [a.clone(), b, c]);
    it.command = vec!["/bin/sh".to_owned(), "a.conf".to_owned()];
    it.directory = Some(folder.0.clone());
    assert_eq!(names(&it), [a]);
}

#[test]
fn the_session_is_neither_passed_nor_compared() {
    let mut it = server(&["/bin/sh"]);
    it.env.insert("TZ".to_owned(), "UTC".to_owned());
    let inherited = ["TZ", "LANG", "INVOCATION_ID", "SSH_TTY", "_", "HOLDFAST_SHIM", "LD_PRELOAD"]
        .map(|name| (OsString::from(name), OsString::from("x")));
    let passed = environment(&it, inherited.into_iter());
    let expected = [("LANG", "x"), ("TZ", "UTC")].map(|(n, v)| (n.into(), v.into()));
    assert_eq!(passed, BTreeMap::from(expected));
}

#[test]
fn cpu_flags_are_those_of_the_first_processor() {
    let text = "processor\t: 0\nflags\t\t: fpu sse2\nbugs\t: x\n\nprocessor\t: 1\nflags\t: fpu\n";
    assert_eq!(cpu_features(text).collect::<Vec<_>>(), ["fpu", "sse2"]);
    assert_eq!(cpu_features("").count(), 0);
}

#[test]
fn names_have_an_end_and_still_count_as_a_whole() {
    let long = |first: &str| format!("{first}{}", "é".repeat(FINGERPRINT_NAME_BYTES_MAX));
    let (a, b) = (long("a"), long("b"));
    let [one, two] = [&a, &b].map(|name| hasher().part(Kind::File, name, b"same"));
    assert!(one.name.len() <= FINGERPRINT_NAME_BYTES_MAX && a.ends_with(&one.name));
    assert_eq!(one.name, two.name);
    assert_ne!(one.hash, two.hash);
}

#[test]
fn what_cannot_be_told_is_an_error_with_a_remedy() {
    let shim = std::env::current_exe().unwrap();
    let error = gather::parts(&config(&["/nonexistent/server"]), &hasher(), &shim).unwrap_err();
    assert_eq!(error.to_string(), "`/nonexistent/server` is no program of this host");
    assert!(!error.remedy().is_empty());
    let many =
        (0..=FINGERPRINT_PARTS_MAX).map(|n| hasher().part(Kind::Variable, &n.to_string(), b""));
    assert!(matches!(
        Fingerprint::new(many.collect(), hasher()),
        Err(FingerprintError::TooMany(_))
    ));
}
