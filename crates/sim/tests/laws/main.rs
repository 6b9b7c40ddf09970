//! Groups, leases, spread and transit groups in virtual time: one program, for each would link the
//! whole simulator anew.

mod at_rest;
mod broken_servers;
mod buffering;
mod calm;
mod cold;
mod direct;
mod joins;
mod lease_mutations;
mod lease_seeds;
mod limits;
mod manners;
mod mutations;
mod no_cause;
mod rebuild;
mod scope;
mod seeds;
mod spread_mutations;
mod spread_seeds;
mod sweep;
mod the_edges_disk;
mod transit_mutations;
mod transit_seeds;
mod who_knocks;
