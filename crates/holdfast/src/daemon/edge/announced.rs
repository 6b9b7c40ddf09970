//! Announces the edge's addresses to its neighbours (gratuitous ARP and its like) when its daemon
//! starts, and when an interface of the edge has another hardware address: the host was replaced,
//! or a driver or bridge was made anew. Without that, members and clients' routers would send to
//! the old hardware address until their neighbour entry expires, after a minute or more.

use crate::config::{self, Config};
use holdfast_linux::link::{Link, master_of};
use holdfast_linux::neighbour::{Announcer, own_addresses};
use holdfast_wire::packet::mapped;
use std::io;

/// Number of announcements of each change, one per [`Announced::turn`]: nobody confirms them.
const TIMES: u8 = 3;

/// The addresses that were last announced to the neighbours.
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

    /// Reads the edge's addresses, and begins to announce them if one is new; true then.
    pub fn look(&mut self, config: &Config, named: &config::Edge) -> bool {
        // If they cannot be read now, nothing is known to have changed.
        let Ok(places) = places(config, named) else { return false };
        let is_news = places.iter().any(|place| !self.places.contains(place));
        self.places = places;
        if is_news {
            self.left = TIMES;
        }
        is_news
    }

    /// Sends one announcement of each address, if any is still due.
    pub fn turn(&mut self) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        for (link, address) in &self.places {
            // An interface that is down is announced when it comes up.
            let _ = self.announcer.announce(link, address);
        }
    }
}

/// The edge's own addresses: at the interfaces in its file, at their bridges, and the address
/// that members connect to.
fn places(config: &Config, named: &config::Edge) -> io::Result<Vec<(Link, [u8; 16])>> {
    let outer = named.clients.iter().chain(named.l3.iter());
    let mut names: Vec<String> =
        outer.chain(config.ports().map(|port| &port.edge_port)).cloned().collect();
    let masters: Vec<String> = names.iter().filter_map(|name| master_of(name)).collect();
    names.extend(masters);
    let listen = mapped(named.listen.ip());
    let places = own_addresses()?.into_iter().filter_map(|(name, address)| {
        let is_ours = names.contains(&name) || address == listen;
        let link = is_ours.then(|| Link::by_name(&name).ok()).flatten()?;
        // Loopback and tunnels have no hardware addresses.
        (link.mac != [0; 6]).then_some((link, address))
    });
    Ok(places.collect())
}
