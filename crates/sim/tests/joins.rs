use holdfast_sim::{DiskPlan, Fault, How, JoinPlan, Plan, Step, When, simulate, trace_tail};
const MS: u64 = 1_000_000;

fn calm(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.faults.clear();
    plan.unattached = false;
    plan.load_until = 3000 * MS;
    plan.disk = DiskPlan::default();
    plan
}

#[test]
fn drawn() {
    let seeds = std::env::var("N").map_or(20, |n| n.parse().unwrap());
    let only: Option<u64> = std::env::var("T").ok().map(|t| t.parse().unwrap());
    let (mut joins, mut takeovers, mut images, mut bad, mut gone, mut events) = (0, 0, 0, 0, 0, 0);
    for seed in only.map_or(0..seeds, |t| t..t + 1) {
        let outcome = simulate(Plan::draw(seed), false);
        joins += outcome.reached.joins;
        images += outcome.reached.images;
        takeovers += outcome.takeovers;
        gone += u64::from(outcome.service_ended);
        events += outcome.events;
        if !outcome.violations.is_empty() {
            bad += 1;
            println!("seed {seed}: {} of {:?}", outcome.violations.len(), outcome.violations[0]);
        }
        if only.is_some() {
            println!("{}", Plan::draw(seed));
            for line in simulate(Plan::draw(seed), true).trace {
                println!("{line}");
            }
        }
    }
    println!(
        "{joins} joins, {takeovers} takeovers, {images} images, {gone} gone, {events} events, {bad} bad"
    );
}

#[test]
fn one() {
    let seeds = std::env::var("N").map_or(20, |n| n.parse().unwrap());
    let (mut joins, mut takeovers, mut images, mut bad) = (0, 0, 0, 0);
    let only: Option<u64> = std::env::var("T").ok().map(|t| t.parse().unwrap());
    for seed in only.map_or(0..seeds, |t| t..t + 1) {
        let mut plan = calm(seed);
        plan.faults = vec![
            (When::At(300 * MS), Fault::KillDaemon { member: 1, again: Some(200 * MS) }),
            (When::Join(Step::Joined), Fault::Dies { speaks: true, how: How::Host }),
            (When::After(300 * MS), Fault::Starts { member: 0 }),
            (When::Join(Step::Joined), Fault::Dies { speaks: true, how: How::Daemon }),
        ];
        let outcome = simulate(plan.clone(), false);
        joins += outcome.reached.joins;
        images += outcome.reached.images;
        takeovers += outcome.takeovers;
        if !outcome.violations.is_empty() {
            bad += 1;
            println!("seed {seed}: {} of {:?}", outcome.violations.len(), outcome.violations[0]);
        }
        if std::env::var("T").ok() == Some(seed.to_string()) {
            for line in simulate(plan.clone(), true).trace {
                println!("{line}");
            }
        }
    }
    println!("{joins} joins, {takeovers} takeovers, {images} images, {bad} bad");
    let _ = JoinPlan::SMOOTH;
    let _ = trace_tail;
}
