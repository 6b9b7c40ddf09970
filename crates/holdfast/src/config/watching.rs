//! Who may look at a group, and where: `group.watchers`, `[metrics]` and `[page]`, in files of
//! every kind.

use super::error::Findings;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use toml::Spanned;

/// Longest name of a group of users, in characters.
const GROUP_NAME_CHARS_MAX: usize = 32;

/// Where something is served to people and programs that look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Listen {
    /// Address and port; `[::]` is every address of the host, of both families.
    pub listen: SocketAddr,
}

/// All of it, as a daemon needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watching<'a> {
    /// The users' group that may read the state; without it, root only.
    pub watchers: Option<&'a str>,
    /// Where the counters are served to Prometheus.
    pub metrics: Option<Listen>,
    /// Where the live page is served.
    pub page: Option<Listen>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListen {
    listen: Spanned<String>,
}

/// Checks `[metrics]` and `[page]`. `taken` are addresses at which others listen, with who they are;
/// a port of 0 means every port there.
pub(super) fn check_listens(
    findings: &mut Findings,
    raw: [Option<RawListen>; 2],
    taken: &[(SocketAddr, &str)],
) -> [Option<Listen>; 2] {
    let spans = raw.each_ref().map(|raw| raw.as_ref().map(|raw| raw.listen.span()));
    let found = raw.map(|raw| check_listen(findings, &raw?.listen, taken));
    if let ([Some(metrics), Some(page)], [_, Some(at)]) = (found, spans)
        && collide(metrics.listen, page.listen)
    {
        findings.add(
            at,
            format!("metrics and page both listen at port {}", page.listen.port()),
            "give each a port of its own",
        );
    }
    found
}

fn check_listen(
    findings: &mut Findings,
    written: &Spanned<String>,
    taken: &[(SocketAddr, &str)],
) -> Option<Listen> {
    let text = written.get_ref();
    let port_alone = text.strip_prefix(':').and_then(|port| port.parse::<u16>().ok());
    let every = |port| SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
    let parsed = port_alone.map(every).or_else(|| text.parse().ok());
    let Some(listen) = parsed.filter(|at| at.port() != 0 && !at.ip().is_multicast()) else {
        findings.add(
            written.span(),
            format!("\"{text}\" is nowhere to listen"),
            "write \":9464\" for every address of the host, \"127.0.0.1:9464\" for the host itself \
             only, or one of its addresses with a port",
        );
        return None;
    };
    if let Some((_, who)) = taken.iter().find(|(at, _)| collide(*at, listen)) {
        findings.add(
            written.span(),
            format!("port {} is taken there, by {who}", listen.port()),
            "choose a port of its own",
        );
    }
    Some(Listen { listen })
}

/// Whether nobody can listen at one while somebody listens at the other.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let ports = one.port() == other.port() || one.port() == 0 || other.port() == 0;
    let is_every = |at: SocketAddr, of: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() && of.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    // An address of which every port is somebody's is not all of the host.
    let overlap = is_every(one, other) && other.port() != 0
        || is_every(other, one) && one.port() != 0
        || one.ip() == other.ip();
    ports && overlap
}

/// Checks `group.watchers`: whether this host has the group is known only when a daemon starts.
pub(super) fn check_watchers(
    findings: &mut Findings,
    written: Option<Spanned<String>>,
) -> Option<String> {
    let written = written?;
    let text = written.get_ref();
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > GROUP_NAME_CHARS_MAX || !text.chars().all(good) {
        findings.add(
            written.span(),
            format!("watchers = \"{text}\" cannot be the name of a group of users"),
            "write the name of a group of /etc/group, or leave it out: then only root may look",
        );
    }
    Some(written.into_inner())
}

#[cfg(test)]
mod tests {
    use super::super::GroupFile;
    use super::*;
    use std::path::Path;

    const EXAMPLES: [&str; 4] = [
        include_str!("../../../../docs/example.toml"),
        include_str!("../../../../docs/example-segment.toml"),
        include_str!("../../../../docs/example-spread.toml"),
        include_str!("../../../../docs/example-transit.toml"),
    ];

    fn watching(text: &str) -> Result<(Option<String>, Vec<Option<SocketAddr>>), String> {
        let file = GroupFile::parse(Path::new("/etc/x.toml"), text).map_err(|e| e.to_string())?;
        let Watching { watchers, metrics, page } = file.watching();
        let listens = [metrics, page].map(|it| it.map(|it| it.listen)).to_vec();
        Ok((watchers.map(str::to_owned), listens))
    }

    #[test]
    fn files_of_every_kind_say_who_may_look() {
        for example in EXAMPLES {
            assert_eq!(watching(example), Ok((None, vec![None, None])), "{example}");
            let text = example.replacen("[group]", "[group]\nwatchers = \"ops\"", 1)
                + "\n[metrics]\nlisten = \":9464\"\n[page]\nlisten = \"127.0.0.1:9465\"\n";
            let every: SocketAddr = "[::]:9464".parse().unwrap();
            let own: SocketAddr = "127.0.0.1:9465".parse().unwrap();
            let wanted = (Some("ops".to_owned()), vec![Some(every), Some(own)]);
            assert_eq!(watching(&text), Ok(wanted));
            let file = GroupFile::parse(Path::new("/etc/x.toml"), &text).unwrap();
            let effective = file.effective();
            // An arbiter is shown otherwise than it is written.
            if !effective.contains("[arbiter]") {
                assert_eq!(watching(&effective), watching(&text), "{effective}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        let table = |listen: &str| format!("{}\n[metrics]\nlisten = \"{listen}\"\n", EXAMPLES[0]);
        for bad in ["", ":", ":0", "9464", "host:9464", "224.0.0.1:80", "10.9.0.1"] {
            let errors = watching(&table(bad)).unwrap_err();
            assert!(errors.contains("is nowhere to listen"), "{bad}: {errors}");
        }
        let service: SocketAddr = {
            let file = GroupFile::parse(Path::new("/etc/x.toml"), EXAMPLES[0]).unwrap();
            file.replicated().unwrap().group.services[0]
        };
        for taken in [format!(":{}", service.port()), service.to_string()] {
            let errors = watching(&table(&taken)).unwrap_err();
            assert!(errors.contains("is taken there, by a service"), "{errors}");
        }
        let both = table(":9464") + "[page]\nlisten = \"127.0.0.1:9464\"\n";
        assert!(watching(&both).unwrap_err().contains("both listen at port 9464"));
        let named = EXAMPLES[0].replacen("[group]", "[group]\nwatchers = \"a b\"", 1);
        assert!(watching(&named).unwrap_err().contains("cannot be the name of a group"));
        let unknown = table(":9464").replace("listen = \":9464\"", "listen = \":9464\"\nx = 1");
        assert!(watching(&unknown).unwrap_err().contains("unknown key `x`"));
    }
}
