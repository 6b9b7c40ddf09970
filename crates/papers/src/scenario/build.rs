//! Builds a scenario from a scenario file.

use super::error::{FileError, at_most, within};
use super::file::{DumbbellTable, File, FlowTable, LossTable, OutageTable, ProfileTable};
use super::machines::{rate_control, recovery};
use super::route::Graph;
use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::Dumbbell;
use holdfast_netsim::net::link::{LinkSpec, QueueLimit};
use holdfast_netsim::net::loss::LossModel;
use holdfast_netsim::net::scenario::{Alert, CutAt, FlowSpec, OutageSpec, StringSpec, SwitchSpec};
use holdfast_netsim::tcp::{Congestion, Profile, Stack};
use std::collections::BTreeMap;

/// Most flows of one scenario.
pub const FLOWS_MAX: usize = 200_000;

/// Most links of one scenario, including those of a dumb-bell's pairs.
pub const LINKS_MAX: usize = 1_000_000;

/// Most nodes of a graph, and most switches.
pub const NODES_MAX: usize = 10_000;

/// Most segments of one flow.
pub const SEGMENTS_MAX: u32 = 100_000_000;

/// Builds the scenario of a file.
///
/// # Errors
/// When the file names something that it does not define, or a value is out of bounds.
pub fn build(file: &File) -> Result<Scenario, FileError> {
    let flows: usize = file.flow.iter().map(|flow| flow.count as usize).sum();
    at_most("flows", flows, FLOWS_MAX)?;
    // Profiles that no flow uses are checked, too, since a sweep may use them.
    file.profile.values().try_for_each(|table| profile(table).map(drop))?;
    let mut profiles = Profiles::default();
    let mut scenario = match &file.dumbbell {
        Some(table) => dumbbell(file, table, flows as u32)?,
        None => graph(file)?,
    };
    let mut builder = Builder { file, scenario: &mut scenario, profiles: &mut profiles };
    builder.flows()?;
    builder.outages()?;
    scenario.profiles = profiles.list;
    scenario.seed = file.seed;
    scenario.end_ns = file.end.0;
    scenario.check()?;
    Ok(scenario)
}

fn dumbbell(file: &File, table: &DumbbellTable, pairs: u32) -> Result<Scenario, FileError> {
    if !file.link.is_empty() || !file.switch.is_empty() {
        let text = "a [dumbbell] has its own links; leave out [[link]] and [[switch]]";
        return Err(FileError::Syntax(text.to_owned()));
    }
    at_most("links", 4 * (pairs as usize + table.strings.len()), LINKS_MAX)?;
    if table.strings.is_empty() {
        within("the number of strings", 0.0, 1.0..=1e4, "at least 1")?;
    }
    let recovery = file.recovery.as_ref().map(recovery).transpose()?;
    let dumbbell = Dumbbell {
        rate_bps: table.rate.0,
        string_rates_bps: table.strings.iter().map(|it| it.0).collect(),
        delays_ns: table.delays.map(|it| it.0),
        buffer: table.queue.map_or(QueueLimit::None, |it| it.0),
        loss: loss(table.loss)?,
        recovery: recovery.map(|it| it.0),
        alert: recovery.map_or(Alert::Told, |it| it.1),
        rate_control: file.rate_control.as_ref().map(rate_control).transpose()?,
    };
    Ok(dumbbell.scenario(pairs, Profile::NS2))
}

/// Builds the links and switches of the file; routes are found later.
fn graph(file: &File) -> Result<Scenario, FileError> {
    at_most("links", 2 * file.link.len(), LINKS_MAX)?;
    at_most("switches", file.switch.len(), NODES_MAX)?;
    let mut scenario = Scenario::default();
    for table in &file.link {
        let rate_bps = table.rate.map_or(0, |it| it.0);
        let delay_ns = table.delay.0;
        let queue = table.queue.map_or(QueueLimit::None, |it| it.0);
        scenario.links.push(LinkSpec { rate_bps, delay_ns, queue, loss: loss(table.loss)? });
        if !table.one_way {
            let (queue, loss) = (QueueLimit::None, LossModel::Never);
            scenario.links.push(LinkSpec { rate_bps, delay_ns, queue, loss });
        }
    }
    Ok(scenario)
}

fn loss(table: Option<LossTable>) -> Result<LossModel, FileError> {
    let share = |what: &str, value| within(what, value, 0.0..=1.0, "0 to 1");
    Ok(match table {
        None => LossModel::Never,
        Some(LossTable::Share(loss)) => LossModel::Bernoulli(share("loss", loss)?),
        Some(LossTable::Bursts { to_bad, to_good, loss_good, loss_bad }) => {
            LossModel::GilbertElliott {
                to_bad: share("loss.to_bad", to_bad)?,
                to_good: share("loss.to_good", to_good)?,
                loss_good: share("loss.loss_good", loss_good)?,
                loss_bad: share("loss.loss_bad", loss_bad)?,
            }
        }
    })
}

#[derive(Default)]
struct Profiles {
    list: Vec<Profile>,
    numbers: BTreeMap<String, u32>,
}

