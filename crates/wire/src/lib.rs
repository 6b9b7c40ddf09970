//! The formats of Holdfast: packets, log records, the memory shared between
//! shim and daemon, and the messages members exchange.
//!
//! Nothing here reads a clock, a socket or the environment. Without the `std`
//! feature the crate neither allocates nor touches the host program: the shim
//! uses it that way.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

pub mod buffering;
pub mod direct;
#[cfg(feature = "std")]
pub mod gate;
pub mod group;
pub mod hash;
pub mod log;
#[cfg(feature = "std")]
pub mod message;
#[cfg(feature = "std")]
pub mod packet;
#[cfg(feature = "std")]
pub mod pcapng;
pub mod quiet;
#[cfg(feature = "std")]
pub mod segment;
pub mod seq;
pub mod shm;
#[cfg(feature = "std")]
pub mod snapshot;
pub mod time;
pub mod token;
