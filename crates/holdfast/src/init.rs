//! `holdfast init` and `holdfast join`: three hosts become a group, and nobody looks a value up.
//!
//! `facts` are what a host is, `meeting` is how hosts tell them to each other, `fit` says whether
//! they go together, `draft` makes the group's file of them, and `files` writes it. `begin` and
//! `join` are the two ends on real sockets, `finish` is what is left to do when the file is there.

mod begin;
mod draft;
pub mod facts;
mod files;
mod finish;
mod fit;
mod join;
mod meeting;
mod neighbours;
mod party;
mod ways;
mod words;

pub use begin::{Begin, Made, begin};
pub use draft::{HostRole, Keys, Wish};
pub use finish::{Applied, Changes, Settings, Started, applicable, start};
pub use join::{Join, Joined, join};
pub use meeting::{Code, CodeError, Lack};
pub use words::{WordsError, line, words};

use crate::config::ConfigErrors;
use fit::Seat;
use meeting::{Left, LinkError};
use serde::Serialize;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Port at which hosts meet.
pub const PORT: u16 = 7709;

/// Why there is no group.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A person has said something that cannot be.
    #[error("{0}")]
    Usage(Lack),
    /// The hosts do not fit, or lack something.
    #[error("{0}")]
    Misfit(#[from] Lack),
    /// Nobody answers, or nobody has come.
    #[error("{0}")]
    Unreachable(Lack),
    #[error("the group's file is not usable\n{0}")]
    Config(ConfigErrors),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What to do where a host has lost its own key before it had its name: nobody else has it.
#[must_use]
pub fn lost_key(file: &Path, key: &Path) -> String {
    let name = key.file_name().unwrap_or_default().display();
    let (file, key) = (file.display(), key.display());
    format!(
        "copy {file} of another host of the group; if {key} is missing, or an earlier one, look for \
         .{name}.new beside it, and rename that; else make one: (umask 077; holdfast key gen > {key}), \
         and write what `holdfast key pub {key}` prints as that host's public_keys into {file} on each \
         host, with `holdfast reload` where a daemon runs"
    )
}

/// Something that has happened at a meeting, for whoever waits.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    pub event: &'static str,
    /// Host or address that it is about.
    pub host: String,
    pub text: String,
}

impl Told {
    fn joined(seat: &Seat) -> Self {
        let (name, address) = (&seat.name, seat.facts.address);
        let text = format!("{} ({address}) has joined as `{name}`", seat.facts.host);
        Self { event: "joined", host: seat.facts.host.clone(), text }
    }

    /// Something that a person should know before it is too late to choose otherwise.
    fn warning(host: &str, about: &Lack) -> Self {
        Self { event: "warning", host: host.to_owned(), text: format!("perhaps: {about}") }
    }

    fn refused(host: &str, from: IpAddr, why: &Lack) -> Self {
        let text = format!("{host} ({from}) cannot join: {why}");
        Self { event: "refused", host: host.to_owned(), text }
    }

    fn left(seat: &Seat, why: &Left) -> Self {
        let host = seat.facts.host.clone();
        let text = match why {
            Left::Lacks(lacks) => {
                let all: Vec<String> = lacks.iter().map(ToString::to_string).collect();
                format!("{host} cannot join yet:\n{}", all.join("\n"))
            }
            Left::Unable(why) => format!("{host} cannot write its files: {why}"),
            Left::Silent => format!("{host} is not heard any more; its place is free again"),
            Left::Broken(why) => format!("{host} has left ({why}); its place is free again"),
        };
        Self { event: "left", host, text }
    }

    fn wrong_code(from: IpAddr, count: u32, shut_out: bool) -> Self {
        let more = if shut_out { "; nobody from there is heard any more" } else { "" };
        let text = format!("{from} came with a wrong code, number {count}{more}");
        Self { event: "wrong-code", host: from.to_string(), text }
    }

    fn stranger(from: IpAddr, why: &LinkError) -> Self {
        let text = format!("{from} came and is no `holdfast join` of ours: {why}");
        Self { event: "stranger", host: from.to_string(), text }
    }
}
