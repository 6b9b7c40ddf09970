//! The fence of a group, closed by an edge, or opened against the will of a member.

use super::Group;
use crate::testbed::Role;
use crate::testbed::config::PRIMARY_NAME;
use anyhow::Result;
use std::process::Command;

impl Group<'_> {
    /// The command line that fences the service on the edge, for a fault.
    ///
    /// # Errors
    /// When the binary's path cannot be found.
    pub fn fence_words(&self) -> Result<Vec<String>> {
        self.cli(Role::Edge, &["edge", "fence", "--until-takeover"]).map(|it| words(&it))
    }

    /// The command line that lets the primary of a pair without an edge speak for ever, for a fault.
    ///
    /// # Errors
    /// As [`Group::fence_words`].
    pub fn unfence_words(&self) -> Result<Vec<String>> {
        let host = self.testbed.host(Role::Primary);
        let mut command = host.command(crate::own_binary()?);
        command.arg("unfence").arg(host.inside().join("run").join(format!("bpf-{PRIMARY_NAME}")));
        Ok(words(&command))
    }
}

fn words(command: &Command) -> Vec<String> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}
