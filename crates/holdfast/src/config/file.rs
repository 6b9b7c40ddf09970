//! A file of any kind of group.

use super::error::{ConfigError, ConfigErrors, Position};
use super::group::{Common, Settings as _, admin_socket, choose_role, pin_dir};
use super::kind::{Kind, kind_of, unknown_kind};
use super::replicated::Config;
use super::spread::SpreadConfig;
use super::transit::TransitConfig;
use super::watching::Watching;
use crate::key::{KeyLine, Keyring};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest configuration file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the files of a host's groups are.
pub const FOLDER: &str = "/etc/holdfast";

/// The files in `folder` that can be groups', in order of name; hidden ones are being written.
#[must_use]
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let is_shown =
        |it: &Path| it.file_name().is_some_and(|it| !it.to_string_lossy().starts_with('.'));
    let is_file = |it: &PathBuf| is_shown(it) && it.extension().is_some_and(|it| it == "toml");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|it| it.path()).filter(is_file).collect();
    files.sort();
    files
}

/// A checked file of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupFile {
    Replicated(Box<Config>),
    Spread(Box<SpreadConfig>),
    Transit(Box<TransitConfig>),
}

/// Asks the file, whatever its kind.
macro_rules! ask {
    ($file:expr, $config:ident => $answer:expr) => {
        match $file {
            GroupFile::Replicated($config) => $answer,
            GroupFile::Spread($config) => $answer,
            GroupFile::Transit($config) => $answer,
        }
    };
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
        if let Some(mistake) = unknown_kind(path, text) {
            return Err(ConfigErrors(vec![mistake]));
        }
        Ok(match kind_of(text) {
            Kind::Replicated => Self::Replicated(Box::new(Config::parse(path, text)?)),
            Kind::Spread => Self::Spread(Box::new(SpreadConfig::parse(path, text)?)),
            Kind::Transit => Self::Transit(Box::new(TransitConfig::parse(path, text)?)),
        })
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.common().name
    }

    /// Time between two heartbeats.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.common().heartbeat_ms)
    }

    /// Where it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        ask!(self, config => config.path())
    }

    /// Takes back what a daemon cannot change while it runs: `heartbeat_ms`, `realtime` and
    /// `flows_max` are those of `running`, a file of the same kind.
    pub fn keep_pace_and_size(&mut self, running: &Self) {
        match (self, running) {
            (Self::Replicated(file), Self::Replicated(running)) => {
                file.group.heartbeat_ms = running.group.heartbeat_ms;
                file.group.realtime = running.group.realtime;
                if let (Some(edge), Some(running)) = (&mut file.edge, &running.edge) {
                    edge.flows_max = running.flows_max;
                }
            }
            (Self::Spread(file), Self::Spread(running)) => {
                file.group.heartbeat_ms = running.group.heartbeat_ms;
                file.group.flows_max = running.group.flows_max;
            }
            (Self::Transit(file), Self::Transit(running)) => {
                file.group.heartbeat_ms = running.group.heartbeat_ms;
                file.group.flows_max = running.group.flows_max;
            }
            _ => {}
        }
    }

    /// Takes from `other`, a file of the same kind, which keys hosts have.
    pub fn take_keys(&mut self, other: &Self) {
        match (self, other) {
            (Self::Replicated(file), Self::Replicated(other)) => {
                file.take_public_keys(other);
                file.group.key_file.clone_from(&other.group.key_file);
            }
            (Self::Spread(file), Self::Spread(other)) => {
                file.take_public_keys(other);
                file.group.key_file.clone_from(&other.group.key_file);
            }
            (Self::Transit(file), Self::Transit(other)) => {
                file.take_public_keys(other);
                file.group.key_file.clone_from(&other.group.key_file);
            }
            _ => {}
        }
    }

    /// What the group is for, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        ask!(self, config => config.summary())
    }

    /// The file with every default written out.
    #[must_use]
    pub fn effective(&self) -> String {
        ask!(self, config => config.effective())
    }

    /// Reads the key file, which must be readable by its owner only.
    ///
    /// # Errors
    /// One error that points at `key_file`.
    pub fn key_lines(&self) -> Result<Vec<KeyLine>, ConfigErrors> {
        ask!(self, config => config.key_lines())
    }

    /// What the host with the role called `me` shares with the others.
    ///
    /// # Errors
    /// One error that points at `key_file`: it cannot be read, or is not this host's.
    pub fn keyring(&self, me: &str) -> Result<Keyring, ConfigErrors> {
        ask!(self, config => config.keyring(me))
    }

    /// The role that was asked for, or the one whose address this host has.
    ///
    /// # Errors
    /// A sentence that lists the roles there are.
    pub fn role(&self, asked: Option<&str>) -> Result<String, String> {
        choose_role(&ask!(self, config => config.roles()), asked)
    }

    /// As [`Self::role`], for verbs that ask a daemon: a host that has lost its address still
    /// has the one role whose daemon's socket is there.
    ///
    /// # Errors
    /// As [`Self::role`].
    pub fn role_of_daemon(&self, asked: Option<&str>) -> Result<String, String> {
        let found = self.role(asked);
        if found.is_ok() || asked.is_some() {
            return found;
        }
        match &self.roles_here()[..] {
            [only] => Ok(only.clone()),
            _ => found,
        }
    }

    /// The roles whose daemons' sockets are on this host.
    #[must_use]
    pub fn roles_here(&self) -> Vec<String> {
        let names = ask!(self, config => config.roles()).into_iter().map(|(name, _)| name);
        names.filter(|name| self.admin_socket(name).exists()).collect()
    }

    /// The admin socket of the daemon with this role.
    #[must_use]
    pub fn admin_socket(&self, role: &str) -> PathBuf {
        admin_socket(self.common().run_dir, role)
    }

    /// Folder where the daemon with this role pins its eBPF programs and maps.
    #[must_use]
    pub fn pin_dir(&self, role: &str) -> PathBuf {
        pin_dir(self.common().run_dir, role)
    }

    /// The replicated group's file, for verbs that only such groups have.
    ///
    /// # Errors
    /// A sentence that says so.
    pub fn replicated(self) -> Result<Config, String> {
        let Self::Replicated(config) = self else {
            return Err(format!(
                "`{}` is not a replicated group, and this verb is for replicated groups",
                self.name()
            ));
        };
        Ok(*config)
    }

    /// Who may look at the group, and where.
    #[must_use]
    pub fn watching(&self) -> Watching<'_> {
        self.common().watching
    }

    /// What `[group]` says in files of every kind.
    #[must_use]
    pub fn common(&self) -> Common<'_> {
        ask!(self, config => config.common())
    }
}

