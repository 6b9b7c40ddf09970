//! What is done with the kernel: sockets, their repair, and what wakes them.

mod basics;
mod nudge;
mod restore;
mod world;
