//! What a member without an edge puts into its host so that it may speak: programs at its
//! interface, and one more hardware address that the interface takes frames for.

use crate::config::{Config, Member, Segment, pin_dir};
use crate::leavings;
use anyhow::{Context as _, Result};
use holdfast_linux::bpf::{Deadline, Speak, SpeakConfig};
use holdfast_linux::filter;
use holdfast_linux::link::Link;

/// What sets until when this host speaks.
pub struct Begun {
    pub deadline: Deadline,
    /// Whether a server that has outlived its daemon speaks alone here, and goes on meanwhile:
    /// nobody else may, before the record is this member's no more.
    pub speaks: bool,
}

/// Attaches the programs, silent; those that an earlier daemon has left for a server that speaks
/// alone go on.
///
/// # Errors
/// When the interface is missing, or the kernel refuses.
pub fn begin(config: &Config, segment: &Segment, me: &Member) -> Result<(Speak, Begun)> {
    let link = Link::by_name(&me.interface)?;
    let programs = SpeakConfig {
        interface: me.interface.clone(),
        services: config.served(),
        service_mac: segment.mac.0,
        own_mac: link.mac,
        is_edge: false,
        pin_dir: pin_dir(&config.group.run_dir, &me.name),
    };
    filter::take_frames(link.index, segment.mac.0).with_context(|| {
        format!("{} cannot take frames to {}, the service's address", me.interface, segment.mac)
    })?;
    if leavings::survivor(&config.group.run_dir, &me.name).is_some()
        && let Ok(speak) = Speak::reopen(&programs)
        && let Ok(deadline) = speak.deadline()
        && deadline.is_told()?
    {
        Speak::mend(&programs.interface, &programs.pin_dir)?;
        return Ok((speak, Begun { deadline, speaks: true }));
    }
    let speak = Speak::attach(&programs)?;
    let deadline = speak.deadline()?;
    Ok((speak, Begun { deadline, speaks: false }))
}
