//! The edge's disk fails, tears and is rolled back, while members die and the edge is
//! started again: nobody is granted what another may have, and nothing acknowledged
//! is lost.

use crate::scope;
use holdfast_sim::{DiskPlan, Fault, Plan, Ways, When, simulate};

const MS: u64 = 1_000_000;
/// For each case.
const SEEDS: u64 = 25;

fn at(ms: u64, fault: Fault) -> (When, Fault) {
    (When::At(ms * MS), fault)
}

fn after(ms: u64, fault: Fault) -> (When, Fault) {
    (When::After(ms * MS), fault)
}

#[test]
fn no_law_is_broken() {
    let daemon = Fault::EdgeDaemon { lasts: 200 * MS };
    let host = Fault::EdgeHost { lasts: 300 * MS };
    let dies = Fault::HostDies { member: 0 };
    let killed = Fault::KillDaemon { member: 0, again: Some(100 * MS) };
    let cut = Fault::CutPair { ways: Ways::Both, lasts: 500 * MS };
    let mut runs = 0;
    let mut takeovers = 0;
    for first in [Fault::Mistake, dies, killed, cut] {
        for restart in [daemon, host] {
            for gap_ms in [1, 4, 40, 400] {
                for order in 0..2 {
                    let faults = if order == 0 {
                        vec![at(300, first), after(gap_ms, restart), after(gap_ms, first)]
                    } else {
                        vec![at(300, restart), after(gap_ms, first), after(300, restart)]
                    };
                    for seed in 0..scope::of(10, SEEDS) {
                        let mut plan = Plan::draw(seed);
                        plan.disk = DiskPlan { fails_permille: 400, rolls_back: true };
                        plan.faults.clone_from(&faults);
                        let outcome = simulate(plan.clone(), false);
                        if !outcome.violations.is_empty() {
                            let said = simulate(plan, true).trace;
                            let said = said.iter().filter(|line| !line.contains(" seq "));
                            let said: Vec<&str> = said.map(String::as_str).collect();
                            let why = &outcome.violations;
                            panic!("{}\nseed {seed}, {faults:?}: {why:?}", said.join("\n"));
                        }
                        runs += 1;
                        takeovers += outcome.takeovers;
                    }
                }
            }
        }
    }
    println!("{runs} runs, {takeovers} takeovers");
    assert!(takeovers * 10 > runs, "they exercise too little");
}
