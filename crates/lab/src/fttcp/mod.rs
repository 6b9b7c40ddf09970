//! The figures of FT-TCP (Zagorodnov, Marzullo, Alvisi and Bressoud, DSN 2003, §5.2 to
//! 5.4), measured again on the testbed: a redis-server of the distribution in the place of
//! ttcp and of DSS, each host's links at the paper's 10 Mbit/s, the members' own wire apart.
//! Samba is left out: families of processes are not replicated.

mod fig2;
mod fig3;
mod fig4;
mod latency;
mod sides;
#[cfg(test)]
mod tests;
mod trace;

use holdfast_papers::figures::Measured;

/// All of them.
pub const FIGURES: [Measured; 4] = [fig2::FIGURE, fig3::FIGURE, fig4::FIGURE, latency::FIGURE];