struct Builder<'a> {
    file: &'a File,
    scenario: &'a mut Scenario,
    profiles: &'a mut Profiles,
}

impl Builder<'_> {
    fn flows(&mut self) -> Result<(), FileError> {
        let graph = if self.file.dumbbell.is_none() { Some(self.graph()?) } else { None };
        let mut paths = BTreeMap::new();
        let mut number = 0;
        for table in &self.file.flow {
            within(
                "segments",
                f64::from(table.segments),
                1.0..=f64::from(SEGMENTS_MAX),
                "1 to 100000000",
            )?;
            let profile = self.profile(&table.profile)?;
            let shared = match &graph {
                Some(graph) => Some(self.shared_path(graph, table, &mut paths)?),
                None => None,
            };
            for index in 0..u64::from(table.count) {
                self.scenario.flows.push(FlowSpec {
                    start_ns: index.saturating_mul(table.every.0).saturating_add(table.start.0),
                    segments: table.segments,
                    profile,
                    path: shared.unwrap_or(number),
                    string: table.string,
                });
                number += 1;
            }
        }
        Ok(())
    }

    fn shared_path(
        &mut self,
        graph: &Graph,
        table: &FlowTable,
        paths: &mut BTreeMap<(u32, u32), u32>,
    ) -> Result<u32, FileError> {
        let end = |name: &Option<String>| match name {
            Some(name) => graph.find(name),
            None => Err(FileError::Syntax("a [[flow]] needs `from` and `to`".to_owned())),
        };
        let (from, to) = (end(&table.from)?, end(&table.to)?);
        if let Some(path) = paths.get(&(from, to)) {
            return Ok(*path);
        }
        let path = graph.path(from, to, &self.scenario.switches)?;
        self.scenario.paths.push(path);
        let number = (self.scenario.paths.len() - 1) as u32;
        paths.insert((from, to), number);
        Ok(number)
    }

    fn graph(&mut self) -> Result<Graph, FileError> {
        let mut graph = Graph::default();
        let mut joins = Vec::new();
        let mut link = 0;
        for table in &self.file.link {
            let (from, to) = (graph.node(&table.from), graph.node(&table.to));
            for (from, to) in
                [(from, to), (to, from)].into_iter().take(if table.one_way { 1 } else { 2 })
            {
                graph.ends.insert((from, to), link);
                joins.push((from, to, link));
                link += 1;
            }
        }
        at_most("nodes", joins.len(), 2 * LINKS_MAX)?;
        let mut inside = Vec::new();
        for number in 0..self.file.switch.len() {
            self.switch(&mut graph, number, &mut inside)?;
        }
        // Links inside a switch are not open to shortest routes, since the switch decides there.
        inside.sort_unstable();
        for (from, to, link) in joins {
            if inside.binary_search(&link).is_err() {
                graph.join(from, to, link, &self.scenario.links[link as usize]);
            }
        }
        Ok(graph)
    }

    fn switch(
        &mut self,
        graph: &mut Graph,
        number: usize,
        inside: &mut Vec<u32>,
    ) -> Result<(), FileError> {
        let table = &self.file.switch[number];
        let (from, to) = (graph.find(&table.from)?, graph.find(&table.to)?);
        let mut spec = SwitchSpec::default();
        if number == 0 {
            if let Some(table) = &self.file.recovery {
                let (config, alert) = recovery(table)?;
                (spec.recovery, spec.alert) = (Some(config), alert);
            }
            spec.rate_control = self.file.rate_control.as_ref().map(rate_control).transpose()?;
        }
        let mut delay_ns = 0;
        for (index, between) in table.strings.iter().enumerate() {
            let mut nodes = vec![from];
            for name in between {
                nodes.push(graph.find(name)?);
            }
            nodes.push(to);
            let link = |from: u32, to: u32| {
                graph.ends.get(&(from, to)).copied().ok_or_else(|| FileError::Unknown {
                    what: "link of string",
                    name: format!("{} of {}", index, table.from),
                    known: "links between the nodes of [[link]] only".to_owned(),
                })
            };
            let forward: Vec<u32> =
                nodes.windows(2).map(|it| link(it[0], it[1])).collect::<Result<_, _>>()?;
            nodes.reverse();
            let back: Vec<u32> =
                nodes.windows(2).map(|it| link(it[0], it[1])).collect::<Result<_, _>>()?;
            if index == 0 {
                delay_ns =
                    forward.iter().map(|it| self.scenario.links[*it as usize].delay_ns).sum();
            }
            inside.extend(forward.iter().chain(&back));
            let weight = table.weights.get(index).copied().unwrap_or(1);
            spec.strings.push(StringSpec { forward, back, weight });
        }
        graph.join_switch(from, to, number as u32, delay_ns);
        self.scenario.switches.push(spec);
        Ok(())
    }

    fn outages(&mut self) -> Result<(), FileError> {
        for table in &self.file.outage {
            let links = self.outage_links(table)?;
            self.scenario.outages.push(OutageSpec {
                links,
                string: table.string.map(|string| (0, string)),
                from_ns: table.from.0,
                until_ns: table.until.0,
                moves_flows: table.moves_flows,
                cut: if table.far_end { CutAt::FarEnd } else { CutAt::BothEnds },
            });
        }
        Ok(())
    }

    /// The links of an outage. Links are numbered as they are written: one, or two, for each table.
    fn outage_links(&self, table: &OutageTable) -> Result<Vec<u32>, FileError> {
        let mut found = Vec::new();
        let mut link = 0;
        let mut named = vec![false; table.links.len()];
        for it in &self.file.link {
            let width = if it.one_way { 1 } else { 2 };
            let name = format!("{}-{}", it.from, it.to);
            let at = table.links.iter().position(|wanted| *wanted == name);
            let of_node =
                table.node.as_ref().is_some_and(|node| *node == it.from || *node == it.to);
            if at.is_some() || of_node {
                found.extend(link..link + width);
            }
            if let Some(at) = at {
                named[at] = true;
            }
            link += width;
        }
        if let Some(at) = named.iter().position(|it| !it) {
            let known = self.file.link.iter().map(|it| format!("{}-{}", it.from, it.to));
            return Err(FileError::Unknown {
                what: "link",
                name: table.links[at].clone(),
                known: known.collect::<Vec<_>>().join(", "),
            });
        }
        Ok(found)
    }

    fn profile(&mut self, name: &str) -> Result<u32, FileError> {
        if let Some(number) = self.profiles.numbers.get(name) {
            return Ok(*number);
        }
        let profile = match self.file.profile.get(name) {
            Some(table) => profile(table)?,
            None => base(name, &self.file.profile)?,
        };
        self.profiles.list.push(profile);
        let number = (self.profiles.list.len() - 1) as u32;
        self.profiles.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}

