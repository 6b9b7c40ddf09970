//! Rebuilds a server on its own host after it has crashed while it ran alone (decision 31): a
//! takeover from itself. First the sockets that the dead server has left in the kernel are
//! destroyed, without a packet to their clients.

use super::{BackupDaemon, Barred, Ended, SocketRestorer, TAP, TakeoverSockets};
use crate::daemon::drive::drive;
use crate::daemon::heed;
use crate::daemon::member::MemberContext;
use crate::daemon::placement::PacketCpu;
use crate::daemon::primary::Kept;
use crate::daemon::said::Repetition;
use crate::daemon::services::Services;
use crate::fingerprint;
use crate::poll::Interest;
use holdfast_linux::bpf::{Gate, TapDrop};
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::snapshot::{SnapshotError, forget, settle};
use holdfast_member::backup::BackupMachine;
use holdfast_member::host::End;
use holdfast_wire::packet::mapped;
use std::path::Path;
use std::time::Instant;

/// What is left of a server that has crashed, and is to be rebuilt.
pub struct Fallen {
    pub machine: BackupMachine,
    pub kept: Kept,
    /// Holds back what the dead server's sockets would still send.
    pub gate: Gate,
}

/// Rebuilds the server, which then serves its clients again.
///
/// # Errors
/// When the interface is gone, or a program cannot be attached.
pub fn rebuild(node: &mut MemberContext<'_>, fallen: Fallen) -> anyhow::Result<Ended> {
    let Fallen { mut machine, kept: Kept { tap, cold, unnoted, .. }, mut gate } = fallen;
    let (interface, services, pins) = (&node.me.interface, node.services(), node.pin_dir());
    // From here on the dead server's sockets receive nothing, and soon are gone.
    let drop = node.attend_until(|| TapDrop::attach(interface, &services, &pins))?;
    let ips: Vec<_> = node.config.service_ips().into_iter().map(mapped).collect();
    DiagSocket::open()?.destroy_own(&ips, &node.config.service_ports())?;
    gate.begin_anew()?;
    node.poll.add(&tap.fd(), TAP, Interest::Read)?;
    let now = Instant::now();
    let mut this = BackupDaemon {
        replica: None,
        incoming: None,
        cold,
        unnoted,
        over_before: Vec::new(),
        settle_at: now,
        gate,
        conns: Vec::new(),
        tap: Some(tap),
        drop,
        link: None,
        direct: None,
        early: Vec::new(),
        is_peer_ready: false,
        malformed: 0,
        sockets: TakeoverSockets::open(node)?,
        says: None,
        has_served: true,
        rebuilds: true,
        stopped: false,
        refused: None,
        ports: Services::open(now)?,
        repetition: Repetition::new(now),
        place: PacketCpu::new(false),
        ended: false,
        watches_replica: false,
        own_end: None,
        restorer: SocketRestorer::default(),
        barred: Barred::default(),
        alone: None,
        node,
    };
    let mut begins = true;
    let end = drive(&mut this, |stop, this| match std::mem::take(&mut begins) {
        true => machine.rebuild(this),
        false => machine.turn(stop, this),
    })?;
    match end {
        End::Survives => this.survive(),
        end => {
            // What cannot be put back is named before a server starts here.
            heed("state_dirs", this.put_back());
            Ok(Ended::Over(end))
        }
    }
}

/// What is done with the files that a dead server has left in a state folder, for the server's
/// user and group ids.
type Settles = fn(&Path, Option<(u32, u32)>) -> Result<(), SnapshotError>;

impl BackupDaemon<'_, '_> {
    /// Restores the state folders as the dead server has left them, because it is not rebuilt.
    pub(super) fn put_back(&self) -> anyhow::Result<()> {
        self.each_state_folder(settle)
    }

    /// Removes the dead server's files, which were set aside: the rebuilt server has executed
    /// all of the log, and has its own files.
    pub(super) fn forget_old(&self) {
        heed("state_dirs", self.each_state_folder(forget));
    }

    fn each_state_folder(&self, settles: Settles) -> anyhow::Result<()> {
        let server = &self.node.config.server;
        if !self.rebuilds || server.state_dirs.is_empty() {
            return Ok(());
        }
        let user = server.user.as_deref().map(fingerprint::user_ids).transpose()?;
        server.state_dirs.iter().try_for_each(|folder| Ok(settles(folder, user)?))
    }
}
