//! The ways in which a group breaks: what happens when, and which member must
//! speak in the end.

use crate::load::Action;
use crate::testbed::ours::Group;
use crate::testbed::ours::switch::THIRD_PORT;
use crate::testbed::{Host, Role, Testbed, interface};
use anyhow::Result;
use serde::Serialize;

/// Time for which frozen processes stay frozen, in µs: longer than any detection.
const FROZEN_US: u64 = 500_000;

/// Time for which heartbeats are missing in a false alarm, in µs: just long enough for a member to
/// be declared dead.
const FALSE_ALARM_US: u64 = 120_000;

/// Number of stops of a slow process: at 10 ms each, they take a second.
const SLOW_TURNS: usize = 100;

/// Classic BPF program that drops every packet: `ret #2`, TC_ACT_SHOT.
const DROP_ALL: &str = "1,6 0 0 2";

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// kill -9 of the server.
    Kill9,
    /// kill -9 of the primary's daemon and of its server.
    Kill9All,
    /// The primary's link goes down.
    LinkCut,
    /// Every process of the primary stops, and goes on half a second later.
    Freeze,
    /// kill -9 of the primary's daemon alone.
    DaemonKill,
    /// The members do not reach each other any more; both reach the edge.
    ChannelCut,
    /// The same, but only one of them is not heard any more; the seed says who.
    OneWayCut,
    /// The primary's messages are lost for a moment; it lives, and keeps sending.
    FalseAlarm,
    /// kill -9 of the backup's daemon, and with it of its replica.
    BackupKill,
    /// kill -9 of the replica alone.
    ReplicaKill,
    /// Every process of the backup stops, and goes on half a second later.
    BackupFreeze,
    /// The backup's link goes down.
    BackupCut,
    /// The backup loses its link to the edge, and with it the copies; the
    /// members still reach each other.
    TapCut,
    /// The primary loses its link to the edge, and with it the clients; the
    /// members still reach each other.
    ServiceCut,
    /// The primary hears nothing any more, from nobody, and goes on speaking.
    Deaf,
    /// The replica gets a tenth of its time for a second.
    ReplicaSlow,
    /// kill -9 of the edge's daemon, which is started again.
    EdgeDaemonKill,
    /// The switch learns the service's hardware address at the primary's port.
    SwitchLearnsPrimary,
    /// It learns it at the backup's port.
    SwitchLearnsBackup,
    /// It learns it at a port where neither member is.
    SwitchLearnsThird,
}

/// Who speaks for the service when all is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivor {
    /// The backup took over.
    Backup,
    /// The primary runs on alone.
    Primary,
    /// One of the two does, and the other is silent.
    Either,
    /// Nothing changed: the pair stands.
    Pair,
}

impl FaultKind {
    /// The member that must speak in the end.
    pub fn survivor(self) -> Survivor {
        match self {
            Self::Kill9
            | Self::Kill9All
            | Self::LinkCut
            | Self::ServiceCut
            | Self::Deaf
            | Self::Freeze
            | Self::DaemonKill => Survivor::Backup,
            Self::ChannelCut | Self::OneWayCut | Self::FalseAlarm => Survivor::Either,
            Self::BackupKill
            | Self::ReplicaKill
            | Self::BackupFreeze
            | Self::BackupCut
            | Self::TapCut
            | Self::SwitchLearnsPrimary
            | Self::SwitchLearnsBackup
            | Self::SwitchLearnsThird => Survivor::Primary,
            Self::EdgeDaemonKill | Self::ReplicaSlow => Survivor::Pair,
        }
    }

    /// The member that must speak when `second` has happened soon after this fault. `None`: each of
    /// the two faults took a member away, so that the service may stop rather than give wrong
    /// answers.
    pub fn survivor_with(self, second: Option<Self>) -> Option<Survivor> {
        match (self.survivor(), second.map(Self::survivor)) {
            (only, None | Some(Survivor::Pair)) | (Survivor::Pair, Some(only)) => Some(only),
            _ => None,
        }
    }

