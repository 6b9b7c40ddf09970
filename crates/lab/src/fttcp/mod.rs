//! The figures of FT-TCP (Zagorodnov, Marzullo, Alvisi and Bressoud, DSN 2003, §5.2 to 5.4),
//! measured again on the testbed: Debian's redis-server in the place of ttcp and DSS, the links of
//! each host at the paper's 10 Mbit/s, except for the members' own wire. Samba is left out, since
//! families of processes are not replicated.

mod fig2;
mod fig3;
mod fig4;
mod latency;
mod sides;
#[cfg(test)]
mod tests;
mod trace;

use holdfast_papers::figures::Measured;

/// All figures of FT-TCP.
pub const FIGURES: [Measured; 4] = [fig2::FIGURE, fig3::FIGURE, fig4::FIGURE, latency::FIGURE];
