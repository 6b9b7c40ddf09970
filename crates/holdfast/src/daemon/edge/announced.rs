//! Telling the neighbours where the edge is, when its daemon starts and when an interface of the
//! edge has another hardware address: a host that was replaced, a driver or a bridge that was made
//! anew. Whoever sends to the old one, members and clients' routers alike, would go on for as long
//! as the entry lasts, which is a minute and more.

use crate::config::Config;
use holdfast_linux::link::{Link, master_of};
use holdfast_linux::neighbour::{Announcer, own_addresses};
use holdfast_wire::packet::mapped;
use std::io;

/// How often each change is announced, at one look after the other: nobody confirms.
const TIMES: u8 = 3;

/// Where the neighbours were told that the edge is.
#[derive(Debug)]
pub(super) struct Announced {
    announcer: Announcer,
    places: Vec<(Link, [u8; 16])>,
    left: u8,
}

impl Announced {
    pub fn new(announcer: Announcer) -> Self {
        Self { announcer, places: Vec::new(), left: 0 }
    }

    /// Looks where the edge is, and begins to tell it if that is news; true then.
    pub fn look(&mut self, config: &Config) -> bool {
        // What cannot be read now is not known to have changed.
        let Ok(places) = places(config) else { return false };
        let is_news = places.iter().any(|place| !self.places.contains(place));
        self.places = places;
        if is_news {
            self.left = TIMES;
        }
        is_news
    }

    /// Tells what is still to be told.
    pub fn turn(&mut self) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        for (link, address) in &self.places {
            // An interface that is down is announced when it comes up.
            let _ = self.announcer.announce(link, address);
        }
    }
}

/// The edge's own addresses, at the interfaces of its file, their bridges, and the one that the
/// members call.
fn places(config: &Config) -> io::Result<Vec<(Link, [u8; 16])>> {
    let named = config.edge.clients.iter().chain(config.edge.l3.iter());
    let mut names: Vec<String> =
        named.chain(config.members.iter().map(|member| &member.edge_port)).cloned().collect();
    let masters: Vec<String> = names.iter().filter_map(|name| master_of(name)).collect();
    names.extend(masters);
    let listen = mapped(config.edge.listen.ip());
    let places = own_addresses()?.into_iter().filter_map(|(name, address)| {
        let is_ours = names.contains(&name) || address == listen;
        let link = is_ours.then(|| Link::by_name(&name).ok()).flatten()?;
        // Loopback and tunnels have no hardware addresses.
        (link.mac != [0; 6]).then_some((link, address))
    });
    Ok(places.collect())
}
