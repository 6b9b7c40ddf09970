use super::*;

fn least(k: usize, percent: usize, eps: f64) -> usize {
    let path = Path::independent(percent as f64 / 100.0);
    // A hair more than eps: 0.1 · 0.1 is not exactly 0.01.
    (0..).find(|alpha| path.symbol_late(k, *alpha) <= eps + 1e-12).unwrap()
}

/// `frontier.py`'s table: least alpha for k symbols, at 1, 5, 10, 20 and 30 % loss.
#[test]
fn the_closed_form_is_the_published_table() {
    let of_a_hundred = [
        (1, [0, 1, 1, 2, 3]),
        (2, [0, 1, 2, 3, 4]),
        (4, [0, 1, 2, 4, 6]),
        (10, [0, 2, 4, 7, 10]),
        (20, [0, 3, 5, 10, 17]),
        (45, [0, 5, 9, 19, 31]),
        (100, [0, 8, 17, 36, 59]),
    ];
    for (k, alphas) in of_a_hundred {
        let found = [1, 5, 10, 20, 30].map(|percent| least(k, percent, 0.01));
        assert_eq!(found, alphas, "k = {k}");
    }
    assert_eq!([1, 5, 10, 20].map(|percent| least(20, percent, 0.001)), [2, 5, 8, 14]);
}

#[test]
fn the_mix_of_two_numbers_misses_exactly_as_often_as_it_may() {
    for (percent, mean) in [(3.0, 0.70), (5.0, 0.84), (20.0, 1.94), (30.0, 2.89)] {
        let extra = extra(Path::independent(percent / 100.0), 1, 0.01, Condition::Symbol).unwrap();
        assert!((extra.mean() - mean).abs() < 0.05, "{percent} %: {extra:?}");
        assert!((extra.late - 0.01).abs() < 1e-9);
    }
}

#[test]
fn cells_are_those_of_the_published_table() {
    let at = |loss, bytes, eps| cells(Path::independent(loss), bytes, eps).unwrap();
    assert_eq!(at(0.1, 1228, 0.0101), Cells { needed: 3, extra: 2 });
    assert_eq!(at(0.1, 1228, 0.001), Cells { needed: 5, extra: 4 });
    assert_eq!(at(0.1, 92, 0.0101), Cells { needed: 1, extra: 1 });
}

#[test]
fn bursts_need_more_and_the_losses_are_a_distribution() {
    let bursty = Path { loss: 0.1, burst_packets: 3.0 };
    for n in [1, 7, 40] {
        for path in [bursty, Path::independent(0.1)] {
            let losses = path.losses(n);
            let all: Vec<f64> = losses.good.iter().zip(&losses.bad).map(|(a, b)| a + b).collect();
            let mean: f64 = all.iter().enumerate().map(|(lost, p)| lost as f64 * p).sum();
            assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert!((mean - 0.1 * n as f64).abs() < 1e-9);
        }
    }
    let need = |path| extra(path, 10, 0.01, Condition::Symbol).unwrap().mean();
    assert!(need(bursty) > 2.0 * need(Path::independent(0.1)));
}

#[test]
fn rows_say_what_is_possible() {
    let ms = Duration::from_millis;
    let dense = row(0.1, ms(20), 5000.0, 1200, ms(2), 0.01);
    assert!((0.28..0.36).contains(&dense.overhead), "{dense:?}");
    let lone = row(0.1, ms(20), 20.0, 1228, ms(2), 0.001);
    assert_eq!(lone.cells, Some((5, 4)));
    assert!((1.0..1.25).contains(&lone.overhead), "{lone:?}");
    let patient = row(0.1, ms(20), 20.0, 92, ms(22), 0.01);
    assert!((patient.overhead - 0.111).abs() < 0.001);
    for odd in [row(f64::NAN, ms(0), -1.0, 0, ms(0), 0.01), row(7.0, ms(20), 1e12, 1, ms(2), 0.0)] {
        assert!(!odd.why.is_empty());
    }
}
