//! The three kinds of groups, and a file of any of them.

use super::error::ConfigErrors;
use super::spread::SpreadConfig;
use super::transit::TransitConfig;
use super::{Config, read_limited};
use crate::key::GroupKey;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What a group does behind its edge: `group.kind` of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A primary and its backup; the default.
    #[default]
    Replicated,
    /// Many host servers behind one service address (HYDRANET).
    Spread,
    /// Strings of middleboxes between a pair of edges (HALR, PFRC).
    Transit,
}

impl Kind {
    /// Their names in files.
    pub const NAMES: [&'static str; 3] = ["replicated", "spread", "transit"];
}

/// The kind that `text` names. Whatever cannot be understood is a replicated
/// group's, whose reader then says what is wrong with it.
#[must_use]
pub fn kind_of(text: &str) -> Kind {
    #[derive(Deserialize)]
    struct OnlyKind {
        group: OnlyGroup,
    }
    #[derive(Deserialize)]
    struct OnlyGroup {
        kind: Option<String>,
    }
    let found = toml::from_str::<OnlyKind>(text).ok().and_then(|file| file.group.kind);
    match found.as_deref() {
        Some("spread") => Kind::Spread,
        Some("transit") => Kind::Transit,
        _ => Kind::Replicated,
    }
}

/// A checked file of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupFile {
    Replicated(Box<Config>),
    Spread(Box<SpreadConfig>),
    Transit(Box<TransitConfig>),
}

impl GroupFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place and a remedy.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = read_limited(path).map_err(|e| ConfigErrors(vec![e]))?;
        Self::parse(path, &text)
    }

    /// Checks `text` as if it had been read from `path`.
    ///
    /// # Errors
    /// As [`GroupFile::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        Ok(match kind_of(text) {
            Kind::Replicated => Self::Replicated(Box::new(Config::parse(path, text)?)),
            Kind::Spread => Self::Spread(Box::new(SpreadConfig::parse(path, text)?)),
            Kind::Transit => Self::Transit(Box::new(TransitConfig::parse(path, text)?)),
        })
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Replicated(_) => Kind::Replicated,
            Self::Spread(_) => Kind::Spread,
            Self::Transit(_) => Kind::Transit,
        }
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Replicated(config) => &config.group.name,
            Self::Spread(config) => &config.group.name,
            Self::Transit(config) => &config.group.name,
        }
    }

    /// What the group is for, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        let list = |items: Vec<String>| items.join(", ");
        match self {
            Self::Replicated(config) => format!(
                "protects {}",
                list(config.group.services.iter().map(ToString::to_string).collect())
            ),
            Self::Spread(config) => format!(
                "spreads {} over {} host servers",
                list(config.group.addresses.iter().map(ToString::to_string).collect()),
                config.hosts.len()
            ),
            Self::Transit(config) => format!(
                "keeps flows on {}",
                list(config.strings.iter().map(|string| string.name.clone()).collect())
            ),
        }
    }

    /// The file with every default written out.
    #[must_use]
    pub fn effective(&self) -> String {
        match self {
            Self::Replicated(config) => config.effective(),
            Self::Spread(config) => config.effective(),
            Self::Transit(config) => config.effective(),
        }
    }

    /// Reads the group's key, which must be readable by its owner only.
    ///
    /// # Errors
    /// One error that points at `key_file`.
    pub fn key(&self) -> Result<GroupKey, ConfigErrors> {
        match self {
            Self::Replicated(config) => config.key(),
            Self::Spread(config) => config.key(),
            Self::Transit(config) => config.key(),
        }
    }

    /// The role that was asked for, or the one whose address this host has.
    ///
    /// # Errors
    /// A sentence that lists the roles there are.
    pub fn role(&self, asked: Option<&str>) -> Result<String, String> {
        match self {
            Self::Replicated(config) => {
                let role = match asked {
                    Some(name) => config.role(name),
                    None => config.role_of_this_host(),
                };
                role.map(|role| config.role_name(role).to_owned())
            }
            Self::Spread(config) => choose_role(&config.roles(), asked),
            Self::Transit(config) => choose_role(&config.roles(), asked),
        }
    }

    /// The admin socket of the daemon with this role.
    #[must_use]
    pub fn admin_socket(&self, role: &str) -> PathBuf {
        admin_socket(self.run_dir(), role)
    }

    /// Where the daemon with this role pins its eBPF programs and maps.
    #[must_use]
    pub fn pin_dir(&self, role: &str) -> PathBuf {
        pin_dir(self.run_dir(), role)
    }

    fn run_dir(&self) -> &Path {
        match self {
            Self::Replicated(config) => &config.group.run_dir,
            Self::Spread(config) => &config.group.run_dir,
            Self::Transit(config) => &config.group.run_dir,
        }
    }

    /// The replicated group's file, for verbs that only such groups have.
    ///
    /// # Errors
    /// A sentence that says so.
    pub fn replicated(self) -> Result<Config, String> {
        match self {
            Self::Replicated(config) => Ok(*config),
            Self::Spread(_) | Self::Transit(_) => Err(format!(
                "`{}` is not a replicated group, and this verb is for replicated groups",
                self.name()
            )),
        }
    }
}

