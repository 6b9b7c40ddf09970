//! Who decides which member of a pair without an edge goes on, when they do not hear each other
//! (`[arbiter]`).

use super::super::checks::{check_address, number, unspecified};
use super::super::error::Findings;
use super::super::keys::{RawKeys, check_keys};
use super::Member;
use crate::key::PublicKey;
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Most addresses of an etcd: it has seven members at most.
const ETCD_MAX: usize = 7;

/// Who decides which of the members goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arbiter {
    pub kind: ArbiterKind,
    /// Folder in which a witness keeps what it has granted, and each member the newest of that
    /// which it has seen.
    pub state_dir: PathBuf,
    /// What a witness is known by, best first; empty where all hosts share one key file.
    pub public_keys: Vec<PublicKey>,
}

/// Whom the members ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArbiterKind {
    /// Where `holdfast witness` listens, on a third host.
    Witness(SocketAddr),
    Etcd(Etcd),
    /// Nobody: the members keep the record themselves, and a host that dies silently waits for an
    /// operator's word.
    None,
    /// The same, and a command switches the other host off first.
    Command(PowerOff),
    /// The same, and whoever reaches its router goes on. Both may.
    Gateway,
}

/// How the other member's host is switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerOff {
    /// A program and its first arguments; the other member's name is added.
    pub command: Vec<String>,
    /// Time that it has, in ms.
    pub timeout_ms: u64,
}

/// How etcd is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// Each `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// Certificates that its members' are signed with, PEM.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key with which a member shows itself, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User, and the file with its password.
    pub user: Option<(String, PathBuf)>,
}

impl Arbiter {
    /// The address of the witness, where one decides.
    #[must_use]
    pub fn witness(&self) -> Option<SocketAddr> {
        match self.kind {
            ArbiterKind::Witness(at) => Some(at),
            _ => None,
        }
    }

    /// Whether the members keep the record themselves.
    #[must_use]
    pub fn is_own(&self) -> bool {
        !matches!(self.kind, ArbiterKind::Witness(_) | ArbiterKind::Etcd(_))
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.kind {
            ArbiterKind::Witness(_) => "witness",
            ArbiterKind::Etcd(_) => "etcd",
            ArbiterKind::None => "none",
            ArbiterKind::Command(_) => "command",
            ArbiterKind::Gateway => "gateway",
        }
    }

    /// Where it is, as the file says.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.kind {
            ArbiterKind::Witness(at) => at.to_string(),
            ArbiterKind::Etcd(etcd) => etcd.endpoints.join(", "),
            ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => {
                self.state_dir.display().to_string()
            }
        }
    }
}

/// As the file says it.
#[derive(Default, Serialize)]
struct Told<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_ca_file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_cert_file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_key_file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_password_file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    none: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<&'a str>,
    state_dir: Option<&'a Path>,
    #[serde(skip_serializing_if = "<[PublicKey]>::is_empty")]
    public_keys: &'a [PublicKey],
}

impl Serialize for Arbiter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state_dir = Some(self.state_dir.as_path());
        let told = match &self.kind {
            ArbiterKind::Witness(at) => Told { witness: Some(*at), ..Told::default() },
            ArbiterKind::Etcd(etcd) => Told {
                etcd: Some(&etcd.endpoints),
                etcd_ca_file: etcd.ca_file.as_deref(),
                etcd_cert_file: etcd.identity.as_ref().map(|(cert, _)| cert.as_path()),
                etcd_key_file: etcd.identity.as_ref().map(|(_, key)| key.as_path()),
                etcd_user: etcd.user.as_ref().map(|(user, _)| user.as_str()),
                etcd_password_file: etcd.user.as_ref().map(|(_, file)| file.as_path()),
                ..Told::default()
            },
            ArbiterKind::None => Told { none: Some(true), ..Told::default() },
            ArbiterKind::Command(off) => Told {
                command: Some(&off.command),
                command_timeout_ms: Some(off.timeout_ms),
                ..Told::default()
            },
            ArbiterKind::Gateway => Told { gateway: Some(UNSAFE), ..Told::default() },
        };
        Told { state_dir, public_keys: &self.public_keys, ..told }.serialize(serializer)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArbiter {
    witness: Option<Spanned<String>>,
    etcd: Option<Spanned<Vec<Spanned<String>>>>,
    etcd_ca_file: Option<PathBuf>,
    etcd_cert_file: Option<PathBuf>,
    etcd_key_file: Option<PathBuf>,
    etcd_user: Option<String>,
    etcd_password_file: Option<PathBuf>,
    none: Option<Spanned<bool>>,
    command: Option<Spanned<Vec<String>>>,
    command_timeout_ms: Option<Spanned<u64>>,
    gateway: Option<Spanned<String>>,
    state_dir: Option<Spanned<PathBuf>>,
    public_keys: RawKeys,
}

