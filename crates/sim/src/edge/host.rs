//! What the edge's machine asks of the simulated host.

use super::*;
use holdfast_wire::message::KEYS_MAX;

impl EdgeHost for World {
    fn now(&self) -> Nanos {
        self.edge_time()
    }

    fn send(&mut self, member: usize, message: &Message<'_>) {
        let link = self.edge.daemon.as_ref().and_then(|daemon| daemon.links[member]);
        let Some(pipe) = link else { return };
        if !Self::send(self, pipe, 1, message)
            && let Some(daemon) = &mut self.edge.daemon
        {
            daemon.links[member] = None;
            daemon.failed.push(member);
        }
    }

    fn close(&mut self, member: usize) {
        let daemon = self.edge.daemon.as_mut();
        if let Some(pipe) = daemon.and_then(|daemon| daemon.links[member].take()) {
            self.close_pipe(pipe, 1);
        }
    }

    fn set_fence(&mut self, epoch: u64, current: Option<usize>) -> Result<(), String> {
        (self.edge.epoch, self.edge.current) = (epoch, current);
        if let Some(member) = current {
            self.check.granted(self.now, member, epoch);
        }
        Ok(())
    }

    fn set_tap(&mut self, member: usize, on: bool) {
        self.edge.tap[member] = on;
    }

    fn keep(&mut self, state: &EdgeState) -> u64 {
        let sync = self.rng.range(50_000, 3_000_000);
        let Some(daemon) = &mut self.edge.daemon else { return 0 };
        daemon.writes += 1;
        let (life, number) = (daemon.life, daemon.writes);
        daemon.writing.push_back((number, state.clone()));
        self.schedule(sync, Event::EdgeWritten(life));
        number
    }

    fn bounds(&mut self) -> Result<Vec<FlowBounds>, String> {
        Ok(self.edge.bounds())
    }

    fn set_cache(&mut self, _: usize, on: bool) {
        self.at_cache(|cache, now, world| {
            let changed =
                if on { cache.handle_suspected(now, world) } else { cache.handle_trusted(world) };
            changed.is_ok_and(|yes| yes).then(|| world.say(|| format!("edge: keeps SYNs: {on}")))
        });
    }

    fn resend(&mut self, member: usize) {
        if let Some(daemon) = &mut self.edge.daemon {
            daemon.resends_to = Some(member);
        }
        self.at_cache(|cache, now, world| cache.handle_restored(now, |_| Some(now), world));
    }

    fn age_flows(&mut self, _: Nanos, can_ask: bool) -> Vec<ConnKey> {
        let now = self.now;
        let max = self.edge.flows_max;
        self.check.table(now, "edge flows", self.edge.flows(), max);
        self.edge.flows.retain(|_, flow| !flow.is_over() || now - flow.seen <= FLOW_AGE);
        let crowded = self.edge.flows() * 4 > max * 3;
        let silent = if crowded { QUIET_CROWDED } else { QUIET };
        let flows = self.edge.flows.iter_mut().filter(|_| can_ask);
        let quiet = flows.filter(|(_, flow)| now - flow.seen > silent);
        // They are asked about again after the same time.
        quiet
            .take(KEYS_MAX)
            .map(|(key, flow)| {
                (flow.seen, flow.asked) = (now, Some(now));
                *key
            })
            .collect()
    }

    fn forget_flows(&mut self, keys: &[ConnKey]) {
        let asked = |flow: &Flow| flow.asked == Some(flow.seen);
        self.edge.flows.retain(|key, flow| !(keys.contains(key) && asked(flow)));
    }

    fn note(&mut self, what: &'static str, words: String) {
        if let Some(member) = NAMES.iter().position(|name| *name == words)
            && matches!(what, "declare" | "silent")
        {
            self.check.missed(self.now, member);
        }
        self.say(|| format!("edge: {what} {words}"));
    }
}
