//! The groups that a host has already: their files lie beside the one that is to be made. Two groups
//! cannot have one service, nor can a member of one give its interface to another.

use super::facts::{Facts, host_name};
use super::meeting::Lack;
use crate::config::{GroupFile, files_in};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A group whose file lies in the folder.
#[derive(Clone, Debug)]
struct Neighbour {
    file: GroupFile,
    /// Interfaces of this host that are the group's, by the role that this host has in it.
    interfaces: Vec<String>,
}

/// All of them, as one host sees them.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// As the host calls itself.
    host: String,
    /// Other groups than the one that is to be made.
    others: Vec<Neighbour>,
    /// The file of this name that is to be replaced.
    former: Option<Neighbour>,
}

impl Neighbours {
    /// Reads the files in `folder`; `own` is the name of the group that is to be made. A file that no
    /// daemon could read belongs to nobody.
    #[must_use]
    pub fn of(folder: &Path, own: &str) -> Self {
        let all = files_in(folder).into_iter().filter_map(|path| Neighbour::load(&path));
        let is_own = |it: &Neighbour| it.file.path().file_stem().is_some_and(|stem| stem == own);
        let (own, others): (Vec<_>, Vec<_>) = all.partition(is_own);
        Self { host: host_name(), others, former: own.into_iter().next() }
    }

    /// Ports of the other groups, whose daemons may not run at the moment.
    #[must_use]
    pub fn ports(&self) -> BTreeSet<u16> {
        self.others.iter().flat_map(|it| ports_of(&it.file)).collect()
    }

    /// A service that another group's file has already.
    #[must_use]
    pub fn with_service(&self, services: &[SocketAddr]) -> Option<Lack> {
        self.others.iter().find_map(|it| {
            let service = services.iter().find(|service| it.serves(service))?;
            let (file, host, group) = (it.path(), &self.host, it.file.name());
            Some(Lack::new(
                format!("{file} of {host} has this service, {service}, already: it is the group `{group}`'s"),
                format!(
                    "give the new group another address (--service); or end `{group}` on each of its hosts, \
                     `holdfast down --stop --config {file}`, and remove that file"
                ),
            ))
        })
    }

    /// An interface that is another group's.
    #[must_use]
    pub fn with_interface(&self, names: &[&str]) -> Option<Lack> {
        self.others.iter().find_map(|it| {
            let name = names.iter().find(|name| it.interfaces.iter().any(|has| has == *name))?;
            let (file, host, group) = (it.path(), &self.host, it.file.name());
            Some(Lack::new(
                format!(
                    "{name} of {host} carries the group `{group}` ({file}), and an interface has room for \
                     one group"
                ),
                "choose another host or another interface for the new group (join --interface NAME; of an \
                 edge: init --clients NAME)",
            ))
        })
    }

    /// An address of a service that is this host's already, and whose it is.
    #[must_use]
    pub fn with_address(&self, services: &[SocketAddr], facts: &Facts) -> Option<Lack> {
        let address = services.iter().map(SocketAddr::ip).find(|it| facts.has(*it))?;
        let host = &self.host;
        let has = |it: &&Neighbour| it.addresses().contains(&address);
        if let Some(it) = self.others.iter().find(has) {
            return Some(Lack::new(
                format!(
                    "{address} is an address of {host}, put there for the group `{}` ({})",
                    it.file.name(),
                    it.path()
                ),
                "leave it there, and give the new group another address (--service)",
            ));
        }
        if let Some(it) = self.former.as_ref().filter(has) {
            let file = it.path();
            return Some(Lack::new(
                format!(
                    "{address} is an address of {host}: its group `{}` runs ({file})",
                    it.file.name()
                ),
                format!(
                    "end its daemon first: `holdfast down --stop --config {file}` there; then begin again"
                ),
            ));
        }
        Some(Lack::new(
            format!("{address} is an address of {host}, and no host may have it of its own"),
            "give the service another one, or take it away there (`ip address del`), unless a group of \
             Holdfast has put it there: `holdfast top` lists those that run",
        ))
    }

    /// What keeps this host from being a member of a group with these services.
    #[must_use]
    pub fn against(&self, services: &[SocketAddr], facts: &Facts) -> Option<Lack> {
        let carrier = || facts.carrier(services.first()?.ip()).ok();
        self.with_service(services)
            .or_else(|| self.with_address(services, facts))
            .or_else(|| self.with_interface(&[&carrier()?.name]))
    }
}

impl Neighbour {
    fn load(path: &Path) -> Option<Self> {
        let file = GroupFile::load(path).ok()?;
        // A file that only lies there takes nothing.
        let role = file.role_of_daemon(None).ok();
        let interfaces = role.map(|role| interfaces_of(&file, &role)).unwrap_or_default();
        Some(Self { file, interfaces })
    }

