//! The group's file, from what a person wants and what the hosts are.

use crate::config::{Config, ConfigErrors, Run};
use crate::key::PublicKey;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// What a person wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The group's name.
    pub name: String,
    pub services: Vec<SocketAddr>,
    pub command: Vec<String>,
    /// User who runs the server.
    pub user: Option<String>,
    /// Folders in which the server keeps its state.
    pub state_dirs: Vec<PathBuf>,
    pub run: Run,
    /// What the host where `init` runs is to be.
    pub host: HostRole,
    /// Interfaces of an edge that face the clients, where a person has named them.
    pub clients: Vec<String>,
    pub keys: Keys,
}

/// By which secrets the hosts are to know each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// Each host makes its own, which never leaves it; the file has the public keys.
    #[default]
    OfEachHost,
    /// The host where `init` runs makes one, and gives it to the others.
    Shared,
}

/// What the host where `init` runs is to be; the two others are the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// It says which member goes on, and no packet of a client passes it.
    Witness,
    /// It stands between the clients and the members.
    Edge,
}

impl HostRole {
    /// As files and commands call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Witness => "witness",
            Self::Edge => "edge",
        }
    }
}

/// Everything that a file says.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    pub wish: &'a Wish,
    /// The host where `init` runs, as it calls itself.
    pub host: String,
    /// Where its daemon listens.
    pub listen: SocketAddr,
    /// Its public key; `None` where all hosts have the same key.
    pub public: Option<PublicKey>,
    /// Interfaces of an edge that face the clients.
    pub clients: Vec<String>,
    /// The bridge of an edge to which the members' ports belong.
    pub l3: Option<String>,
    pub members: Vec<MemberDraft>,
}

/// A member, as a file names it.
#[derive(Clone, Debug)]
pub struct MemberDraft {
    pub name: String,
    pub host: String,
    pub address: SocketAddr,
    pub public: Option<PublicKey>,
    pub interface: String,
    /// Port of the edge towards it, and its hardware address.
    pub port: Option<(String, String)>,
}

impl Wish {
    /// Checks all that a person has said, before anybody else is asked.
    ///
    /// # Errors
    /// What is wrong, as for any file.
    pub fn check(&self, path: &Path) -> Result<(), ConfigErrors> {
        Config::parse(path, &self.outline()).map(drop)
    }

    /// The file with hosts that nobody has (RFC 5737): what is known before the meeting.
    #[must_use]
    pub fn outline(&self) -> String {
        let is_edge = self.host == HostRole::Edge;
        let at = |last: u8| SocketAddr::from((IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), 7701));
        let member = |name: &str, last: u8| MemberDraft {
            name: name.to_owned(),
            host: name.to_owned(),
            address: at(last),
            public: None,
            interface: "eth0".to_owned(),
            port: is_edge.then(|| (format!("port{last}"), format!("02:00:00:00:00:0{last}"))),
        };
        let draft = Draft {
            wish: self,
            host: self.host.name().to_owned(),
            listen: at(1),
            public: None,
            clients: vec!["eth1".to_owned()],
            l3: None,
            members: vec![member("a", 2), member("b", 3)],
        };
        draft.text()
    }
}

