//! Packets that wait for being sent: classes in the order of their urgency, flows of a class in
//! turn (deficit round robin, Shreedhar and Varghese 1995), each flow's queue kept short by CoDel
//! (RFC 8289), which marks instead of dropping where the packet allows (RFC 3168).
//!
//! The queue stands in front of the rate that the tunnel allows itself, so it is *the* queue of the
//! path: what waits in a device's own queue of 500 packets waits 110 ms at 50 Mbit/s.

use crate::inner::mark_congestion;
use crate::{Class, Ecn, Limits};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Bytes that a flow may send per turn: one full packet.
const QUANTUM_BYTES: i64 = 1514;
/// CoDel's target and interval (RFC 8289 §4.2 and §4.3).
const TARGET: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_millis(100);
/// Most packets that a full queue gives up at once, so that not every packet looks for the longest flow (as
/// Linux' fq_codel does).
const SHED_MAX: usize = 64;
/// A queue below this is never too long: one packet must be able to wait (RFC 8289 §5.1).
const QUEUE_BYTES_MIN: usize = 3028;

/// What waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Packet(Vec<u8>),
    Message { flow: u32, bytes: Vec<u8> },
}

impl Content {
    pub fn len(&self) -> usize {
        match self {
            Self::Packet(bytes) | Self::Message { bytes, .. } => bytes.len(),
        }
    }

    fn mark(&mut self) -> bool {
        match self {
            Self::Packet(packet) => mark_congestion(packet),
            Self::Message { .. } => false,
        }
    }
}

/// CoDel's state for one flow (RFC 8289 §5).
#[derive(Clone, Debug, Default)]
struct CoDel {
    /// When the delay will have been above the target for an interval.
    above_until: Option<Duration>,
    /// When to drop next, while dropping.
    drop_at: Option<Duration>,
    count: u32,
}

impl CoDel {
    /// Whether the packet that leaves after `waited` is dropped or marked.
    fn drops(&mut self, waited: Duration, left_bytes: usize, now: Duration) -> bool {
        if waited < TARGET || left_bytes < QUEUE_BYTES_MIN {
            (self.above_until, self.drop_at) = (None, None);
            return false;
        }
        let since = *self.above_until.get_or_insert(now + INTERVAL);
        if now < since {
            return false;
        }
        match self.drop_at {
            None => {
                // Begins near the rate that was right lately (RFC 8289 §5.3, simplified).
                self.count = (self.count / 2).max(1);
                self.drop_at = Some(now + self.gap());
                true
            }
            Some(at) if at <= now => {
                self.count += 1;
                self.drop_at = Some(at + self.gap());
                true
            }
            Some(_) => false,
        }
    }

    fn gap(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}

#[derive(Clone, Debug, Default)]
struct Flow {
    waiting: VecDeque<(Duration, Content)>,
    bytes: usize,
    deficit: i64,
    codel: CoDel,
}

#[derive(Clone, Debug, Default)]
struct OfClass {
    flows: HashMap<u64, Flow>,
    /// Flows with packets, in the order of their turns.
    turns: VecDeque<u64>,
    /// The length of the packet that leaves next.
    next_len: Option<usize>,
    bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    classes: [OfClass; Class::ALL.len()],
    flows_max: usize,
    bytes_max: usize,
    bytes: usize,
    packets_max: usize,
    packets: usize,
    pub dropped: u64,
    pub marked: u64,
}

impl Queue {
    pub fn new(limits: &Limits) -> Self {
        Self {
            classes: Default::default(),
            flows_max: limits.flows,
            bytes_max: limits.queue_bytes,
            bytes: 0,
            packets_max: limits.queue_packets,
            packets: 0,
            dropped: 0,
            marked: 0,
        }
    }

    /// Bytes that wait, all classes together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn bytes_of(&self, class: Class) -> usize {
        self.classes[class.index()].bytes
    }