/// The admin socket of the daemon with this role.
pub(crate) fn admin_socket(run_dir: &Path, role: &str) -> PathBuf {
    run_dir.join(format!("{role}.sock"))
}

/// Where the daemon with this role pins its eBPF programs and maps.
pub(crate) fn pin_dir(run_dir: &Path, role: &str) -> PathBuf {
    run_dir.join(format!("bpf-{role}"))
}

/// The role called `asked`, or the only one of which this host has an address.
/// `roles` are names, each with addresses by which its host is known.
///
/// # Errors
/// A sentence that lists the roles, or asks for `--role`.
pub fn choose_role(roles: &[(String, Vec<IpAddr>)], asked: Option<&str>) -> Result<String, String> {
    let names =
        |glue: &str| roles.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(glue);
    if let Some(asked) = asked {
        return match roles.iter().any(|(name, _)| name == asked) {
            true => Ok(asked.to_owned()),
            false => Err(format!("there is no role `{asked}`; this file has: {}", names(", "))),
        };
    }
    let is_local = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
    let local: Vec<&String> = roles
        .iter()
        .filter(|(_, addresses)| addresses.iter().any(is_local))
        .map(|(name, _)| name)
        .collect();
    match local[..] {
        [role] => Ok(role.clone()),
        [] => Err(format!(
            "none of the group's addresses belongs to this host; say which role it has: --role {}",
            names("|")
        )),
        _ => Err(format!("several roles have an address here; choose one: --role {}", names("|"))),
    }
}

/// Complains about a `kind` that the reader of `wanted` was given by mistake.
pub(super) fn check_kind(
    findings: &mut super::error::Findings,
    written: Option<&Spanned<String>>,
    wanted: &str,
) {
    let Some(written) = written.filter(|kind| kind.get_ref() != wanted) else { return };
    findings.add(
        written.span(),
        format!("there is no kind of group called `{}`", written.get_ref()),
        format!("one of: {}; without `kind`, replicated", Kind::NAMES.join(", ")),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_read_before_the_rest() {
        assert_eq!(kind_of("[group]\nkind = \"spread\"\n[nonsense]\nx = 1"), Kind::Spread);
        assert_eq!(kind_of("[group]\nkind = \"transit\""), Kind::Transit);
        assert_eq!(kind_of("[group]\nname = \"x\""), Kind::Replicated);
        assert_eq!(kind_of("[group]\nkind = 7"), Kind::Replicated);
        assert_eq!(kind_of("]["), Kind::Replicated);
    }

    #[test]
    fn an_unknown_kind_is_told() {
        let text = "[group]\nname = \"x\"\nkind = \"spred\"\nkey_file = \"k\"\nservices = [\"10.0.0.1:1\"]\n\
            [edge]\nlisten = \"10.0.0.1:7\"\nclients = [\"e\"]\n[server]\ncommand = [\"x\"]\nmember = []\n";
        let text = text.replace("member = []\n", "");
        let text = format!("member = []\n{text}");
        let errors = GroupFile::parse(Path::new("x.toml"), &text).unwrap_err().to_string();
        assert!(errors.contains("there is no kind of group called `spred`"), "{errors}");
    }

    #[test]
    fn a_role_is_asked_for_or_found() {
        let roles = [
            ("edge".to_owned(), vec!["192.0.2.1".parse().unwrap()]),
            ("a".to_owned(), vec!["127.0.0.1".parse().unwrap()]),
        ];
        assert_eq!(choose_role(&roles, Some("edge")), Ok("edge".to_owned()));
        assert_eq!(choose_role(&roles, None), Ok("a".to_owned()));
        assert!(choose_role(&roles, Some("b")).unwrap_err().ends_with("edge, a"));
        assert!(choose_role(&roles[..1], None).unwrap_err().contains("--role edge"));
    }
}
