//! The event loop around a role's machine: it waits until something has come or
//! the machine wants a turn, and gives it one.

use super::member::{MemberContext, Tokens};
use holdfast_member::host::{End, Hosted, Turn};
use std::time::Instant;

/// Most turns in a row without a look at the event loop, when the log grows as fast as it is
/// read.
const BUSY_TURNS: u32 = 64;

/// What a role's machine works with.
pub trait Role<'a>: Hosted<Context = MemberContext<'a>> {
    /// Notes what has become ready; the tokens are in the context's `tokens`.
    fn handle_ready(&mut self) {}
}

/// Turns the machine until it ends.
///
/// # Errors
/// When the event loop fails, or the host does not do what it must.
pub fn drive<'a, R: Role<'a>>(
    role: &mut R,
    mut turn: impl FnMut(bool, &mut R) -> Turn,
) -> anyhow::Result<End> {
    let (mut stop, mut busy) = (false, 0);
    loop {
        let next = turn(stop, role);
        let deadline = match next {
            Turn::End(End::Failed(error)) => anyhow::bail!(error),
            Turn::End(end) => return Ok(end),
            Turn::Busy if busy < BUSY_TURNS => {
                (stop, busy) = (false, busy + 1);
                role.context_mut().tokens = Tokens::default();
                role.handle_ready();
                continue;
            }
            Turn::Busy => Instant::now(),
            Turn::Until(at) => role.context_mut().instant(at.0),
        };
        busy = 0;
        let node = role.context_mut();
        let deadline = node.edge.deadline().map_or(deadline, |at| at.min(deadline));
        stop = node.wait(Some(deadline))?;
        role.handle_ready();
    }
}
