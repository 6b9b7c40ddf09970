//! Pairs of endpoints over simulated paths: what the tunnel promises, measured with the machine
//! that is shipped. A test prints its seed; the same seed gives the same run.

mod bulk;
mod calm;
mod competitor;
mod fair;
mod hostile;
mod inner;
mod marks;
mod messages;
mod order;
mod size;
mod world;
