//! All kinds of protection on one way: a client, the near edge of strings, the strings, the far
//! edge, and behind it the edge of a pair with primary and backup.

use super::strings::{Strings, StringsPlan};
use super::{Host, Plan, Role, Testbed, interface};
use anyhow::Result;

/// The hosts of both testbeds, of which client and pair's edge belong to both.
pub struct Journey {
    /// Edges and strings between the client and the pair's edge.
    pub strings: Strings,
    /// The pair, with the client.
    pub pair: Testbed,
}

impl Journey {
    /// Builds the hosts and the links between them.
    ///
    /// # Errors
    /// When the kernel or a tool refuses a step, in most cases for want of root; whatever was built
    /// until then is removed.
    pub fn build(plan: &StringsPlan) -> Result<Self> {
        let pair = Testbed::build(&Plan::default())?;
        if plan.single_segments {
            for (role, device) in
                [(Role::Primary, interface::PRIMARY), (Role::Backup, interface::BACKUP)]
            {
                pair.host(role).ip(&format!("link set {device} gso_max_segs 1\n"))?;
            }
        }
        let strings = Strings::in_front_of(&pair, plan)?;
        Ok(Self { strings, pair })
    }

    /// The host of the load.
    pub fn client(&self) -> &Host {
        self.pair.host(Role::Client)
    }
}