/// The word that a gateway needs.
const UNSAFE: &str = "unsafe";
/// The choices there are, each with a line of the file.
pub(super) const CHOICES: &str = "write [arbiter], and below it one of: witness = \"10.9.0.9:7702\" (`holdfast \
    witness` on any third host), etcd = [\"https://10.9.0.4:2379\", ...] (an etcd that runs already), \
    command = [\"/usr/local/sbin/power-off\"] (switches the other host off), none = true (after a silent \
    death an operator says who goes on), gateway = \"unsafe\" (whoever reaches its router: two may)";
/// Time that a command has, and the longest there can be, in ms.
const COMMAND_MS: u64 = 60_000;
const COMMAND_MS_MAX: RangeInclusive<u64> = 1..=600_000;

pub(super) fn check(
    findings: &mut Findings,
    raw: Spanned<RawArbiter>,
    members: &[Member],
    folder: &Path,
) -> Arbiter {
    let span = raw.span();
    let mut raw = raw.into_inner();
    let public_keys = check_public_keys(findings, &mut raw);
    let state_dir = check_state_dir(findings, raw.state_dir.as_ref());
    let others = [
        ("etcd_ca_file", raw.etcd_ca_file.is_some()),
        ("etcd_cert_file", raw.etcd_cert_file.is_some()),
        ("etcd_key_file", raw.etcd_key_file.is_some()),
        ("etcd_user", raw.etcd_user.is_some()),
        ("etcd_password_file", raw.etcd_password_file.is_some()),
    ];
    if raw.etcd.is_none()
        && let Some((key, _)) = others.iter().find(|(_, is_there)| *is_there)
    {
        let remedy = format!("remove {key}, or name etcd = [\"https://...\"]");
        findings.add(span.clone(), format!("{key} means nothing without etcd"), remedy);
    }
    let is_none = raw.none.as_ref().is_some_and(|none| *none.get_ref());
    let named = [
        ("witness", raw.witness.is_some()),
        ("etcd", raw.etcd.is_some()),
        ("command", raw.command.is_some()),
        ("none", is_none),
        ("gateway", raw.gateway.is_some()),
    ];
    let named: Vec<&str> = named.iter().filter(|it| it.1).map(|it| it.0).collect();
    if raw.command.is_none()
        && let Some(limit) = &raw.command_timeout_ms
    {
        let message = "command_timeout_ms means nothing without command";
        findings.add(limit.span(), message, "remove it, or name command = [\"...\"]");
    }
    let kind = match named[..] {
        ["witness"] => raw.witness.map(|it| check_witness(findings, &it, members)),
        ["etcd"] => Some(ArbiterKind::Etcd(check_etcd(findings, raw, folder, &span))),
        ["command"] => raw.command.map(|it| check_command(findings, it, raw.command_timeout_ms)),
        ["none"] => Some(ArbiterKind::None),
        ["gateway"] => raw.gateway.map(|it| check_gateway(findings, &it)),
        [] => {
            findings.add(span, "[arbiter] names nobody who says which member goes on", CHOICES);
            None
        }
        _ => {
            let keep = format!("keep one of: {}", named.join(", "));
            findings.add(span, "[arbiter] names more than one of them", keep);
            None
        }
    };
    Arbiter { kind: kind.unwrap_or(ArbiterKind::Witness(unspecified())), state_dir, public_keys }
}

/// Checks the keys of a witness; nobody else that can be asked has any.
fn check_public_keys(findings: &mut Findings, raw: &mut RawArbiter) -> Vec<PublicKey> {
    let written = raw.public_keys.take();
    if let Some(written) = written.as_ref().filter(|_| raw.witness.is_none()) {
        let message = "public_keys means nothing without a witness";
        findings.add(written.span(), message, "remove it: it is what a witness is known by");
    }
    check_keys(findings, written)
}

fn check_state_dir(findings: &mut Findings, written: Option<&Spanned<PathBuf>>) -> PathBuf {
    let Some(written) = written else { return PathBuf::from("/var/lib/holdfast/witness") };
    if !written.get_ref().is_absolute() {
        findings.add(
            written.span(),
            "state_dir is not an absolute path",
            "start it with a slash; it is a folder on a disk of each host",
        );
    }
    written.get_ref().clone()
}

fn check_command(
    findings: &mut Findings,
    command: Spanned<Vec<String>>,
    limit: Option<Spanned<u64>>,
) -> ArbiterKind {
    if !command.get_ref().first().is_some_and(|program| Path::new(program).is_absolute()) {
        let remedy = "write its whole path: command = [\"/usr/local/sbin/power-off\"]";
        findings.add(command.span(), "command names no program by its path", remedy);
    }
    let timeout_ms =
        number(findings, "command_timeout_ms", limit, COMMAND_MS, COMMAND_MS_MAX, "milliseconds");
    ArbiterKind::Command(PowerOff { command: command.into_inner(), timeout_ms })
}

