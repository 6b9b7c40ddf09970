use super::*;

const LOSSES: [f64; 5] = [0.01, 0.05, 0.10, 0.15, 0.20];

/// Whether a value equals a number as printed, to its last digit.
fn agrees(value: f64, written: &str) -> bool {
    let decimals = written.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let expected: f64 = written.parse().expect("a number");
    (value - expected).abs() <= 0.500_001 * 0.1f64.powi(decimals as i32)
}

fn bernoulli(rate: f64, within: usize) -> Planner {
    Planner::new(30, Loss::new(rate, None).expect("a loss"), within).expect("a plan")
}

#[test]
fn equation_2_gives_the_curves_of_figure_2() {
    let written = [
        "1.352 1.040 1.004 1.000 1 1 1 1 1 1 1",
        "4.659 1.864 1.272 1.088 1.027 1.007 1.002 1 1 1 1",
        "23.59 5.897 2.727 1.733 1.333 1.152 1.067 1.028 1.011 1.004 1.001",
        "131.0 23.83 8.210 4.007 2.453 1.758 1.409 1.221 1.118 1.061 1.031",
        "807.8 115.4 31.55 12.37 6.178 3.675 2.496 1.876 1.526 1.318 1.192",
    ];
    for (loss, row) in LOSSES.into_iter().zip(written) {
        for (alpha, value) in row.split(' ').enumerate() {
            let value = if value == "1" { "1.000" } else { value };
            let mean = equation_2(30, alpha, loss);
            assert!(agrees(mean, value), "{loss} {alpha}: {mean}, not {value}");
        }
    }
}

/// The paper's §2.1 names 3 for 10 %, and 1 for 5 %.
#[test]
fn the_papers_rule_of_thumb_holds_for_32_cells_but_not_for_30() {
    let least = |m, rate, rounds| {
        (0..60).find(|alpha| equation_2(m, *alpha, rate) <= rounds).expect("some redundancy does")
    };
    assert_eq!([least(30, 0.05, 3.0), least(32, 0.05, 3.0)], [1, 1]);
    assert_eq!([least(30, 0.10, 3.0), least(32, 0.10, 3.0)], [2, 3]);
    for (alpha, written) in [(2, "3.07"), (3, "1.88")] {
        assert!(agrees(equation_2(32, alpha, 0.10), written));
    }
    for (rate, expected) in [(0.05, [1, 1, 5]), (0.15, [4, 5, 12]), (0.20, [6, 7, 16])] {
        assert_eq!([3.0, 2.0, 1.01].map(|rounds| least(30, rate, rounds)), expected);
    }
    assert_eq!([3.0, 2.0, 1.01].map(|rounds| least(30, 0.10, rounds)), [2, 3, 9]);
}

#[test]
fn the_exact_chain_gives_the_table() {
    let columns = [(0, 0), (1, 0), (2, 0), (3, 0), (5, 0), (10, 0), (0, 3), (1, 3)];
    let written = [
        "1.263 1.039 1.004 1.000 1.000 1.000 1.260 1.038",
        "1.862 1.502 1.230 1.087 1.008 1.000 1.785 1.463",
        "2.251 2.045 1.775 1.508 1.154 1.002 1.960 1.832",
        "2.601 2.472 2.291 2.063 1.580 1.038 2.015 1.973",
        "2.978 2.878 2.752 2.590 2.167 1.231 2.098 2.068",
    ];
    for (loss, row) in LOSSES.into_iter().zip(written) {
        let planner = bernoulli(loss, 3);
        for ((first, retransmit), value) in columns.into_iter().zip(row.split(' ')) {
            let rounds = planner.outcome(first, retransmit).rounds;
            assert!(agrees(rounds, value), "{loss} {first} {retransmit}: {rounds}, not {value}");
        }
    }
}

#[test]
fn redundancy_on_retransmissions_is_what_buys_the_tail() {
    let planner = bernoulli(0.10, 3);
    let [plain, more] = [0, 3].map(|retransmit| planner.outcome(1, retransmit).late);
    assert!(agrees(plain, "0.021"), "{plain}");
    assert!(agrees(more * 1e7, "1.6"), "{more}");
    let by_equation_1 = equation_1(30, 3, 0.10).powi(3);
    assert!(agrees(by_equation_1, "0.076"), "{by_equation_1}");
}

