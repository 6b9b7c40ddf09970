//! Members that come back join the one that speaks alone, and whichever member dies
//! meanwhile, the survivors do what docs/REPLICATION.md says.

use crate::calm::{MS, calm, run};
use crate::scope;
use holdfast_sim::{Fault, How, JoinPlan, Plan, Step, Ways, When, simulate, trace_tail};

/// Number of runs of each named plan.
const SEEDS: u64 = 8;

/// Seeds of drawn plans, beyond those of other tests.
fn drawn() -> std::ops::Range<u64> {
    100_000..scope::of(100_250, 100_600)
}

/// The backup dies, and comes back.
fn comes_back() -> Vec<(When, Fault)> {
    vec![(When::At(300 * MS), Fault::KillDaemon { member: 1, again: Some(100 * MS) })]
}

fn starts(after: u64) -> [(When, Fault); 2] {
    let starts = |member| Fault::Starts { member };
    [(When::After(after), starts(0)), (When::After(MS), starts(1))]
}

/// If the speaking member dies before the joiner can be in step, the service ends, as
/// it would have without a joiner; afterwards the joiner takes over.
#[test]
fn who_speaks_dies_in_every_step() {
    for (step, how, seed) in all(&[How::Daemon, How::Server, How::Host]) {
        let mut plan = calm(seed, 3000);
        plan.faults = comes_back();
        plan.faults.push((When::Join(step), Fault::Dies { speaks: true, how }));
        let outcome = run(&plan);
        let in_step = matches!(step, Step::InStep | Step::Joined);
        // The message that the joiner has everything may be on its way to it.
        let may = in_step || matches!(step, Step::Commits | Step::Closes);
        let seen = (outcome.takeovers, outcome.service_ended);
        let takes_over = seen == (1, false) && may;
        // A server that speaks alone outlives its daemon.
        let lives = seen == (0, false) && step == Step::Prepares && how == How::Daemon;
        let ends = seen == (0, true) && !in_step;
        assert!(takes_over || lives || ends, "{step:?} {how:?} {seen:?}\n{plan}");
    }
}

/// One member is started, whichever it is, and serves without a backup; the other one joins
/// when it comes, and takes over.
#[test]
fn a_group_serves_from_its_first_member_on() {
    for (first, seed) in (0..2).flat_map(|first| (0..2 * SEEDS).map(move |seed| (first, seed))) {
        let mut plan = calm(seed, 3000);
        let other = 1 - first;
        plan.load_until = 11_000 * MS;
        plan.faults = vec![
            (When::At(0), Fault::HostDies { member: other }),
            (When::After(7000 * MS), Fault::Starts { member: other }),
            (When::Join(Step::Joined), Fault::Dies { speaks: true, how: How::Host }),
        ];
        let outcome = run(&plan);
        assert_eq!((outcome.reached.joins, outcome.takeovers), (1, 1), "{first}\n{plan}");
        assert!(outcome.replies > 100, "{first}\n{plan}");
    }
}

/// The service goes on, and the joiner joins when it comes back.
#[test]
fn who_joins_dies_in_every_step() {
    for (step, how, seed) in all(&[How::Daemon, How::Server, How::Host]) {
        let mut plan = calm(seed, 3000);
        plan.load_until = 6000 * MS;
        plan.faults = comes_back();
        plan.faults.push((When::Join(step), Fault::Dies { speaks: false, how }));
        plan.faults.extend(starts(100 * MS));
        // Until it has joined.
        plan.faults.push((When::After(3000 * MS), Fault::TapLoss { lasts: MS }));
        let outcome = run(&plan);
        let what = format!("{step:?} {how:?}\n{plan}");
        assert_eq!((outcome.takeovers, outcome.service_ended), (0, false), "{what}");
        let in_step = matches!(step, Step::InStep | Step::Joined);
        let gives_up = in_step && how == How::Server;
        assert!(outcome.reached.joins > u64::from(in_step && !gives_up), "{what}");
    }
}

