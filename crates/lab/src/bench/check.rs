//! `holdfast-lab bench check`: one load, no fault, every byte checked. The
//! shortest way to see whether a server works at all, with or without Holdfast.

use super::service::{Variant, address, program_for, with_service};
use crate::load::{Action, Fault, Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

/// Options of a check.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// With Holdfast, without, or behind HAProxy.
    #[arg(long, value_enum, default_value = "ours")]
    pub variant: Variant,
    /// What the connections do.
    #[arg(long, value_enum, default_value = "pingpong")]
    pub workload: Workload,
    /// How many connections.
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
    /// How long, ms.
    #[arg(long, default_value_t = 500)]
    pub duration_ms: u64,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Which HTTP server.
    #[arg(long, value_enum)]
    pub server: Option<Program>,
    /// Kill the server at half time: a control, for without Holdfast this must
    /// be reported as broken connections.
    #[arg(long)]
    pub kill: bool,
    /// Trouble between client and edge, such as "delay 25ms loss 1%".
    #[arg(long)]
    pub client_path: Option<String>,
}

/// What the check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    workload: Workload,
    variant: Variant,
    connections: usize,
    survived: usize,
    replies: u64,
    bytes_in: u64,
    bytes_out: u64,
    retransmits: u64,
    longest_gap_ms: f64,
    own_pause_ms: f64,
    failures: Vec<String>,
}

/// Runs the check.
///
/// # Errors
/// When the service cannot be built; wrong bytes are results, not errors.
pub fn run(args: &CheckArgs) -> Result<CheckReport> {
    let program = program_for(args.workload, args.server);
    let group = Group::usual(args.workload, args.connections, program.port());
    let documents = group.size_bytes;
    let client_path = match &args.client_path {
        Some(text) => Some(text.parse()?),
        None => None,
    };
    let plan = Plan { client_path, ..Plan::default() };
    let mut spec = Spec {
        address: address(args.ipv6)?,
        groups: vec![group],
        duration_ms: args.duration_ms,
        congestion: None,
        fault: None,
        seed: 1,
        points: Vec::new(),
    };
    let options = GroupOptions::default();
    let report = with_service(args.variant, program, &plan, &options, documents, |service| {
        if args.kill {
            let steps = vec![(0, Action::Kill(service.server_pid()?))];
            let half_us = args.duration_ms * 500;
            spec.fault = Some(Fault { after_us: half_us, redraw_us: half_us, steps });
        }
        Run::start(service.testbed.host(Role::Client), &spec)?.finish()
    })?;
    let errors = report.connections.iter().filter_map(|it| it.error.clone());
    Ok(CheckReport {
        workload: args.workload,
        variant: args.variant,
        connections: report.connections.len(),
        survived: report.connections.iter().filter(|it| it.survived()).count(),
        replies: report.total(|it| it.replies),
        bytes_in: report.total(|it| it.bytes_in),
        bytes_out: report.total(|it| it.bytes_out),
        retransmits: report.retransmits,
        longest_gap_ms: report.stall_ns() as f64 / 1e6,
        own_pause_ms: report.own_pause_ns as f64 / 1e6,
        failures: errors.chain(report.shared_error.clone()).collect(),
    })
}

impl CheckReport {
    /// Whether every byte of every connection was right.
    pub fn is_good(&self) -> bool {
        self.survived == self.connections && self.failures.is_empty()
    }

    /// A few lines for people.
    pub fn print(&self) {
        println!(
            "{:?} {:?}: {} of {} connections right; {} replies, {:.1} MB in, {:.1} MB out, \
             {} retransmits; longest gap {:.2} ms, own pauses up to {:.2} ms",
            self.variant,
            self.workload,
            self.survived,
            self.connections,
            self.replies,
            self.bytes_in as f64 / 1e6,
            self.bytes_out as f64 / 1e6,
            self.retransmits,
            self.longest_gap_ms,
            self.own_pause_ms
        );
        self.failures.iter().for_each(|failure| println!("{failure}"));
    }
}