    fn path(&self) -> std::path::Display<'_> {
        self.file.path().display()
    }

    /// Addresses of its services.
    fn addresses(&self) -> Vec<IpAddr> {
        match &self.file {
            GroupFile::Replicated(config) => {
                config.group.services.iter().map(SocketAddr::ip).collect()
            }
            GroupFile::Spread(config) => config.group.addresses.clone(),
            GroupFile::Transit(_) => Vec::new(),
        }
    }

    /// Whether it has the service: a spread group has every port of its addresses.
    fn serves(&self, service: &SocketAddr) -> bool {
        match &self.file {
            GroupFile::Replicated(config) => config.group.services.contains(service),
            _ => self.addresses().contains(&service.ip()),
        }
    }
}

/// Interfaces of the host with this role that a pair's programs hang at. Groups of other kinds may
/// share one with it.
fn interfaces_of(file: &GroupFile, role: &str) -> Vec<String> {
    let GroupFile::Replicated(config) = file else { return Vec::new() };
    match (&config.edge, config.members.iter().find(|it| it.name == role)) {
        (_, Some(member)) => vec![member.interface.clone()],
        (Some(edge), None) if role == "edge" => {
            let ports = config.ports().map(|it| it.edge_port.clone());
            edge.clients.iter().cloned().chain(ports).collect()
        }
        _ => Vec::new(),
    }
}

fn ports_of(file: &GroupFile) -> Vec<u16> {
    let GroupFile::Replicated(config) = file else { return Vec::new() };
    // The lease is at the port above a member's.
    let members = config.members.iter().map(|it| it.address.port());
    let mut ports: Vec<u16> = members.flat_map(|port| [port, port.saturating_add(1)]).collect();
    ports.extend(config.edge.iter().map(|it| it.listen.port()));
    ports.extend(config.arbiter.iter().filter_map(|it| it.witness()).map(|it| it.port()));
    ports
}

#[cfg(test)]
mod tests {
    use super::super::facts::{LinkFacts, Network};
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A folder with the file of a pair whose member `a` this host is, and of a spread group.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let own = format!("holdfast-neighbours-{name}-{}", std::process::id());
            let folder = Self(std::env::temp_dir().join(own));
            fs::create_dir_all(&folder.0).unwrap();
            let example = include_str!("../../../../docs/example-segment.toml");
            let own = format!("[group]\nrun_dir = {:?}", folder.0);
            fs::write(folder.0.join("demo.toml"), example.replace("[group]", &own)).unwrap();
            // By the socket of its daemon this host knows who it is.
            fs::write(folder.0.join("a.sock"), "").unwrap();
            let spread = include_str!("../../../../docs/example-spread.toml");
            fs::write(folder.0.join("web.toml"), spread.replace("10.9.0.", "10.8.0.")).unwrap();
            fs::write(folder.0.join(".new.toml"), example).unwrap();
            fs::write(folder.0.join("broken.toml"), "[group]").unwrap();
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn services(text: &str) -> [SocketAddr; 1] {
        [text.parse().unwrap()]
    }

    /// A host with one interface and these addresses.
    fn facts(interface: &str, addresses: &[&str]) -> Facts {
        let networks =
            addresses.iter().map(|it| Network { address: it.parse().unwrap(), prefix: 24 });
        let networks: Vec<Network> = networks.collect();
        let link = LinkFacts { name: interface.to_owned(), mac: [2; 6], networks };
        Facts {
            host: "alpha".to_owned(),
            address: addresses[0].parse().unwrap(),
            links: vec![link],
            chosen: None,
            taken: BTreeSet::new(),
        }
    }

    #[test]
    fn what_another_group_has_is_refused_by_its_files_name() {
        let folder = Folder::new("refused");
        let all = Neighbours::of(&folder.0, "new");
        let told = |service: &str, facts: &Facts| {
            let lack = all.against(&services(service), facts);
            lack.map(|it| it.to_string()).unwrap_or_default()
        };
        let free = facts("eth7", &["10.9.0.2"]);
        assert_eq!(told("10.9.0.101:6379", &free), "");
        let same = told("10.9.0.100:6379", &free);
        assert!(same.contains("demo.toml of") && same.contains("has this service"), "{same}");
        // The example has p0 for its member `a`.
        let interface = told("10.9.0.101:6379", &facts("p0", &["10.9.0.2"]));
        assert!(interface.contains("p0 of") && interface.contains("demo.toml"), "{interface}");
        assert_eq!(told("10.9.0.101:6379", &facts("b0", &["10.9.0.2"])), "", "the other's");
    }

    #[test]
    fn an_address_that_a_group_has_put_there_is_not_to_be_taken_away() {
        let folder = Folder::new("address");
        let running = facts("eth7", &["10.9.0.2", "10.9.0.100"]);
        let told = |own: &str, service: &str| {
            let all = Neighbours::of(&folder.0, own);
            all.with_address(&services(service), &running).map(|it| it.to_string())
        };
        assert_eq!(told("new", "10.9.0.101:1"), None);
        for own in ["new", "demo"] {
            let told = told(own, "10.9.0.100:1").expect("it is there");
            assert!(told.contains("`demo`") && told.contains("demo.toml"), "{told}");
            assert!(!told.contains("ip address del"), "{told}");
        }
        let strange = told("new", "10.9.0.2:1").expect("its own");
        assert!(strange.contains("unless a group of Holdfast has put it there"), "{strange}");
    }
}
