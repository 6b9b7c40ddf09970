//! The way to the other member, for the channel between the two.

use super::MemberContext;
use crate::channel::{ChannelError, Identity, Kind};
use crate::daemon::coded::Coded;
use std::net::{IpAddr, SocketAddr};

impl MemberContext<'_> {
    /// What this end proves itself with.
    #[must_use]
    pub fn pair_identity(&self) -> Identity {
        Identity {
            keyring: self.key.clone(),
            peers: vec![self.other.name.clone()],
            attempt: 0,
            group: self.config.group.name.clone(),
            me: self.me.name.clone(),
            kind: Kind::Pair,
        }
    }

    /// Where the other member's daemon is reached.
    #[must_use]
    pub fn way_to_other(&self) -> SocketAddr {
        self.coded.as_ref().map_or(self.other.address, Coded::door)
    }

    /// What is to be said of a channel that has not opened. Over a coded tunnel the near end of that
    /// answers for the far one, and resets what does not get through: that is no wrong key.
    #[must_use]
    pub fn distrust_of(&self, error: &ChannelError) -> Option<(String, &'static str)> {
        const REMEDY: &str = "start the other member's daemon, with channel = \"coded\" in its file, too, and let \
                              what is in between pass UDP to the port two above its `address`";
        let Some(coded) = &self.coded else { return error.distrust(&self.other.name) };
        match coded.waits() {
            Some(why) => {
                Some((format!("the coded channel to `{}` waits: {why}", self.other.name), REMEDY))
            }
            None => error.distrust(&self.other.name).filter(|_| !error.is_reset()),
        }
    }

    /// The address from which the other member's channel comes: over a coded tunnel, this host's.
    #[must_use]
    pub fn comes_from(&self) -> IpAddr {
        let it = if self.coded.is_some() { self.me } else { self.other };
        it.address.ip()
    }
}
