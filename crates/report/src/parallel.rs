//! The same work on many inputs, on all cores, with results in order.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

/// Applies `work` to every input, on all cores. The results do not depend on the number of cores.
pub fn map<I: Sync, O: Send>(inputs: &[I], work: impl Fn(&I) -> O + Sync) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(inputs.len()));
    let threads = available_parallelism().map_or(1, NonZero::get).min(inputs.len().max(1));
    scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, input)) = take(&next, inputs) {
                    let output = work(input);
                    // A thread that panicked ends the program, so the lock is never poisoned.
                    if let Ok(mut done) = done.lock() {
                        done.push((index, output));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, output)| output).collect()
}

fn take<'a, I>(next: &AtomicUsize, inputs: &'a [I]) -> Option<(usize, &'a I)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, inputs.get(index)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_in_order() {
        let inputs: Vec<u64> = (0..1000).collect();
        let squares = super::map(&inputs, |it| it * it);
        assert!(squares.iter().zip(&inputs).all(|(square, it)| *square == it * it));
        assert_eq!(super::map(&[] as &[u64], |it| *it), Vec::<u64>::new());
    }
}