fn check_gateway(findings: &mut Findings, word: &Spanned<String>) -> ArbiterKind {
    if word.get_ref() != UNSAFE {
        let message = format!("gateway = \"{}\" does not say what it is", word.get_ref());
        let remedy = "write gateway = \"unsafe\": where both members reach the router and not each \
                      other, both serve";
        findings.add(word.span(), message, remedy);
    }
    ArbiterKind::Gateway
}

fn check_witness(
    findings: &mut Findings,
    written: &Spanned<String>,
    members: &[Member],
) -> ArbiterKind {
    let witness = check_address(findings, written);
    let shares = |it: &&Member| witness.is_some_and(|at| at.ip() == it.address.ip());
    if let Some(member) = members.iter().find(shares) {
        findings.add(
            written.span(),
            format!("{} is the address of {}, too", member.address.ip(), member.name),
            "the witness runs on a third host: it decides when one of the members is gone",
        );
    }
    ArbiterKind::Witness(witness.unwrap_or_else(unspecified))
}

fn check_etcd(
    findings: &mut Findings,
    raw: RawArbiter,
    folder: &Path,
    span: &Range<usize>,
) -> Etcd {
    let written = raw.etcd.expect("it was looked at");
    let count = written.get_ref().len();
    if count == 0 || count > ETCD_MAX {
        findings.add(
            written.span(),
            format!("etcd lists {count} addresses"),
            format!("name the client URLs of its 1 to {ETCD_MAX} members"),
        );
    }
    for url in written.get_ref() {
        check_url(findings, url);
        if url.get_ref().starts_with("https:") && raw.etcd_ca_file.is_none() {
            let remedy = "add etcd_ca_file, what the certificates of its members are signed with";
            findings.add(url.span(), "https without etcd_ca_file", remedy);
        }
    }
    let pairs = [
        (
            "etcd_cert_file",
            raw.etcd_cert_file.is_some(),
            "etcd_key_file",
            raw.etcd_key_file.is_some(),
        ),
        (
            "etcd_user",
            raw.etcd_user.is_some(),
            "etcd_password_file",
            raw.etcd_password_file.is_some(),
        ),
    ];
    for (one, has_one, other, has_other) in pairs {
        if has_one != has_other {
            let (named, missing) = if has_one { (one, other) } else { (other, one) };
            let message = format!("{named} without {missing}");
            findings.add(span.clone(), message, format!("add {missing}, or remove {named}"));
        }
    }
    let path = |it: PathBuf| folder.join(it);
    Etcd {
        endpoints: written.into_inner().into_iter().map(trimmed).collect(),
        ca_file: raw.etcd_ca_file.map(path),
        identity: raw.etcd_cert_file.map(path).zip(raw.etcd_key_file.map(path)),
        user: raw.etcd_user.zip(raw.etcd_password_file.map(path)),
    }
}

fn trimmed(url: Spanned<String>) -> String {
    url.into_inner().trim_end_matches('/').to_owned()
}