fn all(hows: &[How]) -> impl Iterator<Item = (Step, How, u64)> + '_ {
    let each = |step| {
        hows.iter().flat_map(move |how| (0..scope::of(5, SEEDS)).map(move |n| (step, *how, n)))
    };
    Step::ALL.into_iter().flat_map(each)
}

/// Cutting or stopping something for a moment costs nobody a connection.
#[test]
fn ways_are_cut_in_every_step() {
    for (step, _, seed) in all(&[How::Host]) {
        let lasts = 150 * MS;
        let faults = [
            Fault::CutPair { ways: Ways::Both, lasts },
            Fault::CutEdge { member: 1, ways: Ways::Both, lasts },
            Fault::CutEdge { member: 0, ways: Ways::Both, lasts },
            Fault::FreezeHost { member: 0, lasts },
            Fault::FreezeHost { member: 1, lasts },
            Fault::TapLoss { lasts },
            Fault::EdgeDaemon { lasts },
        ];
        for fault in faults {
            let mut plan = calm(seed, 3000);
            plan.faults = comes_back();
            plan.faults.push((When::Join(step), fault));
            plan.faults.extend(starts(200 * MS));
            assert!(!run(&plan).service_ended, "{step:?}\n{plan}");
        }
    }
}

fn chain(seed: u64) -> Plan {
    let mut plan = calm(seed, 3000);
    plan.load_until = 8000 * MS;
    plan.faults = comes_back();
    for life in 0..10 {
        let how = [How::Host, How::Daemon, How::Server][life % 3];
        plan.faults.push((When::Join(Step::Joined), Fault::Dies { speaks: true, how }));
        // The daemon of a primary whose server has ended is restarted, too.
        let rest = Fault::Dies { speaks: false, how: How::Daemon };
        plan.faults.push((When::After(700 * MS), rest));
        plan.faults.push((When::After(20 * MS), Fault::Starts { member: life % 2 }));
    }
    plan
}

/// Ten lives, each of which ends with the death of the speaking member, in
/// alternating ways.
#[test]
fn ten_takeovers_in_a_row_cost_nobody_a_connection() {
    for seed in 0..SEEDS {
        let plan = chain(seed);
        let outcome = run(&plan);
        let seen = (outcome.takeovers, outcome.reached.joins >= 10, outcome.service_ended);
        assert_eq!(seen, (10, true, false), "{plan}");
    }
}

/// A client that reads nothing for a while is waited for; one that does so for longer
/// loses no more than its own connection.
#[test]
fn windows_may_be_closed_while_somebody_joins() {
    for (seed, until) in (0..3 * SEEDS).flat_map(|seed| [(seed, 2000 * MS), (seed, 9000 * MS)]) {
        let mut plan = calm(seed, 3000);
        plan.clients[0].looks_away = Some((250 * MS, until));
        plan.clients[0].bulk_max = 1500;
        plan.faults = comes_back();
        let dies = Fault::Dies { speaks: true, how: How::Host };
        plan.faults.push((When::Join(Step::Joined), dies));
        plan.faults.extend(starts(100 * MS));
        let outcome = run(&plan);
        assert_eq!((outcome.takeovers, outcome.service_ended), (1, false), "{plan}");
    }
}

/// Nobody can be asked for what clients have sent on connections that the server accepts
/// only later: the joiner is in step without those bytes, and a takeover costs just
/// these connections.
#[test]
fn connections_that_nobody_accepts_hold_up_no_join() {
    let mut lost = 0;
    for seed in 0..3 * SEEDS {
        for takes_over in [false, true] {
            let mut plan = calm(seed, 3000);
            plan.load_until = 6000 * MS;
            // A client is told once that its connection is over.
            plan.path.loss_permille = 0;
            plan.faults = vec![(When::At(300 * MS), Fault::AcceptsNobody { lasts: 4000 * MS })];
            let dies = Fault::KillDaemon { member: 1, again: Some(100 * MS) };
            plan.faults.push((When::After(10 * MS), dies));
            if takes_over {
                let dies = Fault::Dies { speaks: true, how: How::Host };
                plan.faults.push((When::Join(Step::Joined), dies));
            }
            let outcome = run(&plan);
            let seen = (outcome.reached.joins, outcome.takeovers, outcome.service_ended);
            assert_eq!(seen, (1, u64::from(takes_over), false), "{plan}");
            lost += outcome.reached.left_out;
        }
    }
    assert!(lost > SEEDS, "{lost} connections: too little is exercised");
}