    /// Takes a packet; false if there is no room. One that is more urgent, or of a flow that has less waiting,
    /// takes the place of others.
    pub fn push(&mut self, class: Class, flow: u64, content: Content, now: Duration) -> bool {
        let len = content.len();
        while self.bytes + len > self.bytes_max || self.packets >= self.packets_max {
            if len > self.bytes_max || !self.shed(class, flow, len) {
                self.dropped += 1;
                return false;
            }
        }
        let of_class = &mut self.classes[class.index()];
        // Flows beyond the limit share queues.
        let shared = of_class.flows.len() >= self.flows_max && !of_class.flows.contains_key(&flow);
        let flow = if shared { flow % self.flows_max.max(1) as u64 } else { flow };
        let queue = of_class.flows.entry(flow).or_default();
        if queue.waiting.is_empty() {
            of_class.turns.push_back(flow);
        }
        queue.waiting.push_back((now, content));
        queue.bytes += len;
        of_class.bytes += len;
        of_class.next_len = of_class.next_len.or(Some(len));
        self.bytes += len;
        self.packets += 1;
        true
    }

    /// Drops packets, the oldest first, of the longest flow of the least urgent class, down to half of it;
    /// false if that is the flow, or nothing is longer, for which there should be room.
    fn shed(&mut self, class: Class, flow: u64, len: usize) -> bool {
        let own = self.classes[class.index()].flows.get(&flow).map_or(0, |it| it.bytes) + len;
        for lane in (class.index()..self.classes.len()).rev() {
            let of_class = &mut self.classes[lane];
            let several = of_class.flows.iter_mut().filter(|(_, it)| it.waiting.len() > 1);
            let Some((_, longest)) = several.max_by_key(|(id, it)| (it.bytes, **id)) else {
                continue;
            };
            if lane == class.index() && longest.bytes <= own {
                break;
            }
            let before = (longest.bytes, longest.waiting.len());
            for _ in 0..(before.1 / 2).min(SHED_MAX) {
                let oldest = longest.waiting.pop_front();
                longest.bytes -= oldest.map_or(0, |(_, content)| content.len());
            }
            let bytes = before.0 - longest.bytes;
            let packets = before.1 - longest.waiting.len();
            of_class.bytes -= bytes;
            of_class.note_next();
            self.bytes -= bytes;
            self.packets -= packets;
            self.dropped += packets as u64;
            return true;
        }
        false
    }

    /// The length of the packet that leaves next.
    pub fn peek_len(&self, class: Class) -> Option<usize> {
        self.classes[class.index()].next_len
    }

    /// The next packet, and for how long it waited.
    pub fn pop(&mut self, class: Class, now: Duration) -> Option<(Content, Duration)> {
        loop {
            let of_class = &mut self.classes[class.index()];
            let id = *of_class.turns.front()?;
            let flow = of_class.flows.get_mut(&id)?;
            let (since, mut content) = flow.waiting.pop_front()?;
            let (len, waited) = (content.len(), now.saturating_sub(since));
            flow.bytes -= len;
            of_class.bytes -= len;
            self.bytes -= len;
            self.packets -= 1;
            let must_go = flow.codel.drops(waited, flow.bytes, now);
            let is_marked = must_go && content.mark();
            let is_dropped = must_go && !is_marked;
            if !is_dropped {
                flow.deficit -= len as i64;
            }
            of_class.next_turn(id);
            self.marked += u64::from(is_marked);
            if is_dropped {
                self.dropped += 1;
                continue;
            }
            return Some((content, waited));
        }
    }
}

impl OfClass {
    /// A flow that has sent far more than a quantum at once waits until it has paid for that.
    fn skip_debtors(&mut self) {
        while self.turns.len() > 1
            && let Some(flow) = self.turns.front().and_then(|id| self.flows.get_mut(id))
            && flow.deficit < 0
        {
            flow.deficit += QUANTUM_BYTES;
            self.turns.rotate_left(1);
        }
    }

    /// Ends the turn of the flow at the front if it has used it up or has nothing left.
    fn next_turn(&mut self, id: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.waiting.is_empty() {
            self.turns.pop_front();
            // CoDel forgets a flow with its queue: an empty queue is a good one.
            self.flows.remove(&id);
        } else if flow.deficit <= 0 {
            flow.deficit += QUANTUM_BYTES;
            self.turns.rotate_left(1);
            self.skip_debtors();
        }
        self.note_next();
    }

    fn note_next(&mut self) {
        let next = self.turns.front().and_then(|id| self.flows.get(id));
        self.next_len = next.and_then(|flow| Some(flow.waiting.front()?.1.len()));
    }
}

