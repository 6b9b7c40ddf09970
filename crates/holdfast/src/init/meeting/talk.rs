//! What is said at a meeting, in both directions.

use crate::init::facts::Facts;
use crate::key::PublicKey;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a guest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// Release of its program, and what its host is.
    Hello { build: String, facts: Facts },
    /// What its host lacks for the server or the files; empty if nothing. `taken` as in its facts, but
    /// without the ports of this group, whose name it had not heard before. `public` is of the key
    /// that its host has made for this meeting, and that is only for the file if each host has its own.
    Able { lacks: Vec<Lack>, taken: BTreeSet<u16>, public: PublicKey },
    /// File and key of this offer can be written: only their names are still missing.
    Ready { offer: u64 },
    /// They cannot.
    Unable { offer: u64, why: Lack },
    /// They are written.
    Done,
    /// It is still there.
    Here,
}

/// What the host says. It can hold a key, so it cannot be shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// The group's name, and its file as far as it is known: enough to look whether the server can
    /// be started.
    Wanted { group: String, text: String },
    /// The whole file, the group's key where all hosts have the same, and the role of the guest. Its
    /// number goes up: an offer replaces the one before.
    Offer { offer: u64, role: String, text: String, key: Option<String> },
    /// Everybody is ready: write.
    Commit,
    /// The guest cannot be a member.
    Refused { why: Lack },
    /// It is still there.
    Here,
}

/// Something that does not fit, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    pub what: String,
    pub remedy: String,
}

impl Lack {
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl std::error::Error for Lack {}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  remedy: {}", self.what, self.remedy)
    }
}
