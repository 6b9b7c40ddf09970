//! The codecs side by side, each used as its documentation advises: what can be made once is made
//! once, and lists of slices are made per call.

use anyhow::{Context as _, Result};
use holdfast_code::{Code, KEPT_MAX, Kernel};
use reed_solomon_erasure::galois_8::ReedSolomon;
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use rusty_erasure::{Coder, Matrix};

/// `data` cells of a segment, `extra` redundant ones, `len` bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub data: usize,
    pub extra: usize,
    pub len: usize,
}

impl Shape {
    /// Bytes of a segment.
    pub fn bytes(&self) -> usize {
        self.data * self.len
    }
}

/// A segment and its redundant cells, one behind the other.
#[derive(Clone, Debug)]
pub struct Packet {
    pub segment: Vec<u8>,
    pub extra: Vec<u8>,
}

/// One codec.
pub trait Codec {
    /// Computes `packet.extra` from `packet.segment`.
    fn encode(&mut self, packet: &mut Packet) -> Result<()>;
    /// Restores the cells `missing`, as many as there are redundant ones, from what is left of
    /// `packet.segment` and all of `packet.extra`.
    fn decode(&mut self, packet: &mut Packet, missing: &[u8]) -> Result<()>;
}

/// A copy of the packet, the bound that no codec beats by much.
pub struct Memcpy(pub Vec<u8>);

impl Codec for Memcpy {
    fn encode(&mut self, packet: &mut Packet) -> Result<()> {
        self.0.copy_from_slice(&packet.segment);
        std::hint::black_box(&mut self.0);
        Ok(())
    }

    fn decode(&mut self, packet: &mut Packet, _missing: &[u8]) -> Result<()> {
        self.encode(packet)
    }
}

/// This project's codec on one kernel.
pub struct Ours {
    code: Code,
    rows: Vec<u8>,
    /// A copy of the redundant cells, which decoding more than [`KEPT_MAX`] cells uses up; the
    /// copying is part of the time.
    scratch: Vec<u8>,
}

impl Ours {
    pub fn new(shape: Shape, kernel: Kernel) -> Result<Self> {
        let code = Code::new(shape.data, shape.len)?.with_kernel(kernel);
        let rows = (shape.data..shape.data + shape.extra).map(|row| row as u8).collect();
        Ok(Self { code, rows, scratch: vec![0; shape.extra * shape.len] })
    }
}

impl Codec for Ours {
    fn encode(&mut self, packet: &mut Packet) -> Result<()> {
        Ok(self.code.encode(&packet.segment, &self.rows, &mut packet.extra)?)
    }

    fn decode(&mut self, packet: &mut Packet, missing: &[u8]) -> Result<()> {
        let cells = if missing.len() <= KEPT_MAX {
            &mut packet.extra
        } else {
            self.scratch.copy_from_slice(&packet.extra);
            &mut self.scratch
        };
        Ok(self.code.decode(&mut packet.segment, missing, &self.rows, cells)?)
    }
}

/// The crate reed-solomon-simd (Leopard, GF(2^16)).
pub struct Simd {
    shape: Shape,
    encoder: ReedSolomonEncoder,
    decoder: ReedSolomonDecoder,
}

impl Simd {
    pub fn new(shape: Shape) -> Result<Self> {
        let Shape { data, extra, len } = shape;
        Ok(Self {
            shape,
            encoder: ReedSolomonEncoder::new(data, extra, len)?,
            decoder: ReedSolomonDecoder::new(data, extra, len)?,
        })
    }
}

impl Codec for Simd {
    fn encode(&mut self, packet: &mut Packet) -> Result<()> {
        let len = self.shape.len;
        for cell in packet.segment.chunks_exact(len) {
            self.encoder.add_original_shard(cell)?;
        }
        let encoded = self.encoder.encode()?;
        for (out, cell) in packet.extra.chunks_exact_mut(len).zip(encoded.recovery_iter()) {
            out.copy_from_slice(cell);
        }
        Ok(())
    }

