//! The edge's disk: two blocks (`daemon/edge_state.rs`). A write may be torn, and the disk may be
//! rolled back.

use holdfast_cluster::state::{BLOCKS, StateBlock, StateBlocks, StateWrite};

/// The blocks of the state file, and all their earlier contents.
#[derive(Debug)]
pub struct Disk {
    blocks: [Vec<u8>; BLOCKS],
    history: Vec<[Vec<u8>; BLOCKS]>,
}

impl Disk {
    pub fn new() -> Self {
        let empty = StateBlock::default().to_string().into_bytes();
        Self { blocks: [empty.clone(), empty], history: Vec::new() }
    }

    pub fn read(&self) -> Option<StateBlocks> {
        StateBlocks::read(self.blocks.each_ref().map(|block| Some(block.as_slice())))
    }

    /// Writes `part` of the state's bytes; all of them unless the power fails.
    pub fn write(&mut self, write: &StateWrite, part: Option<usize>) {
        self.history.push(self.blocks.clone());
        let mut bytes = write.bytes();
        bytes.truncate(part.unwrap_or(bytes.len()));
        self.blocks[write.block] = bytes;
    }

    /// Puts back the content from before the last `writes` writes.
    pub fn roll_back(&mut self, writes: usize) {
        let at = self.history.len().saturating_sub(writes);
        if let Some(blocks) = self.history.get(at) {
            self.blocks = blocks.clone();
        }
    }
}