fn read_limited(path: &Path) -> Result<String, ConfigError> {
    let error = |message: String, remedy: &str| ConfigError {
        path: path.to_owned(),
        at: Position::default(),
        message,
        remedy: remedy.to_owned(),
    };
    let unreadable = |e: io::Error| {
        error(format!("cannot be read: {e}"), "give the path of the group's file with --config")
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    // What a device says of its size is not what it gives.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(error(
            format!("has more than {FILE_BYTES_MAX} bytes"),
            "a configuration is never that large; is it the right file?",
        ));
    }
    String::from_utf8(bytes)
        .map_err(|e| error(format!("cannot be read: {e}"), "it must be a UTF-8 text file"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_host_without_its_address_is_known_by_its_daemons_socket() {
        let folder = std::env::temp_dir().join(format!("holdfast-roles-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let example = include_str!("../../../../docs/example.toml");
        let text = example.replace("[group]", &format!("[group]\nrun_dir = {folder:?}"));
        let file = GroupFile::parse(Path::new("/etc/x.toml"), &text).unwrap();
        assert!(file.role_of_daemon(None).unwrap_err().contains("--role"));
        std::fs::write(file.admin_socket("b"), "").unwrap();
        assert_eq!(file.role_of_daemon(None).as_deref(), Ok("b"));
        assert!(file.role(None).is_err(), "nothing is started by that");
        std::fs::write(file.admin_socket("edge"), "").unwrap();
        assert!(file.role_of_daemon(None).is_err(), "it could be either");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error() {
        let error = GroupFile::load(Path::new("/nonexistent/holdfast.toml")).unwrap_err();
        assert!(error.to_string().contains("cannot be read"));
    }

    #[test]
    fn a_file_without_end_is_not_read_to_it() {
        let error = GroupFile::load(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("has more than 1048576 bytes"), "{error}");
    }
}