    /// Whether the members need a wire of their own, so that it can be cut without either of them
    /// losing the edge.
    pub fn needs_log_link(self) -> bool {
        matches!(
            self,
            Self::ChannelCut
                | Self::OneWayCut
                | Self::FalseAlarm
                | Self::TapCut
                | Self::ServiceCut
                | Self::Deaf
        )
    }

    /// Whether the primary lives on, fenced, when the backup has taken over.
    pub fn leaves_a_fenced_member(self) -> bool {
        let lives = [Self::Freeze, Self::ChannelCut, Self::OneWayCut, Self::FalseAlarm, Self::Deaf];
        lives.contains(&self)
    }
}

/// The steps of a fault of this kind.
///
/// # Errors
/// When a process that is to be hit does not run, or a link cannot be prepared.
pub fn fault_steps(
    kind: FaultKind,
    testbed: &Testbed,
    group: &Group<'_>,
    seed: u64,
) -> Result<Vec<(u64, Action)>> {
    let at_once = |action| Ok(vec![(0, action)]);
    match kind {
        FaultKind::Kill9 => at_once(Action::Kill(group.server_pid(Role::Primary)?)),
        FaultKind::Kill9All => Ok(vec![
            (0, Action::Kill(group.daemon_pid(Role::Primary)?)),
            (0, Action::Kill(group.server_pid(Role::Primary)?)),
        ]),
        FaultKind::DaemonKill => at_once(Action::Kill(group.daemon_pid(Role::Primary)?)),
        FaultKind::BackupKill => at_once(Action::Kill(group.daemon_pid(Role::Backup)?)),
        FaultKind::ReplicaKill => at_once(Action::Kill(group.server_pid(Role::Backup)?)),
        FaultKind::EdgeDaemonKill => at_once(Action::Kill(group.daemon_pid(Role::Edge)?)),
        FaultKind::LinkCut => Ok(cut_off(testbed, Role::Primary)),
        FaultKind::BackupCut => Ok(cut_off(testbed, Role::Backup)),
        FaultKind::ServiceCut => at_once(down(testbed.host(Role::Primary), interface::PRIMARY)),
        FaultKind::TapCut => at_once(down(testbed.host(Role::Backup), interface::BACKUP)),
        FaultKind::SwitchLearnsPrimary => at_once(learns(group, interface::EDGE_PRIMARY)?),
        FaultKind::SwitchLearnsBackup => at_once(learns(group, interface::EDGE_BACKUP)?),
        FaultKind::SwitchLearnsThird => at_once(learns(group, THIRD_PORT)?),
        FaultKind::ReplicaSlow => Ok(slow(group.server_pid(Role::Backup)?)),
        FaultKind::Freeze => freeze(testbed.host(Role::Primary)),
        FaultKind::BackupFreeze => freeze(testbed.host(Role::Backup)),
        // Traffic of a link that is down would be routed around it, through the edge.
        FaultKind::ChannelCut => [Role::Primary, Role::Backup]
            .map(|unheard| Ok((0, Deaf::prepare(testbed, unheard)?.drop_all())))
            .into_iter()
            .collect(),
        FaultKind::OneWayCut => {
            let unheard = if seed.is_multiple_of(2) { Role::Primary } else { Role::Backup };
            at_once(Deaf::prepare(testbed, unheard)?.drop_all())
        }
        FaultKind::Deaf => [interface::PRIMARY, interface::PRIMARY_LOG]
            .map(|device| Ok((0, Deaf::prepare_at(testbed, Role::Primary, device)?.drop_all())))
            .into_iter()
            .collect(),
        FaultKind::FalseAlarm => {
            let deaf = Deaf::prepare(testbed, Role::Primary)?;
            Ok(vec![(0, deaf.drop_all()), (FALSE_ALARM_US, deaf.drop_nothing())])
        }
    }
}

/// The same steps, and the primary's fence is open from the first one on: only what its gate holds
/// back, and what its clients do not believe, is left.
///
/// # Errors
/// When the laboratory's own program is not found.
pub fn unfenced(mut steps: Vec<(u64, Action)>, group: &Group<'_>) -> Result<Vec<(u64, Action)>> {
    let at = steps.len().min(1);
    steps.insert(at, (0, Action::Run(group.unfence_words()?)));
    Ok(steps)
}

