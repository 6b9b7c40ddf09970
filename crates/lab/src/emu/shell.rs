//! `holdfast-lab emu delay 50ms loss 1% -- CMD`: runs a command in a network
//! namespace of its own, behind an emulated wire to the caller's network.
//! Shells nest: each gets a block of addresses out of the block of the shell
//! around it, and routes, never NAT, lead there and back.
//!
//! The outermost shell takes the first free 100.(64+k).0.0/16 (shared address
//! space, RFC 6598) and fd64:k::/32, the next ones an eighth of the block
//! around them. Inside, `HOLDFAST_EMU_GATEWAY` is the caller's end of the wire,
//! at which all services of the caller's network are reached that do not listen
//! on loopback alone. Hosts beyond the caller need a route back to the block.

use super::spec::EmuSpec;
use super::{End, Link, Namespace};
use crate::command;
use anyhow::{Context as _, Result, bail, ensure};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

/// Variable that tells the shells inside a shell its block.
const BLOCK_VARIABLE: &str = "HOLDFAST_EMU_BLOCK";

/// Variable that tells a command the caller's end of its wire.
const GATEWAY_VARIABLE: &str = "HOLDFAST_EMU_GATEWAY";

/// Most shells inside each other: the innermost block is a /28.
const DEPTH_MAX: u32 = 5;

/// Most outermost shells at the same time in one network.
const OUTERMOST_MAX: u32 = 64;

/// Addresses of a shell: the `index` of every shell, from the outermost inwards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block(Vec<u32>);

impl Block {
    fn of_environment() -> Result<Option<Self>> {
        let Ok(text) = std::env::var(BLOCK_VARIABLE) else {
            return Ok(None);
        };
        let path: Option<Vec<u32>> = text.split('.').map(|word| word.parse().ok()).collect();
        let path = path.with_context(|| format!("{BLOCK_VARIABLE}={text} is not a block"))?;
        let inner_fits = path.iter().skip(1).all(|index| (1..8).contains(index));
        ensure!(
            path[0] < OUTERMOST_MAX && inner_fits && path.len() <= DEPTH_MAX as usize,
            "{BLOCK_VARIABLE}={text} is not a block"
        );
        Ok(Some(Self(path)))
    }

    /// The blocks a new shell may try, given the block around it.
    fn candidates(around: Option<&Block>) -> Result<Vec<Block>> {
        match around {
            None => Ok((0..OUTERMOST_MAX).map(|index| Block(vec![index])).collect()),
            Some(Block(path)) => {
                ensure!(path.len() < DEPTH_MAX as usize, "no more than {DEPTH_MAX} shells nest");
                // Part 0 of a block holds the ends of its own wire.
                let inner = |index| Block([path.as_slice(), &[index]].concat());
                Ok((1..8).map(inner).collect())
            }
        }
    }

    fn text(&self) -> String {
        self.0.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
    }

    fn v4(&self) -> (Ipv4Addr, u32) {
        let mut bits = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + (self.0[0] << 16);
        let mut len = 16;
        for index in &self.0[1..] {
            len += 3;
            bits |= index << (32 - len);
        }
        (Ipv4Addr::from(bits), len)
    }

    fn v6(&self) -> (Ipv6Addr, u32) {
        let mut words = [0u16; 8];
        words[0] = 0xfd64;
        for (word, index) in words[1..].iter_mut().zip(&self.0) {
            *word = *index as u16;
        }
        (Ipv6Addr::from(words), 16 * (self.0.len() as u32 + 1))
    }

    /// The `n`-th address of the block, in both families.
    fn address(&self, n: u8) -> (Ipv4Addr, Ipv6Addr) {
        let v4 = Ipv4Addr::from(u32::from(self.v4().0) + u32::from(n));
        let v6 = Ipv6Addr::from(u128::from(self.v6().0) + u128::from(n));
        (v4, v6)
    }
}

/// Runs `command_line` behind a wire with `spec` and returns its exit code; `tells_counts` says
/// whether the wire's counts are printed then, on standard error.
///
/// # Errors
/// When the namespace, the wire or the command cannot be started.
pub fn run(spec: &EmuSpec, tells_counts: bool, command_line: &[String]) -> Result<ExitCode> {
    let [program, arguments @ ..] = command_line else {
        bail!("which command? holdfast-lab emu delay 50ms -- CMD");
    };
    let network = Namespace::start()?;
    let outside = format!("hfemu{}", std::process::id());
    let mut link = Link::ip_between(
        End { namespace: "/proc/self/ns/net".into(), interface: outside.clone() },
        End { namespace: network.path(), interface: "emu0".to_owned() },
        spec,
    )?;
    let block = configure_outside(&outside)?;
    configure_inside(&network, &block)?;
    let status = network
        .command(program)
        .args(arguments)
        .env(BLOCK_VARIABLE, block.text())
        .env(GATEWAY_VARIABLE, block.address(1).0.to_string())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if tells_counts {
        eprintln!("{}", serde_json::to_string(&link.counts()?)?);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Takes the first block whose route is free and sets up the caller's end.
fn configure_outside(interface: &str) -> Result<Block> {
    command::output("ip", &["link", "set", interface, "up"])?;
    let around = Block::of_environment()?;
    for block in Block::candidates(around.as_ref())? {
        let ((v4, v4_len), (v6, v6_len)) = (block.v4(), block.v6());
        let route = format!("{v4}/{v4_len}");
        if command::output("ip", &["route", "add", &route, "dev", interface]).is_err() {
            continue;
        }
        let gateway = block.address(1);
        command::ip_batch(
            None,
            &format!(
                "route add {v6}/{v6_len} dev {interface}\n\
                 addr add {}/32 dev {interface}\n\
                 addr add {}/128 dev {interface} nodad\n",
                gateway.0, gateway.1
            ),
        )?;
        command::output(
            "sysctl",
            &["-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"],
        )?;
        return Ok(block);
    }
    bail!("all blocks of addresses are taken")
}

fn configure_inside(network: &Namespace, block: &Block) -> Result<()> {
    let (own, gateway) = (block.address(2), block.address(1));
    network.ip(&format!(
        "link set lo up\n\
         link set emu0 up\n\
         addr add {}/32 dev emu0\n\
         addr add {}/128 dev emu0 nodad\n\
         route add {} dev emu0\n\
         route add {} dev emu0\n\
         route add default via {} src {}\n\
         route add ::/0 via {} src {}\n",
        own.0, own.1, gateway.0, gateway.1, gateway.0, own.0, gateway.1, own.1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_inside_the_block_around_them() {
        let outer = Block(vec![3]);
        assert_eq!(outer.v4(), (Ipv4Addr::new(100, 67, 0, 0), 16));
        let inner = &Block::candidates(Some(&outer)).unwrap()[6];
        assert_eq!(inner.v4(), (Ipv4Addr::new(100, 67, 224, 0), 19));
        assert_eq!(inner.v6(), ("fd64:3:7::".parse().unwrap(), 48));
        assert_eq!(inner.address(1).0, Ipv4Addr::new(100, 67, 224, 1));
        let mut deep = outer.clone();
        for _ in 1..DEPTH_MAX {
            deep = Block::candidates(Some(&deep)).unwrap().remove(0);
        }
        assert_eq!(deep.v4().1, 28);
        assert!(Block::candidates(Some(&deep)).is_err());
    }
}