    fn decode(&mut self, packet: &mut Packet, missing: &[u8]) -> Result<()> {
        let len = self.shape.len;
        for (index, cell) in packet.segment.chunks_exact(len).enumerate() {
            if !missing.contains(&(index as u8)) {
                self.decoder.add_original_shard(index, cell)?;
            }
        }
        for (index, cell) in packet.extra.chunks_exact(len).enumerate() {
            self.decoder.add_recovery_shard(index, cell)?;
        }
        let decoded = self.decoder.decode()?;
        for (index, cell) in decoded.restored_original_iter() {
            packet.segment[index * len..][..len].copy_from_slice(cell);
        }
        Ok(())
    }
}

/// The crate reed-solomon-erasure, with its C kernels and its cache of inverses.
pub struct Erasure {
    shape: Shape,
    codec: ReedSolomon,
}

impl Erasure {
    pub fn new(shape: Shape) -> Result<Self> {
        Ok(Self { shape, codec: ReedSolomon::new(shape.data, shape.extra)? })
    }
}

impl Codec for Erasure {
    fn encode(&mut self, packet: &mut Packet) -> Result<()> {
        let len = self.shape.len;
        let data: Vec<&[u8]> = packet.segment.chunks_exact(len).collect();
        let mut extra: Vec<&mut [u8]> = packet.extra.chunks_exact_mut(len).collect();
        Ok(self.codec.encode_sep(&data, &mut extra)?)
    }

    fn decode(&mut self, packet: &mut Packet, missing: &[u8]) -> Result<()> {
        let len = self.shape.len;
        let cells = packet.segment.chunks_exact_mut(len).chain(packet.extra.chunks_exact_mut(len));
        let mut cells: Vec<(&mut [u8], bool)> = cells.map(|cell| (cell, true)).collect();
        for &index in missing {
            cells[usize::from(index)].1 = false;
        }
        Ok(self.codec.reconstruct_data(&mut cells)?)
    }
}

/// The crate rusty_erasure, whose rows are those of ISA-L and of this project.
pub struct Rusty {
    shape: Shape,
    coder: Coder,
    restored: Vec<u8>,
}

impl Rusty {
    pub fn new(shape: Shape) -> Result<Self> {
        let matrix = Matrix::cauchy(shape.data, shape.extra).context("no such matrix")?;
        let coder = rusty_erasure::coder(matrix).context("no such coder")?;
        Ok(Self { shape, coder, restored: vec![0; shape.extra * shape.len] })
    }
}

impl Codec for Rusty {
    fn encode(&mut self, packet: &mut Packet) -> Result<()> {
        let len = self.shape.len;
        let data: Vec<&[u8]> = packet.segment.chunks_exact(len).collect();
        let mut extra: Vec<&mut [u8]> = packet.extra.chunks_exact_mut(len).collect();
        self.coder.encode(&data, &mut extra).context("cannot encode")
    }

    fn decode(&mut self, packet: &mut Packet, missing: &[u8]) -> Result<()> {
        let len = self.shape.len;
        let all = packet.segment.chunks_exact(len).chain(packet.extra.chunks_exact(len));
        let mut cells: Vec<Option<&[u8]>> = all.map(Some).collect();
        let rebuild: Vec<usize> = missing.iter().map(|index| usize::from(*index)).collect();
        for &index in &rebuild {
            cells[index] = None;
        }
        let mut out: Vec<&mut [u8]> = self.restored.chunks_exact_mut(len).collect();
        self.coder.recover(&cells, &rebuild, &mut out).context("cannot decode")?;
        for (index, cell) in rebuild.into_iter().zip(self.restored.chunks_exact(len)) {
            packet.segment[index * len..][..len].copy_from_slice(cell);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_redundant_cells_are_those_of_isa_ls_cauchy_matrix() {
        for (data, extra, len) in [(30, 3, 48), (5, 7, 1), (188, 19, 50)] {
            let shape = Shape { data, extra, len };
            let segment = (0..shape.bytes()).map(|i| (i * i / 3) as u8).collect();
            let mut packets = [(); 2]
                .map(|()| Packet { segment: Vec::clone(&segment), extra: vec![0; extra * len] });
            let [ours, theirs] = &mut packets;
            Ours::new(shape, Kernel::best()).expect("a codec").encode(ours).expect("cells");
            Rusty::new(shape).expect("a codec").encode(theirs).expect("cells");
            assert!(ours.extra == theirs.extra);
        }
    }
}