fn base(name: &str, own: &BTreeMap<String, ProfileTable>) -> Result<Profile, FileError> {
    match name {
        "ns2" => Ok(Profile::NS2),
        "ns3" => Ok(Profile::NS3),
        "modern" => Ok(Profile::MODERN),
        _ => {
            let known = ["ns2", "ns3", "modern"].into_iter().chain(own.keys().map(String::as_str));
            Err(FileError::Unknown {
                what: "profile",
                name: name.to_owned(),
                known: known.collect::<Vec<_>>().join(", "),
            })
        }
    }
}

fn profile(table: &ProfileTable) -> Result<Profile, FileError> {
    let mut it = base(table.base.as_deref().unwrap_or("ns2"), &BTreeMap::new())?;
    if let Some(name) = &table.congestion {
        it.congestion = congestion(name)?;
        let is_told_apart = matches!(it.congestion, Congestion::NewReno | Congestion::Cubic);
        if it.stack == Stack::TwoWay && !is_told_apart {
            return Err(FileError::Alike(name.clone()));
        }
        it.sack |= it.congestion == Congestion::Sack;
    }
    macro_rules! set {
        ($($field:ident),*) => { $(it.$field = table.$field.unwrap_or(it.$field);)* };
        ($($from:ident => $field:ident),*) => { $(it.$field = table.$from.map_or(it.$field, |time| time.0);)* };
    }
    set!(mss_bytes, header_bytes, window_segments, initial_window_segments);
    set!(syn_loss_window_segments, syn_linear_timeouts, delack_segments, delack_syn);
    set!(quick_acks, ack_push, dup_acks, impatient, limited_transmit, syn_adds_segment);
    set!(rto_floor_of_variation, reduces_again, ns3_recovery, counts_segments, hystart);
    set!(timestamps, sack, prr, rack, tlp);
    set!(syn_timeout => syn_timeout_ns, rto_min => rto_min_ns, rto_max => rto_max_ns);
    set!(tick => tick_ns, delack => delack_ns);
    let bytes = f64::from(it.mss_bytes) + f64::from(it.header_bytes);
    within("mss_bytes + header_bytes", bytes, 41.0..=65_000.0, "41 to 65000")?;
    within("tick, ns", it.tick_ns as f64, 1.0..=1e10, "1ns to 10s")?;
    within("syn_timeout, ns", it.syn_timeout_ns as f64, 1e6..=1e12, "at least 1ms")?;
    within(
        "initial_window_segments",
        f64::from(it.initial_window_segments),
        1.0..=1e6,
        "1 to 1000000",
    )?;
    within("window_segments", f64::from(it.window_segments), 1.0..=1e6, "1 to 1000000")?;
    Ok(it)
}

fn congestion(name: &str) -> Result<Congestion, FileError> {
    Ok(match name {
        "reno" => Congestion::Reno,
        "newreno" => Congestion::NewReno,
        "sack" => Congestion::Sack,
        "vegas" => Congestion::Vegas,
        "cubic" => Congestion::Cubic,
        _ => {
            return Err(FileError::Unknown {
                what: "congestion control",
                name: name.to_owned(),
                known: "reno, newreno, sack, vegas, cubic".to_owned(),
            });
        }
    })
}
