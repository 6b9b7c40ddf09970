//! The configuration: one TOML file that all hosts of a group share. [`Config`]
//! is the file of a replicated group; [`GroupFile`] is that of any kind.
//!
//! Nothing in it is guessed: an unknown key, a value out of range or an
//! undefined name is an error with its line, its column and a remedy. `config
//! show --effective` prints every default.
//!
//! Each kind has a source file of its own here, which knows nothing about the
//! others. `group` and `checks` are what they share, and `file` knows all
//! three.

mod checks;
mod error;
mod explain;
mod file;
mod group;
mod keys;
mod kind;
pub mod recover;
mod replicated;
pub mod spread;
mod told;
pub mod transit;
mod watching;

pub use checks::{HEARTBEAT_MS, INTERFACES_MAX, LEASED_MS_MAX};
pub use error::{ConfigError, ConfigErrors};
pub use file::{FILE_BYTES_MAX, FOLDER, GroupFile, files_in};
pub use group::{Checked, Common, Settings};
pub(crate) use group::{admin_socket, pin_dir};
pub use kind::Kind;
pub use replicated::{
    Arbiter, ArbiterKind, CONNECTIONS_MAX, ChannelWay, Cold, Config, Edge, Etcd, FLOWS_MAX, Group,
    Mac, Member, Mode, Port, PowerOff, RING_BYTES, Replicated, Role, Run, SERVICES_MAX, Segment,
    Server,
};
pub use told::{Hooks, KeptEvents};
pub use watching::{Listen, Watching};
