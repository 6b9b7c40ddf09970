//! What the daemons of a pair are, wherever they run: the wire's daemons
//! (`crates/holdfast`) and the simulated ones (`crates/sim`) take it from here.

pub mod timing;