#[test]
fn the_chain_agrees_with_equation_1_about_the_first_round() {
    for loss in LOSSES {
        for alpha in 0..12 {
            let suffices = bernoulli(loss, 1).first_round_suffices(alpha);
            assert!((suffices + equation_1(30, alpha, loss) - 1.0).abs() < 1e-12);
            let late = bernoulli(loss, 1).outcome(alpha, 0).late;
            assert!((late - equation_1(30, alpha, loss)).abs() < 1e-12);
        }
    }
}

/// Sends segments cell by cell; returns the means of rounds, cells and lateness over many segments.
fn monte_carlo(m: usize, loss: Loss, alphas: (usize, usize), within: usize) -> [f64; 3] {
    const SEGMENTS: usize = 200_000;
    let mut state = 99u64;
    // Draws by SplitMix64 (Steele, Lea, Flood 2014), with the 53 bits that an f64 holds.
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let [enter, leave] = loss.transitions();
    let mut sums = [0.0; 3];
    for _ in 0..SEGMENTS {
        let (mut missing, mut rounds, mut sent) = (m, 0, 0);
        while missing > 0 {
            let mut is_lost = draw() < loss.rate();
            let burst = missing + if rounds == 0 { alphas.0 } else { alphas.1 };
            for _ in 0..burst {
                is_lost = if is_lost { draw() >= leave } else { draw() < enter };
                missing -= usize::from(!is_lost && missing > 0);
            }
            rounds += 1;
            sent += burst;
        }
        sums[0] += f64::from(rounds);
        sums[1] += sent as f64;
        sums[2] += f64::from(u8::from(rounds > within as i32));
    }
    sums.map(|sum| sum / SEGMENTS as f64)
}

#[test]
fn the_chain_agrees_with_chance() {
    let bursts = |rate, burst| Loss::new(rate, Some(burst)).expect("a loss");
    let plain = |rate| Loss::new(rate, None).expect("a loss");
    for (m, loss, alphas) in [
        (30, plain(0.10), (0, 0)),
        (30, plain(0.20), (2, 3)),
        (4, plain(0.30), (1, 1)),
        (30, bursts(0.10, 3.0), (3, 0)),
        (30, bursts(0.05, 10.0), (1, 3)),
    ] {
        let planned = Planner::new(m, loss, 2).expect("a plan").outcome(alphas.0, alphas.1);
        let seen = monte_carlo(m, loss, alphas, 2);
        // The tolerances are five standard errors of a mean of 200,000.
        for (planned, seen, error) in [
            (planned.rounds, seen[0], 0.015),
            (planned.cells, seen[1], 0.15),
            (planned.late, seen[2], 0.006),
        ] {
            assert!((planned - seen).abs() < error, "{loss:?} {alphas:?}: {planned}, {seen}");
        }
    }
}

#[test]
fn the_choice_keeps_the_deadline_with_the_fewest_cells() {
    for (within, late_max) in [(1, 0.01), (2, 0.01), (3, 1e-6)] {
        let planner = bernoulli(0.10, within);
        let best = planner.choose(late_max).expect("enough redundancy does");
        assert!(best.late <= late_max);
        for first in 0..40 {
            for retransmit in 0..40 {
                let other = planner.outcome(first, retransmit);
                assert!(other.late > late_max || other.cells >= best.cells - 1e-9);
            }
        }
    }
    assert_eq!(bernoulli(0.0, 1).choose(0.0).map(|best| best.cells), Some(30.0));
    let hopeless = Planner::new(250, Loss::new(0.5, None).expect("a loss"), 1).expect("a plan");
    assert_eq!(hopeless.choose(0.01), None);
}

#[test]
fn bursts_of_the_length_that_chance_gives_are_no_bursts() {
    let chance = bernoulli(0.20, 3).outcome(2, 1);
    let burst = Loss::new(0.20, Some(1.25)).expect("a loss");
    let same = Planner::new(30, burst, 3).expect("a plan").outcome(2, 1);
    assert!((chance.rounds - same.rounds).abs() < 1e-9 && (chance.late - same.late).abs() < 1e-9);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let some = Loss::new(0.1, None).expect("a loss");
    assert_eq!(Planner::new(0, some, 1).err(), Some(PlanError::Cells(0)));
    assert_eq!(Planner::new(257, some, 1).err(), Some(PlanError::Cells(257)));
    assert_eq!(Planner::new(30, some, 0).err(), Some(PlanError::Rounds));
    assert!(Loss::new(1.0, None).is_err() && Loss::new(f64::NAN, None).is_err());
    assert_eq!(Loss::new(0.1, Some(0.5)).err(), Some(PlanError::Burst(0.5)));
    assert_eq!(Loss::new(0.9, Some(1.0)).err(), Some(PlanError::Burst(1.0)));
}
