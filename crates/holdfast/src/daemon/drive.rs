//! The event loop around a role's machine: waits until something has come or the
//! machine wants a turn, and gives it one.

use super::member::{Node, Tokens};
use holdfast_member::host::{End, Turn};
use std::time::Instant;

/// Turns in a row that wait for nothing, where the log grows as fast as it is read.
const BUSY_TURNS: u32 = 64;

/// What a role's machine works with.
pub trait Role<'a> {
    fn node(&mut self) -> &mut Node<'a>;
    /// What has come; nothing, in a turn that has not waited.
    fn handle_ready(&mut self, tokens: Tokens);
    /// When a link of the role wants a turn.
    fn deadline(&self) -> Option<Instant>;
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
                role.handle_ready(Tokens::default());
                continue;
            }
            Turn::Busy => Instant::now(),
            Turn::Until(at) => role.node().instant(at.0),
        };
        busy = 0;
        let own = role.deadline();
        let node = role.node();
        let links = [node.edge.deadline(), own].into_iter().flatten();
        let deadline = links.fold(deadline, Instant::min);
        let tokens;
        (stop, tokens) = node.wait(Some(deadline))?;
        role.handle_ready(tokens);
    }
}
