//! The kernel programs, each under packets of its test.

mod bind;
mod common;
mod edge;
mod edge_model;
mod flows;
mod gate;
mod gate_model;
mod gate_solo;
mod groups;
mod host;
mod live;
mod pins;
mod recover;
mod redirect;
mod redirect_crowded;
mod redirect_elsewhere;
mod redirect_learns;
mod redirect_model;
mod regulate;
mod speak;
mod tap_model;
mod too_big;
mod transit;
mod transit_model;