/// A packet as it is delivered when its datagram came with this mark (RFC 6040 §4.2). A packet
/// whose sender does not understand marks is delivered all the same: a datagram carries packets of
/// many flows, and it is the tunnel's own rate that answers a mark on it.
pub(crate) fn decapsulated(mut packet: Vec<u8>, outer: Ecn) -> Vec<u8> {
    if outer == Ecn::Congested {
        mark_congestion(&mut packet);
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::{ipv4, udp};

    const MS: Duration = Duration::from_millis(1);

    fn limits(flows: usize, queue_bytes: usize) -> Limits {
        Limits { flows, queue_bytes, ..Limits::default() }
    }

    fn message(len: usize) -> Content {
        Content::Message { flow: 0, bytes: vec![0; len] }
    }

    #[test]
    fn flows_take_turns_by_bytes() {
        let mut queue = Queue::new(&limits(10, 1 << 20));
        for _ in 0..100 {
            queue.push(Class::Bulk, 1, message(1500), Duration::ZERO);
            queue.push(Class::Bulk, 2, message(150), Duration::ZERO);
        }
        let (mut long, mut short) = (0, 0);
        for _ in 0..55 {
            let (content, _) = queue.pop(Class::Bulk, MS).unwrap();
            if content.len() == 1500 { long += 1500 } else { short += 150 }
        }
        assert!((f64::from(long) / f64::from(short) - 1.0).abs() < 0.4, "{long} {short}");
        assert_eq!(queue.bytes(), queue.bytes_of(Class::Bulk));
    }

    #[test]
    fn a_standing_queue_is_shortened_by_marks_or_drops_and_a_short_one_is_left_alone() {
        for (traffic_class, marks) in [(2, true), (0, false)] {
            let mut queue = Queue::new(&limits(10, 1 << 20));
            let packet = ipv4(17, traffic_class, &udp(1, 2, &[0; 1400]));
            // Two packets come per ms, one leaves: the queue grows.
            for ms in 0..500u32 {
                for _ in 0..2 {
                    queue.push(Class::Bulk, 1, Content::Packet(packet.clone()), ms * MS);
                }
                queue.pop(Class::Bulk, ms * MS);
            }
            assert_eq!((queue.marked > 5, queue.dropped > 5), (marks, !marks));
        }
        let mut queue = Queue::new(&limits(10, 1 << 20));
        for ms in 0..500u32 {
            queue.push(Class::Bulk, 1, message(1400), ms * MS);
            assert!(queue.pop(Class::Bulk, (ms + 20) * MS).is_some());
        }
        assert_eq!(queue.dropped, 0);
    }

    #[test]
    fn a_flood_costs_itself() {
        let mut queue = Queue::new(&limits(10, 10_000));
        let mut push = |class, flow| queue.push(class, flow, message(100), MS);
        assert_eq!((0..200).filter(|_| push(Class::Bulk, 1)).count(), 100, "it is told");
        // Less waits of others, or they are more urgent.
        assert!((0..40).all(|_| push(Class::Bulk, 2)));
        assert!((0..90).all(|_| push(Class::Now, 3)));
        let mut popped = 0;
        for class in Class::ALL {
            while let Some((content, _)) = queue.pop(class, MS) {
                assert_eq!(content.len(), 100);
                popped += 1;
            }
        }
        assert_eq!((queue.bytes(), queue.packets), (0, 0));
        assert!((90..=100).contains(&popped), "{popped}");
        assert!(!queue.push(Class::Now, 1, message(10_001), MS), "it would never fit");
    }

    #[test]
    fn the_limits_hold() {
        let mut queue = Queue::new(&Limits { queue_packets: 40, ..limits(2, 1000) });
        for flow in 0..100 {
            queue.push(Class::Now, flow, message(100), MS);
            assert!(queue.bytes() <= 1000);
        }
        assert!(queue.classes[0].flows.len() <= 4);
        let popped = std::iter::from_fn(|| queue.pop(Class::Now, MS)).count();
        assert_eq!((popped as u64 + queue.dropped, queue.bytes()), (100, 0));
        assert!(popped >= 5, "{popped}");
        // Short ones are counted.
        let taken = (0..100).filter(|_| queue.push(Class::Now, 1, message(1), MS)).count();
        assert_eq!((taken, queue.bytes()), (40, 40));
    }
}