/// Images that cannot be taken, and copies that cannot be made, are tried again.
#[test]
fn failed_attempts_are_made_again() {
    let mut joins = 0;
    for seed in 0..SEEDS {
        let mut plan = calm(seed, 3000);
        plan.load_until = 8000 * MS;
        plan.joins = JoinPlan { untaken_permille: 300, unmade_permille: 300, ..plan.joins };
        plan.faults = comes_back();
        joins += run(&plan).reached.joins;
    }
    assert!(joins >= SEEDS / 2, "{joins} of {SEEDS}");
}

/// A server that writes over its books is not joined on what cannot be, and serves on. That
/// nothing was written to a client may be true again once the connection is over.
#[test]
fn who_says_what_cannot_be_is_not_joined() {
    for (said, may_be) in [(0, true), (1 << 40, true), (u64::MAX, false)] {
        let (mut images, mut joins) = (0, 0);
        for seed in 0..SEEDS {
            let mut plan = calm(seed, 3000);
            plan.joins.out_bytes_said = Some(said);
            // By that way the lied about is over in one of the seeds when the image is taken.
            plan.direct = None;
            plan.faults = comes_back();
            let outcome = run(&plan);
            assert_eq!((outcome.takeovers, outcome.service_ended), (0, false), "{said}\n{plan}");
            (images, joins) = (images + outcome.reached.images, joins + outcome.reached.joins);
        }
        assert!(images > joins && (may_be || joins == 0), "{said}: {images} images, {joins} joins");
    }
}

#[test]
fn no_drawn_join_breaks_a_law() {
    let (mut runs, mut joins, mut takeovers) = (0, 0, 0);
    for seed in drawn() {
        let plan = Plan::draw(seed);
        if !plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Starts { .. })) {
            continue;
        }
        let outcome = simulate(plan.clone(), false);
        if let Some(line) = outcome.failure() {
            panic!("{}\n{line}", trace_tail(plan));
        }
        runs += 1;
        joins += outcome.reached.joins;
        takeovers += outcome.takeovers;
    }
    println!("{runs} runs, {joins} joins, {takeovers} takeovers");
    assert!(joins * 4 > runs, "{joins} joins in {runs} runs: too little is exercised");
}

/// The daemon of a server that speaks alone dies, and the next one takes the server over:
/// nobody loses a connection, and a member joins it, and takes over.
#[test]
fn a_server_that_outlives_its_daemon_is_joined() {
    for seed in 0..3 * SEEDS {
        let mut plan = calm(seed, 3000);
        plan.load_until = 8000 * MS;
        plan.faults = vec![(When::At(300 * MS), Fault::KillDaemon { member: 1, again: None })];
        for after in [700, 20 + 50 * (seed % 8)] {
            let dies = Fault::KillDaemon { member: 0, again: Some((1 + seed) * 4 * MS) };
            plan.faults.push((When::After(after * MS), dies));
        }
        plan.faults.push((When::After(700 * MS), Fault::Starts { member: 1 }));
        let dies = Fault::Dies { speaks: true, how: How::Host };
        plan.faults.push((When::Join(Step::Joined), dies));
        let outcome = run(&plan);
        let seen = (outcome.reached.joins, outcome.takeovers, outcome.service_ended);
        assert_eq!(seen, (1, 1, false), "{plan}");
        assert!(outcome.reached.taken_up >= 1, "{plan}");
    }
}
