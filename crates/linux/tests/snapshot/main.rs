//! Images of running servers, and servers that are made of them.

mod details;
mod families;
mod hostile;
mod images;
mod refuses;
mod segments;
mod world;