/// The steps of two faults, of which the second begins `later_us` after the first.
pub fn both(
    first: Vec<(u64, Action)>,
    second: Vec<(u64, Action)>,
    later_us: u64,
) -> Vec<(u64, Action)> {
    let since_start = |steps: Vec<(u64, Action)>, mut at_us| {
        let absolute = steps.into_iter().map(move |(delay_us, action)| {
            at_us += delay_us;
            (at_us, action)
        });
        absolute.collect::<Vec<_>>()
    };
    let mut all = since_start(first, 0);
    all.extend(since_start(second, later_us));
    all.sort_by_key(|step| step.0);
    let mut before_us = 0;
    for (at_us, _) in &mut all {
        (before_us, *at_us) = (*at_us, *at_us - before_us);
    }
    all
}

/// Clears IFF_UP as `ip link set down` does, without the time to start a program.
fn down(host: &Host, device: &str) -> Action {
    Action::Write(host.interface_flags(device), "0x1002".to_owned())
}

/// A member's links go down.
pub fn cut_off(testbed: &Testbed, role: Role) -> Vec<(u64, Action)> {
    let (service, log) = match role {
        Role::Backup => (interface::BACKUP, interface::BACKUP_LOG),
        _ => (interface::PRIMARY, interface::PRIMARY_LOG),
    };
    let devices = [Some(service), testbed.has_log_link().then_some(log)];
    devices.into_iter().flatten().map(|device| (0, down(testbed.host(role), device))).collect()
}

fn freeze(host: &Host) -> Result<Vec<(u64, Action)>> {
    let pids = host.processes()?;
    Ok(vec![(0, Action::Stop(pids.clone())), (FROZEN_US, Action::Continue(pids))])
}

/// The switch learns the service's hardware address at this port, as by a frame that comes from it.
fn learns(group: &Group<'_>, port: &str) -> Result<Action> {
    Ok(Action::Run(group.learn_words(port)?))
}

/// Lets a process run for one millisecond in ten.
fn slow(pid: u32) -> Vec<(u64, Action)> {
    let turn = [(1_000, Action::Stop(vec![pid])), (9_000, Action::Continue(vec![pid]))];
    turn.into_iter().cycle().take(2 * SLOW_TURNS).collect()
}

/// A host's end of a wire, which can be made to hear nothing.
struct Deaf<'a> {
    host: &'a Host,
    device: &'static str,
}

impl<'a> Deaf<'a> {
    /// Prepares the other member's end, so that it can stop hearing `unheard`.
    fn prepare(testbed: &'a Testbed, unheard: Role) -> Result<Self> {
        let (role, device) = match unheard {
            Role::Backup => (Role::Primary, interface::PRIMARY_LOG),
            _ => (Role::Backup, interface::BACKUP_LOG),
        };
        Self::prepare_at(testbed, role, device)
    }

    fn prepare_at(testbed: &'a Testbed, role: Role, device: &'static str) -> Result<Self> {
        let host = testbed.host(role);
        let words = ["-n", host.namespace(), "qdisc", "add", "dev", device, "clsact"];
        // The queue exists already if both faults of a run need it.
        let made = crate::command::output("tc", &words);
        if let Err(error) = made
            && !error.to_string().contains("Exclusivity")
        {
            return Err(error.context("preparing a link that hears nothing"));
        }
        Ok(Self { host, device })
    }

    fn drop_all(&self) -> Action {
        self.tc(&["filter", "add"], &["bpf", "direct-action", "bytecode", DROP_ALL])
    }

    fn drop_nothing(&self) -> Action {
        self.tc(&["filter", "del"], &[])
    }

    fn tc(&self, verb: &[&str], rest: &[&str]) -> Action {
        let start = ["tc", "-n", self.host.namespace()];
        let place = ["dev", self.device, "ingress"];
        let words = [&start[..], verb, &place[..], rest].concat();
        Action::Run(words.into_iter().map(str::to_owned).collect())
    }
}