impl Draft<'_> {
    /// The file's text. `key_file` is beside it, wherever a host keeps both.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.head();
        match self.wish.host {
            HostRole::Edge => self.push_edge(&mut text),
            HostRole::Witness => self.push_segment(&mut text),
        }
        for member in &self.members {
            push_member(member, &mut text);
        }
        self.push_server(&mut text);
        text
    }

    fn head(&self) -> String {
        let (name, host) = (&self.wish.name, &self.host);
        let members: Vec<&str> = self.members.iter().map(|it| it.name.as_str()).collect();
        let (front, more) = match self.wish.host {
            HostRole::Edge => (
                format!("behind the edge {host}"),
                "`holdfast config example` shows all that can be set.",
            ),
            HostRole::Witness => (
                format!("on one segment of the network; {host} is their\n# witness"),
                "`holdfast config example --segment` shows all that can be set, docs/SEGMENT.md says \
                 what the\n# network must do.",
            ),
        };
        let services: Vec<String> =
            self.wish.services.iter().map(|it| quoted(&it.to_string())).collect();
        let (same, beside) = match self.public {
            Some(_) => ("file is on all three hosts", "beside this file: each host has its own"),
            None => ("file and the same key are on all three hosts", "beside this file"),
        };
        let mut text = format!(
            "# One service, protected by the members {} {front}.\n# Made by `holdfast init`: the same \
             {same}, and each finds its\n# role by its addresses. {more}\n\n[group]\n",
            members.join(" and "),
        );
        push(&mut text, &format!("name = {}", quoted(name)), "");
        push(&mut text, &format!("key_file = {}", quoted(&format!("{name}.key"))), beside);
        let services = format!("services = [{}]", services.join(", "));
        push(&mut text, &services, "where clients connect: no host has this address of its own");
        push(&mut text, "# heartbeat_ms = 18", "three missed heartbeats declare a member dead");
        text
    }

    fn push_segment(&self, text: &mut String) {
        let name = &self.wish.name;
        *text += "\n[segment]\n";
        push(
            text,
            "# mode = \"flood\"",
            "clients' frames reach both members: the switch floods them.",
        );
        push(text, "#", "Where it does not: \"chain\", by way of the backup, or \"clone\"");
        *text += "\n[arbiter]\n";
        let witness = format!("witness = {}", quoted(&self.listen.to_string()));
        push(
            text,
            &witness,
            &format!("{}: asked once per takeover, not passed by clients", self.host),
        );
        let state_dir = format!("state_dir = {}", quoted(&format!("/var/lib/holdfast/{name}")));
        push(text, &state_dir, "what was granted, and seen of it; survives a reboot");
        push_public(self.public, text);
    }

    fn push_edge(&self, text: &mut String) {
        *text += "\n[edge]\n";
        let listen = format!("listen = {}", quoted(&self.listen.to_string()));
        push(text, &listen, &format!("{}: where the members reach the edge's daemon", self.host));
        push_public(self.public, text);
        let clients: Vec<String> = self.clients.iter().map(|it| quoted(it)).collect();
        push(
            text,
            &format!("clients = [{}]", clients.join(", ")),
            "interfaces that face the clients",
        );
        if let Some(l3) = &self.l3 {
            push(text, &format!("l3 = {}", quoted(l3)), "the members' ports belong to this bridge");
        }
        let state = format!(
            "# state_file = {}",
            quoted(&format!("/var/lib/holdfast/{}.epoch", self.wish.name))
        );
        push(text, &state, "must survive a reboot");
    }

    fn push_server(&self, text: &mut String) {
        let Wish { command, user, state_dirs, run, .. } = self.wish;
        let words: Vec<String> = command.iter().map(|it| quoted(it)).collect();
        *text += &format!("\n[server]\ncommand = [{}]\n", words.join(", "));
        if let Some(user) = user {
            push(text, &format!("user = {}", quoted(user)), "");
        }
        if !state_dirs.is_empty() {
            let dirs: Vec<String> =
                state_dirs.iter().map(|it| quoted(&it.to_string_lossy())).collect();
            let line = format!("state_dirs = [{}]", dirs.join(", "));
            push(text, &line, "a member that joins gets it, in place of what it had there");
        }
        match run {
            Run::Auto => {
                push(
                    text,
                    "# run = \"parallel\"",
                    "for a server of several processes (nginx, gunicorn)",
                );
            }
            other => {
                push(text, &format!("run = {}", quoted(other.word())), "its processes are one")
            }
        }
    }
}

fn push_member(member: &MemberDraft, text: &mut String) {
    let MemberDraft { name, host, address, public, interface, port } = member;
    *text += "\n[[member]]\n";
    push(text, &format!("name = {}", quoted(name)), if name == host { "" } else { host });
    let address = format!("address = {}", quoted(&address.to_string()));
    push(text, &address, "where the other hosts reach this one");
    push_public(*public, text);
    push(text, &format!("interface = {}", quoted(interface)), "carries the service");
    if let Some((edge_port, mac)) = port {
        push(
            text,
            &format!("edge_port = {}", quoted(edge_port)),
            "towards this member, on the edge",
        );
        push(text, &format!("mac = {}", quoted(mac)), "of `interface`");
    }
}

/// The public key of the host that the lines before are about, if it has a key of its own.
fn push_public(public: Option<PublicKey>, text: &mut String) {
    if let Some(public) = public {
        let line = format!("public_keys = [{}]", quoted(&public.to_string()));
        push(text, &line, "`holdfast key pub` says it of its key_file");
    }
}

/// A line with a comment in the column of the examples, or behind it where it is longer.
fn push(text: &mut String, line: &str, comment: &str) {
    const COLUMN: usize = 40;
    match comment {
        "" => *text += line,
        _ if line.len() < COLUMN => *text += &format!("{line:COLUMN$}# {comment}"),
        _ => *text += &format!("{line}   # {comment}"),
    }
    text.push('\n');
}

