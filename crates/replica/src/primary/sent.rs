//! How much a client can have been sent, according to the log.

use holdfast_wire::seq::SeqNo;

/// What the server has logged of its output to one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Sequence number of the first byte.
    origin: SeqNo,
    written: u64,
    /// Bytes of calls whose outcome the log does not tell yet.
    intended: u64,
    open: u32,
    /// Whether it was taken up while a call might have been under way, whose outcome may
    /// not have been logged yet.
    is_vague: bool,
}

impl Sent {
    pub const fn new(origin: SeqNo) -> Self {
        Self { origin, written: 0, intended: 0, open: 0, is_vague: false }
    }

    /// For a connection to which the server had written `written` bytes before its
    /// log began.
    pub const fn after(origin: SeqNo, written: u64) -> Self {
        Self { written, is_vague: true, ..Self::new(origin) }
    }

    /// A call begins that writes at most `len` bytes.
    pub fn intend(&mut self, len: i64) {
        self.is_vague = false;
        self.open += 1;
        self.intended = self.intended.saturating_add(u64::try_from(len).unwrap_or(0));
    }

    /// The call has written this many bytes, or failed.
    pub fn write(&mut self, result: i64) {
        self.written = self.written.saturating_add(u64::try_from(result).unwrap_or(0));
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.intended = 0;
        }
    }

    /// If bytes, or an end, have left before `snd_nxt` that no record tells of: how many in
    /// all, and how many are known at most.
    pub fn lacks(&self, snd_nxt: SeqNo) -> Option<(u64, u64)> {
        self.is_exceeded_by(snd_nxt).filter(|_| !self.is_vague)
    }

    /// The same where no call from before the log can be under way any more.
    pub fn is_exceeded_by(&self, end: SeqNo) -> Option<(u64, u64)> {
        let most = self.written.saturating_add(self.intended);
        let sent = end.offset_near(self.origin, most);
        (sent > most.saturating_add(1)).then_some((sent, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(sent: &Sent, until: u64) -> bool {
        sent.lacks(ORIGIN.plus(until)).is_some()
    }

    const ORIGIN: SeqNo = SeqNo(u32::MAX - 5);

    #[test]
    fn what_was_written_or_may_be_and_an_end_are_known() {
        let mut sent = Sent::new(ORIGIN);
        assert!(!lacks(&sent, 0) && !lacks(&sent, 1) && lacks(&sent, 2));
        sent.intend(100);
        assert!(!lacks(&sent, 101) && lacks(&sent, 102));
        sent.write(40);
        assert!(!lacks(&sent, 41) && lacks(&sent, 42));
        sent.intend(100);
        sent.write(-11);
        assert!(!lacks(&sent, 41) && lacks(&sent, 42));
    }

    #[test]
    fn of_two_calls_at_once_either_may_have_written_all() {
        let mut sent = Sent::new(ORIGIN);
        (0..2).for_each(|_| sent.intend(100));
        sent.write(10);
        assert!(!lacks(&sent, 211) && lacks(&sent, 212));
        sent.write(100);
        assert!(lacks(&sent, 112));
    }

    #[test]
    fn a_call_from_before_the_log_may_write_on() {
        let mut sent = Sent::after(ORIGIN, 50);
        assert!(!lacks(&sent, 5000));
        sent.write(30);
        assert!(!lacks(&sent, 5000));
        sent.intend(10);
        assert!(!lacks(&sent, 91) && lacks(&sent, 92));
    }
}
