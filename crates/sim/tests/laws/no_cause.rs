//! No member is taken for dead, and none takes over, without a cause.

use crate::scope;
use holdfast_sim::{DiskPlan, Fault, Plan, Ways, When, simulate};

const MS: u64 = 1_000_000;
/// Seeds of each case.
const SEEDS: u64 = 60;
/// Time after all clients are done in which a member could still lose patience.
const REST: u64 = 500 * MS;

#[test]
fn what_is_no_cause_leads_to_no_takeover() {
    let freeze = |member| Fault::FreezeHost { member, lasts: 30 * MS };
    let no_causes = [
        None,
        Some(freeze(0)),
        Some(freeze(1)),
        // A standstill of the edge, of any length.
        Some(Fault::FreezeHost { member: 2, lasts: 900 * MS }),
        Some(Fault::SetsClock { member: 0, by: -86_400_000 * MS as i64 }),
        Some(Fault::SlowBackup { lasts: 1_000 * MS }),
        Some(Fault::TapLoss { lasts: 300 * MS }),
        Some(Fault::EdgeDaemon { lasts: 400 * MS }),
    ];
    for fault in no_causes {
        for seed in 0..scope::of(30, SEEDS) {
            let faults: Vec<(When, Fault)> =
                fault.map(|fault| (When::At(300 * MS), fault)).into_iter().collect();
            // A server without a shim is a cause by itself.
            let plan = Plan { faults, rest: REST, unattached: false, ..Plan::draw(seed) };
            let outcome = simulate(plan, false);
            let why = &outcome.violations;
            assert!(why.is_empty() && outcome.takeovers == 0, "seed {seed}, {fault:?}: {why:?}");
        }
    }
}

#[test]
fn a_client_at_fault_costs_no_other_anything() {
    let mut replies = 0;
    for seed in 0..3 * SEEDS {
        let mut plan = Plan::draw(seed);
        plan.faults.clear();
        for client in &mut plan.clients[1..] {
            (client.lies, client.vanishes_at) = (false, None);
        }
        let first = &mut plan.clients[0];
        (first.lies, first.vanishes_at) = (seed % 3 != 1, (seed % 3 != 0).then_some(300 * MS));
        let outcome = simulate(plan, false);
        let why = &outcome.violations;
        assert!(why.is_empty() && outcome.takeovers == 0, "seed {seed}: {why:?}");
        replies += outcome.replies;
    }
    assert!(replies > 100 * SEEDS, "they exercise too little");
}

/// A plan whose backup follows from its start.
fn follows(seed: u64) -> Plan {
    Plan { cold: None, ..Plan::draw(seed) }
}

/// The primary does not hear the backup for a moment; the backup hears the primary,
/// and the edge hears both. A primary that has asked to run on alone stops asking, and
/// nobody takes over.
#[test]
fn a_backup_that_is_heard_again_soon_is_a_backup_still() {
    let run = |seed, lasts| {
        let cut = Fault::CutPair { ways: Ways::From, lasts: lasts * MS };
        let faults = vec![(When::At(300 * MS), cut)];
        let drawn = follows(seed);
        let plan = Plan { faults, rest: REST, unattached: false, pulses: true, ..drawn };
        let outcome = simulate(plan, true);
        let why = &outcome.violations;
        assert!(why.is_empty(), "seed {seed}, {lasts} ms: {why:?}");
        let says = |what| outcome.trace.iter().any(|line| line.contains(what));
        (says("Doubts"), says("Promotes {") || says(": Alone {"))
    };
    let all = |lasts| (0..SEEDS).map(move |seed| run(seed, lasts));
    let doubted = all(118).inspect(|run| assert!(!run.1)).filter(|run| run.0).count();
    let parted = all(400).filter(|run| run.1).count();
    assert!(doubted as u64 > SEEDS / 2 && parted as u64 > SEEDS / 2, "{doubted}, {parted}");
}

/// Nobody would miss the primary: it hears neither its clients nor its backup, and
/// still speaks.
#[test]
fn a_primary_that_hears_nothing_is_replaced() {
    for seed in 0..SEEDS {
        let (lasts, ways) = (2_000 * MS, Ways::To);
        let faults = vec![
            (When::At(300 * MS), Fault::CutEdge { member: 0, ways, lasts }),
            (When::After(0), Fault::CutPair { ways: Ways::From, lasts }),
        ];
        let drawn = follows(seed);
        // One that fails keeps the pair from its start.
        let disk = DiskPlan { fails_permille: 0, ..drawn.disk };
        let plan = Plan { faults, disk, unattached: false, pulses: true, ..drawn };
        let outcome = simulate(plan, false);
        let why = &outcome.violations;
        assert!(why.is_empty() && outcome.takeovers == 1, "seed {seed}: {why:?}");
    }
}