/// A string as TOML has it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Arbiter, Settings as _};
    use crate::key::GroupKey;

    fn wish(host: HostRole, services: &[&str]) -> Wish {
        Wish {
            name: "demo".to_owned(),
            services: services.iter().map(|it| it.parse().unwrap()).collect(),
            command: ["/usr/bin/redis-server", "--bind", "*", "--save", "", "a\"b\\c\n'"]
                .map(str::to_owned)
                .to_vec(),
            user: Some("redis".to_owned()),
            state_dirs: vec!["/var/lib/redis".into()],
            run: Run::Parallel,
            host,
            clients: Vec::new(),
            keys: Keys::default(),
        }
    }

    fn draft<'a>(wish: &'a Wish, hosts: [&str; 3]) -> Draft<'a> {
        let is_edge = wish.host == HostRole::Edge;
        let [host, a, b] = hosts;
        let member = |name: &str, at: &str| MemberDraft {
            name: name.to_owned(),
            host: format!("{name}.example.org"),
            address: at.parse().unwrap(),
            public: None,
            interface: format!("{name}0"),
            port: is_edge.then(|| (format!("e{name}"), format!("02:00:00:00:00:0{name}"))),
        };
        Draft {
            wish,
            host: "gamma".to_owned(),
            listen: host.parse().unwrap(),
            public: None,
            clients: vec!["ec".to_owned()],
            l3: is_edge.then(|| "br0".to_owned()),
            members: vec![member("a", a), member("b", b)],
        }
    }

    fn parse(draft: &Draft<'_>) -> Config {
        let text = draft.text();
        let parsed = Config::parse(Path::new("/etc/holdfast/demo.toml"), &text);
        parsed.unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    const V4: [&str; 3] = ["10.9.0.1:7700", "10.9.0.2:7701", "10.9.0.3:7701"];
    const V6: [&str; 3] = ["[fd09::1]:7700", "[fd09::2]:7701", "[fd09::3]:7701"];

    #[test]
    fn a_segment_is_what_was_wanted() {
        for (services, hosts) in [(vec!["10.9.0.100:6379"], V4), (vec!["[fd09::100]:6379"], V6)] {
            let wish = wish(HostRole::Witness, &services);
            let config = parse(&draft(&wish, hosts));
            assert_eq!(config.group.services, wish.services);
            assert_eq!(config.group.key_file, Path::new("/etc/holdfast/demo.key"));
            let witness = config.arbiter.as_ref().and_then(Arbiter::witness);
            assert_eq!(witness, Some(hosts[0].parse().unwrap()));
            assert_eq!(
                config.arbiter.as_ref().unwrap().state_dir,
                Path::new("/var/lib/holdfast/demo")
            );
            assert_eq!(config.members[1].address, hosts[2].parse().unwrap());
            assert_eq!(config.members[0].interface, "a0");
            assert!(config.segment.is_some() && config.edge.is_none());
            let server = &config.server;
            assert_eq!((&server.command, &server.user), (&wish.command, &wish.user));
            assert_eq!((&server.state_dirs, server.run), (&wish.state_dirs, wish.run));
        }
    }

    #[test]
    fn an_edge_is_what_was_wanted() {
        let both = vec!["10.9.0.100:80", "[fd09::100]:80"];
        for (services, hosts) in [(both, V4), (vec!["[fd09::100]:80"], V6)] {
            let wish = wish(HostRole::Edge, &services);
            let config = parse(&draft(&wish, hosts));
            let edge = config.edge.as_ref().unwrap();
            assert_eq!((edge.listen, edge.l3.as_deref()), (hosts[0].parse().unwrap(), Some("br0")));
            assert_eq!(edge.clients, ["ec"]);
            let ports: Vec<String> =
                config.ports().map(|it| format!("{} {}", it.edge_port, it.mac)).collect();
            assert_eq!(ports, ["ea 02:00:00:00:00:0a", "eb 02:00:00:00:00:0b"]);
            assert!(config.segment.is_none() && config.arbiter.is_none());
        }
    }

    #[test]
    fn each_host_has_the_public_key_that_it_has_told() {
        for (host, role) in [(HostRole::Witness, "witness"), (HostRole::Edge, "edge")] {
            let wish = wish(host, &["10.9.0.100:6379"]);
            let mut draft = draft(&wish, V4);
            let shared = draft.text();
            assert!(shared.contains("the same file and the same key are on all"), "{shared}");
            let publics = [(); 3].map(|()| GroupKey::generate().unwrap().public());
            draft.public = Some(publics[0]);
            draft.members[0].public = Some(publics[1]);
            draft.members[1].public = Some(publics[2]);
            let text = draft.text();
            assert!(!text.contains("same key"), "{text}");
            let config = parse(&draft);
            let of = |name: &str| config.public_keys().iter().find(|it| it.0 == name).unwrap().1[0];
            assert_eq!([role, "a", "b"].map(of), publics);
        }
    }

    #[test]
    fn what_a_person_says_wrong_is_said_before_anybody_joins() {
        let path = Path::new("/etc/holdfast/demo.toml");
        for host in [HostRole::Witness, HostRole::Edge] {
            let good = wish(host, &["10.9.0.100:6379"]);
            assert_eq!(good.check(path), Ok(()));
            let bad = [
                Wish { name: "De mo".to_owned(), ..good.clone() },
                Wish { services: Vec::new(), ..good.clone() },
                Wish { services: vec!["127.0.0.1:80".parse().unwrap()], ..good.clone() },
                Wish { command: Vec::new(), ..good.clone() },
                Wish { command: vec!["a\0b".to_owned()], ..good.clone() },
                Wish { user: Some(String::new()), ..good.clone() },
                Wish { state_dirs: vec!["relative".into()], ..good.clone() },
            ];
            for wish in bad {
                assert!(wish.check(path).is_err(), "{wish:?}");
            }
        }
    }
}
