//! A server that has fallen while it spoke alone is rebuilt on its own host (decision 31):
//! a takeover from oneself. What the dead one's kernel still has of its connections goes
//! first, without a word to their clients.

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

/// What is left of a server that has fallen.
pub struct Fallen {
    pub machine: BackupMachine,
    pub kept: Kept,
    /// It holds back what its kernel has still to say.
    pub gate: Gate,
}

/// Rebuilds it, and speaks again.
///
/// # Errors
/// What keeps it from that: interfaces, programs.
pub fn rebuild(node: &mut MemberContext<'_>, fallen: Fallen) -> anyhow::Result<Ended> {
    let Fallen { mut machine, kept: Kept { tap, cold, unnoted, .. }, mut gate } = fallen;
    let (interface, services, pins) = (&node.me.interface, node.services(), node.pin_dir());
    // From here on its kernel gets nothing that it could answer, and has nothing to say.
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

/// What becomes of the files that a dead server has left in a state folder of that user's.
type Settles = fn(&Path, Option<(u32, u32)>) -> Result<(), SnapshotError>;

impl BackupDaemon<'_, '_> {
    /// The server is not rebuilt: its state folders are as it has left them.
    pub(super) fn put_back(&self) -> anyhow::Result<()> {
        self.each_state_folder(settle)
    }

    /// It has all of its log, and its state folders with it.
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
