use super::*;
use holdfast_chance::Rng;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

/// The estimates after every 20th of `count` datagrams.
fn estimates(count: u64, seed: u64, mut lost: impl FnMut(&mut Rng, u64) -> bool) -> Vec<Estimate> {
    let (mut rng, mut observer) = (Rng::new(seed, 0), Observer::default());
    let (mut estimate, mut all) = (Estimate::default(), Vec::new());
    for number in 0..count {
        if !lost(&mut rng, number) {
            observer.arrives(number, MS * number as u32);
        }
        if number % 20 == 19 {
            estimate.note(observer.counts(), false);
            all.push(estimate.clone());
        }
    }
    all
}

#[test]
fn the_estimate_has_no_bias() {
    for loss in [0.003, 0.01, 0.05, 0.1, 0.2, 0.3] {
        let all = estimates(200_000, 5, |rng, _| rng.chance(loss));
        let loss_of: Vec<f64> = all.iter().skip(200).map(Estimate::loss).collect();
        let mean = loss_of.iter().sum::<f64>() / loss_of.len() as f64;
        let variance =
            loss_of.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / loss_of.len() as f64;
        println!("loss {loss}: mean {mean:.4}, deviation {:.4}", variance.sqrt());
        assert!((mean - loss).abs() < 0.03 * loss + 0.0005, "{loss}: {mean}");
        assert!(variance.sqrt() < 0.013, "{loss}: {}", variance.sqrt());
    }
}

#[test]
fn a_change_is_believed_within_a_few_hundred_datagrams() {
    let all = estimates(4000, 6, |rng, number| rng.chance(if number < 2000 { 0.01 } else { 0.2 }));
    assert!(all[99].loss() < 0.02);
    assert!(all[115].loss() > 0.12, "{}", all[115].loss());
    let all = estimates(4000, 6, |rng, number| rng.chance(if number < 2000 { 0.2 } else { 0.0 }));
    assert!(all[115].loss() < 0.03, "{}", all[115].loss());
}

#[test]
fn bursts_are_measured_in_packets_and_ms() {
    let mut is_bad = false;
    let all = estimates(50_000, 7, |rng, _| {
        // Ten per cent in runs of three.
        is_bad = if is_bad { !rng.chance(1.0 / 3.0) } else { rng.chance(0.1 / 0.9 / 3.0) };
        is_bad
    });
    let last = all.last().unwrap();
    assert!((2.4..3.6).contains(&last.burst_packets()), "{}", last.burst_packets());
    // Runs of more than one cover about four gaps of 1 ms, and the one before.
    assert!((2.0..8.0).contains(&last.burst_ms()), "{}", last.burst_ms());
    let all = estimates(50_000, 8, |rng, _| rng.chance(0.1));
    assert!(all.last().unwrap().burst_packets() < 1.3);
}

#[test]
fn what_comes_late_was_not_lost_and_the_tolerance_follows() {
    let mut observer = Observer::default();
    observer.arrives(0, MS);
    observer.arrives(2, 2 * MS);
    assert_eq!((observer.settled(), observer.counts().lost), (3, 1));
    observer.arrives(1, 5 * MS);
    assert_eq!(observer.counts().lost, 0);
    // From now on 3 ms and a quarter are waited for.
    observer.arrives(4, 10 * MS);
    assert_eq!(observer.settled(), 3);
    assert_eq!(observer.settles_at(), Some(10 * MS + 3750 * MS / 1000));
    observer.arrives(3, 12 * MS);
    assert_eq!((observer.settled(), observer.counts().lost), (5, 0));
}

#[test]
fn counts_that_grow_are_news_and_an_outage_is_not_averaged() {
    let mut estimate = Estimate::default();
    let counts = |settled, lost| LossCounts { settled, lost, runs: lost, burst_100us: 0 };
    assert_eq!(estimate.news(counts(10, 2)), (10.0, 2.0));
    estimate.note(counts(10, 2), false);
    assert_eq!(estimate.news(counts(30, 1)), (20.0, -1.0));
    assert_eq!(estimate.news(counts(10, 5)), (0.0, 0.0));
    let loss = estimate.loss();
    estimate.note(counts(110, 102), true);
    assert_eq!((estimate.loss(), estimate.news(counts(111, 102))), (loss, (1.0, 0.0)));
}

proptest! {
    #[test]
    fn any_numbers_are_counted_without_panic(numbers in prop::collection::vec(0u64..100_000, 1..200)) {
        let (mut observer, mut estimate) = (Observer::default(), Estimate::default());
        for (i, number) in numbers.iter().enumerate() {
            observer.arrives(*number, MS * i as u32);
            estimate.note(observer.counts(), false);
            prop_assert!(observer.undecided.len() <= UNDECIDED_MAX);
            prop_assert!((0.0..=1.0).contains(&estimate.loss()));
        }
    }
}
