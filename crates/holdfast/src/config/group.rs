//! What all kinds of groups have in common: a file that was checked, the
//! group's key, its roles, and the places of its daemons' files.

use super::error::{ConfigError, ConfigErrors, Findings, Position};
use super::explain::{asking, explain, suggestion};
use super::keys::check_all;
use super::told::{Hooks, KeptEvents};
use super::watching::Watching;
use crate::key::{GroupKey, KeyError, KeyLine, Keyring, PublicKey};
use holdfast_linux::address::AddressSocket;
use holdfast_wire::packet::mapped;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The settings of one kind of group.
pub trait Settings: Serialize + Sized {
    /// The type of a role in such a group.
    type Role<'r>
    where
        Self: 'r;

    /// Checks `text` as if it had been read from `path`.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place and a remedy.
    fn read(path: &Path, text: &str) -> Result<Checked<Self>, ConfigErrors>;

    /// What `[group]` says in files of every kind.
    fn common(&self) -> Common<'_>;

    /// What the group is for, in a few words.
    fn summary(&self) -> String;

    /// Names of the roles, each with addresses that identify its host.
    fn roles(&self) -> Vec<(String, Vec<IpAddr>)>;

    /// The public keys of all roles, best first; all empty where the hosts share one key file.
    fn public_keys(&self) -> Vec<(&str, &[PublicKey])>;

    /// Takes the public keys of all roles that `other` has, too.
    fn take_public_keys(&mut self, other: &Self);

    /// The name of a role.
    fn name_of<'r>(&'r self, role: Self::Role<'r>) -> &'r str;
}

/// What `[group]` says in files of every kind.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    pub name: &'a str,
    pub key_file: &'a Path,
    pub run_dir: &'a Path,
    pub heartbeat_ms: u64,
    pub events: &'a KeptEvents,
    pub hooks: Option<&'a Hooks>,
    pub watching: Watching<'a>,
}

/// Settings that were checked, and the file that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked<S> {
    settings: S,
    path: PathBuf,
    key_file_at: Position,
}

impl<S> Deref for Checked<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.settings
    }
}

// Tests change what they have read.
impl<S> DerefMut for Checked<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.settings
    }
}

impl<S: Settings> Checked<S> {
    /// Checks `text` as if it had been read from `path`.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place and a remedy.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        S::read(path, text)
    }

    /// Where it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the key file, which must be readable by its owner only.
    ///
    /// # Errors
    /// One error that points at `key_file`.
    pub fn key_lines(&self) -> Result<Vec<KeyLine>, ConfigErrors> {
        let file = self.settings.common().key_file;
        GroupKey::load(file).map_err(|error| self.at_key_file(&error))
    }

    /// What the host with the role called `me` shares with the others.
    ///
    /// # Errors
    /// One error that points at `key_file`: it cannot be read, or is not this host's.
    pub fn keyring(&self, me: &str) -> Result<Keyring, ConfigErrors> {
        let (lines, publics) = (self.key_lines()?, self.settings.public_keys());
        if publics.iter().all(|(_, keys)| keys.is_empty()) {
            return Ok(Keyring::shared(KeyLine::of_all(lines)));
        }
        let ring = Keyring::in_pairs((self.settings.common().name, me), lines, &publics);
        ring.map_err(|error| self.at_key_file(&error))
    }

    fn at_key_file(&self, error: &KeyError) -> ConfigErrors {
        let file = self.settings.common().key_file;
        let in_pairs = self.settings.public_keys().iter().any(|(_, keys)| !keys.is_empty());
        ConfigErrors(vec![ConfigError {
            path: self.path.clone(),
            at: self.key_file_at,
            message: format!("key_file = {}: {error}", file.display()),
            remedy: if in_pairs { error.remedy_in_pairs(file) } else { error.remedy(file) },
        }])
    }

    /// The file with every default written out.
    #[must_use]
    pub fn effective(&self) -> String {
        toml::to_string_pretty(&self.settings).unwrap_or_default()
    }

    /// `heartbeat_ms` as a duration.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.settings.common().heartbeat_ms)
    }

    /// The admin socket of the daemon with this role.
    #[must_use]
    pub fn admin_socket<'r>(&'r self, role: S::Role<'r>) -> PathBuf {
        admin_socket(self.settings.common().run_dir, self.settings.name_of(role))
    }

    /// Folder where the daemon with this role pins its eBPF programs and maps.
    #[must_use]
    pub fn pin_dir<'r>(&'r self, role: S::Role<'r>) -> PathBuf {
        pin_dir(self.settings.common().run_dir, self.settings.name_of(role))
    }
}

/// Reads a file of any kind: its shape by serde, its meaning by `check`.
pub(super) fn read<R: DeserializeOwned, S: Settings>(
    path: &Path,
    text: &str,
    check: impl FnOnce(&mut Findings<'_>, R) -> S,
) -> Result<Checked<S>, ConfigErrors> {
    let raw = toml::from_str(text).map_err(|e| {
        // The error about a value that is no word does not have the words that there are.
        let asked = asking(text, &e).and_then(|asked| toml::from_str::<R>(&asked).err());
        ConfigErrors(vec![explain(path, text, &e, asked.as_ref())])
    })?;
    let mut findings = Findings { path, text, found: Vec::new(), key_file_at: Position::default() };
    let settings = check(&mut findings, raw);
    // What is no key has been told.
    if findings.found.is_empty() {
        check_all(&mut findings, &settings.public_keys());
    }
    let Findings { mut found, key_file_at, .. } = findings;
    found.sort_by_key(|e| (e.at.line, e.at.column));
    if !found.is_empty() {
        return Err(ConfigErrors(found));
    }
    Ok(Checked { settings, path: path.to_owned(), key_file_at })
}

/// The admin socket of the daemon with this role.
pub(crate) fn admin_socket(run_dir: &Path, role: &str) -> PathBuf {
    run_dir.join(format!("{role}.sock"))
}

/// Folder where the daemon with this role pins its eBPF programs and maps.
pub(crate) fn pin_dir(run_dir: &Path, role: &str) -> PathBuf {
    run_dir.join(format!("bpf-{role}"))
}

/// The role called `asked`, or the only one with an address of this host.
/// `roles` are names, each with addresses that identify its host.
///
/// # Errors
/// A sentence that lists the roles, or asks for `--role`.
pub fn choose_role(roles: &[(String, Vec<IpAddr>)], asked: Option<&str>) -> Result<String, String> {
    let names =
        |glue: &str| roles.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(glue);
    if let Some(asked) = asked {
        return match roles.iter().any(|(name, _)| name == asked) {
            true => Ok(asked.to_owned()),
            false => {
                let known: Vec<&str> = roles.iter().map(|(name, _)| name.as_str()).collect();
                let meant = suggestion(asked, &known).map(|it| it + " ").unwrap_or_default();
                Err(format!("there is no role `{asked}`; {meant}this file has: {}", names(", ")))
            }
        };
    }
    // A bind would not tell, where `ip_nonlocal_bind` allows it to any address.
    let is_local = |address: &IpAddr| {
        AddressSocket::open().is_ok_and(|mut it| it.is_local(&mapped(*address)).unwrap_or(false))
    };
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

#[cfg(test)]
mod tests {
    use super::*;

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
