//! Values of one size in chunks of many, addressed by number: a table that
//! neither moves when it grows nor takes more than it holds.

use std::ops::{Index, IndexMut};

/// Number of values in one chunk.
const CHUNK: usize = 1024;
/// Number that stands for no value.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Pool<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    count: usize,
}

impl<T: Copy> Pool<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), count: 0 }
    }

    /// Takes a value in; returns its number, which is valid until
    /// [`Pool::take`]. The caller bounds how many there are, far below 2^32.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        self.count += 1;
        if let Some(at) = self.free.pop() {
            self[at] = value;
            return at;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let last = self.chunks.len() - 1;
        self.chunks[last].push(value);
        (before + self.chunks[last].len() - 1) as u32
    }

    pub(crate) fn take(&mut self, at: u32) -> T {
        let value = self[at];
        self.free.push(at);
        self.count -= 1;
        if self.count == 0 {
            *self = Self::new();
        }
        value
    }

    /// Bytes asked of the allocator.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> Index<u32> for Pool<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Pool<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut pool = Pool::new();
        let at: Vec<u32> = (0..3000u32).map(|value| pool.put(value)).collect();
        assert!(at.iter().zip(0..).all(|(at, value)| pool[*at] == value));
        assert_eq!(pool.take(at[7]), 7);
        assert_eq!(pool.put(70), at[7]);
        assert!(pool.memory_bytes() < 3 * CHUNK * 4 + 200);
        assert!(at.iter().all(|at| [70, *at].contains(&pool.take(*at))));
        assert_eq!(pool.memory_bytes(), 0, "nothing takes nothing");
    }
}
