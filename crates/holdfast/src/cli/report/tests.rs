use super::*;

/// A file with secrets of every kind.
fn group(folder: &Path) -> GroupFile {
    let example = include_str!("../../../../../docs/example.toml");
    let command = "command = [\"/usr/bin/redis-server\", \"--requirepass\", \"hunter2-word\", \
        \"--masterauth joined-word\", \
        \"--tls=tls\\\"secret\", \"-psesame77\", \"/etc/hostname\", \"plainword\"]";
    let mut text = String::new();
    for line in example.lines() {
        let line = match line.trim_start() {
            it if it.starts_with("command =") => command,
            it if it.starts_with("run_dir") => "",
            _ => line,
        };
        text += &format!("{line}\n");
        if line == "[group]" {
            text += &format!("run_dir = {:?}\nevents_dir = {:?}\n", folder.join("run"), folder);
        }
    }
    text += "\n[hooks]\non_state = [\"/usr/bin/curl\", \"https://hook.example/token9876\"]\n";
    let text = text
        .replace("[server]\n", "[server]\nenv = { PASSWORD = \"env-secret\", SHORT = \"x1\" }\n");
    GroupFile::parse(&folder.join("x.toml"), &text).unwrap()
}

const SECRETS: [&str; 7] = [
    "hunter2-word",
    "joined-word",
    "tls\\\"secret",
    "sesame77",
    "plainword",
    "env-secret",
    "token9876",
];

fn folder(name: &str) -> PathBuf {
    let own = std::env::temp_dir().join(format!("holdfast-report-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    own
}

#[test]
fn no_secret_of_the_file_is_in_any_part() {
    let folder = folder("secrets");
    let group = group(&folder);
    let secrets = Secrets::of(&group);
    let config = secrets.config(&group);
    for secret in SECRETS {
        assert!(
            group.effective().contains(secret) || secret.contains('\\'),
            "the test has {secret}"
        );
        assert!(!config.contains(secret), "{secret} in {config}");
        let said = format!("the server was started with {secret}, and failed");
        assert_eq!(secrets.scrub(&said).matches("***").count(), 1, "{secret}");
    }
    for kept in
        ["--requirepass", "--tls=***", "-p***", "/etc/hostname", "/usr/bin/curl", "PASSWORD"]
    {
        assert!(config.contains(kept), "{kept} in {config}");
    }
    assert!(!config.contains("x1\"") && secrets.scrub("x1") == "x1", "in no text of its own");
    assert_eq!(secrets.scrub("plainwords are words"), "plainwords are words");
    let parts = [Part::new("a/status.json", Ok("{\"reason\":\"tls\\\"secret\"}".to_owned()))];
    let bytes = archive(&parts, &secrets);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("{\"reason\":\"***\"}"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn users_and_passwords_of_addresses_are_masked() {
    let folder = folder("etcd");
    let text = include_str!("../../../../../docs/example-segment.toml");
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("witness =")).collect();
    let text = kept.join("\n").replace(
        "[arbiter]",
        "[arbiter]\nnone = false\ncommand = [\"/usr/sbin/fence\", \"--password\", \"pdu-secret\"]",
    );
    let text = text.replace("none = false\n", "");
    let group = GroupFile::parse(&folder.join("x.toml"), &text).unwrap();
    let config = Secrets::of(&group).config(&group);
    assert!(config.contains("--password") && !config.contains("pdu-secret"), "{config}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_report_is_made_without_a_daemon_and_tar_reads_it() {
    let folder = folder("tar");
    let group = group(&folder);
    let args = ReportArgs {
        group: super::super::args::GroupArgs { config: Some(folder.join("x.toml")), role: None },
        output: None,
        with_server_log: false,
    };
    let limits = of_process("a/daemon", Ok(std::process::id()));
    assert!(
        limits.iter().any(|part| part.content.as_ref().is_ok_and(|it| it.contains("Max open")))
    );
    let mut parts = of_role(&group, "a", &args);
    parts.retain(|part| part.name != "a/check.json");
    assert!(parts.iter().all(|part| part.content.is_err()), "there is no daemon");
    parts.push(Part::new("host/kernel.txt", file(Path::new("/proc/version"))));
    parts.insert(0, index(&group, &["a".to_owned()], &parts));
    let path = folder.join("out.tar.gz");
    write(&path, &archive(&parts, &Secrets::of(&group))).unwrap();
    let listed = Command::new("tar").arg("-tvzf").arg(&path).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("-rw-------") && listed.contains("holdfast-report/host/kernel.txt"),
        "{listed}"
    );
    let mut tar = Command::new("tar");
    let text = tar.arg("-xzOf").arg(&path).arg("holdfast-report/README.txt").output().unwrap();
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("a/status.json: MISSING: no daemon answers")
    );
    let again = write(&path, b"").unwrap_err().to_string();
    assert!(again.contains("name another file"), "{again}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_log_that_leads_elsewhere_is_not_read() {
    let folder = folder("log");
    let link = folder.join("log");
    std::os::unix::fs::symlink("/etc/shadow", &link).unwrap();
    assert!(tail(&link, 100).is_err());
    std::fs::write(folder.join("real"), "0123456789").unwrap();
    assert_eq!(tail(&folder.join("real"), 4).unwrap(), "6789");
    std::fs::remove_dir_all(folder).unwrap();
}