fn check_url(findings: &mut Findings, url: &Spanned<String>) {
    let text = url.get_ref();
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let has_port = |host: &str| {
        host.trim_end_matches('/').rsplit_once(':').is_some_and(|(name, port)| {
            !name.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        })
    };
    // A password does not belong where everybody reads it.
    let is_plain = |host: &str| !host.trim_end_matches('/').contains(['/', '@', '?', '#', ' ']);
    if !host.is_some_and(|host| is_plain(host) && has_port(host)) {
        findings.add(
            url.span(),
            format!("\"{text}\" is not the address of a member of etcd"),
            "write its client URL: \"https://10.9.0.4:2379\" or \"http://[fd09::4]:2379\"",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigErrors, Settings as _};
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../docs/example-segment.toml");
    const WITNESS: &str = "witness = \"10.9.0.9:7702\"";

    fn parse(lines: &str) -> Result<Config, ConfigErrors> {
        let text = EXAMPLE.replacen(WITNESS, lines, 1);
        assert!(EXAMPLE.contains(WITNESS));
        Config::parse(Path::new("/etc/holdfast/demo.toml"), &text)
    }

    #[test]
    fn an_etcd_is_asked_as_the_file_says() {
        let plain = parse("etcd = [\"http://10.9.0.4:2379/\"]").unwrap().arbiter.clone().unwrap();
        let ArbiterKind::Etcd(etcd) = &plain.kind else { panic!("{plain:?}") };
        assert_eq!(etcd.endpoints, ["http://10.9.0.4:2379"]);
        assert_eq!((plain.name(), plain.witness()), ("etcd", None));
        let whole = "etcd = [\"https://[fd09::4]:2379\", \"https://etcd-2.lan:2379\"]\n\
            etcd_ca_file = \"ca.pem\"\netcd_cert_file = \"c.pem\"\netcd_key_file = \"c.key\"\n\
            etcd_user = \"pair\"\netcd_password_file = \"/etc/password\"\n";
        let whole = parse(whole).unwrap();
        assert!(!whole.roles().iter().any(|(name, _)| name == "witness"));
        let whole = whole.arbiter.clone().unwrap();
        assert_eq!(whole.place(), "https://[fd09::4]:2379, https://etcd-2.lan:2379");
        let ArbiterKind::Etcd(etcd) = whole.kind else { panic!("{whole:?}") };
        assert_eq!(etcd.ca_file, Some("/etc/holdfast/ca.pem".into()));
        let identity = ("/etc/holdfast/c.pem".into(), "/etc/holdfast/c.key".into());
        assert_eq!(etcd.identity, Some(identity));
        assert_eq!(etcd.user, Some(("pair".to_owned(), "/etc/password".into())));
    }

    #[test]
    fn a_pair_without_a_third_party_says_how() {
        let kind = |lines: &str| parse(lines).expect(lines).arbiter.clone().expect(lines);
        let none = kind("none = true");
        assert_eq!((none.name(), none.is_own(), none.witness()), ("none", true, None));
        assert_eq!(kind("gateway = \"unsafe\"").kind, ArbiterKind::Gateway);
        let off = kind("command = [\"/bin/off\", \"-v\"]\ncommand_timeout_ms = 900").kind;
        let command = ["/bin/off", "-v"].map(str::to_owned).to_vec();
        assert_eq!(off, ArbiterKind::Command(PowerOff { command, timeout_ms: 900 }));
        assert!(!kind("witness = \"10.9.0.9:7702\"").is_own());
    }

    #[test]
    fn what_is_shown_can_be_read() {
        for lines in [
            WITNESS,
            "none = true",
            "gateway = \"unsafe\"",
            "command = [\"/bin/off\", \"-v\"]\ncommand_timeout_ms = 900",
            "etcd = [\"https://a:1\"]\netcd_ca_file = \"ca.pem\"\netcd_cert_file = \"c.pem\"\n\
             etcd_key_file = \"c.key\"\netcd_user = \"u\"\netcd_password_file = \"/p\"",
        ] {
            let config = parse(lines).expect(lines);
            let path = Path::new("/etc/holdfast/demo.toml");
            let again = Config::parse(path, &config.effective()).expect(lines);
            assert_eq!(again.arbiter, config.arbiter, "{lines}");
        }
    }

    #[test]
    fn who_decides_is_named_once_and_well() {
        let cases = [
            ("", "[arbiter] names nobody", "witness = "),
            ("etcd = []", "etcd lists 0 addresses", "client URLs"),
            ("etcd = [\"10.9.0.4:2379\"]", "not the address of a member of etcd", "https://"),
            ("etcd = [\"http://10.9.0.4\"]", "not the address of a member of etcd", "2379"),
            ("etcd = [\"http://a:1/v3\"]", "not the address of a member of etcd", "2379"),
            ("etcd = [\"http://u:p@a:1\"]", "not the address of a member of etcd", "2379"),
            ("etcd = [\"https://a:1\"]", "https without etcd_ca_file", "signed"),
            ("etcd = [\"http://a:1\"]\netcd_user = \"u\"", "etcd_user without", "password_file"),
            (
                "etcd = [\"http://a:1\"]\netcd_key_file = \"k\"",
                "etcd_key_file without etcd_cert_file",
                "add etcd_cert_file",
            ),
            ("witness = \"10.9.0.9:1\"\netcd_user = \"u\"", "means nothing without etcd", "remove"),
            (
                "witness = \"10.9.0.9:1\"\netcd = [\"http://a:1\"]",
                "names more than one of them",
                "keep one of: witness, etcd",
            ),
            ("none = false", "[arbiter] names nobody", "none = true"),
            (
                "none = true\nwitness = \"10.9.0.9:1\"",
                "more than one",
                "keep one of: witness, none",
            ),
            ("command = []", "names no program", "whole path"),
            ("command = [\"power-off\"]", "names no program by its path", "whole path"),
            (
                "command = [\"/bin/off\"]\ncommand_timeout_ms = 0",
                "command_timeout_ms = 0",
                "600000",
            ),
            ("none = true\ncommand_timeout_ms = 9", "means nothing without command", "remove it"),
            ("gateway = \"safe\"", "does not say what it is", "gateway = \"unsafe\""),
            ("etdc = [\"http://a:1\"]", "unknown key `etdc`", "did you mean `etcd`?"),
        ];
        for (lines, expected, remedy) in cases {
            let shown = parse(lines).expect_err(lines).to_string();
            assert!(shown.contains(expected) && shown.contains(remedy), "{lines}: {shown}");
        }
    }
}
