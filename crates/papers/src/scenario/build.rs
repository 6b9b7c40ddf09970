//! Builds a scenario from a scenario file.

use super::error::{FileError, at_most, unknown, within};
use super::file::{DumbbellTable, File, FlowTable, LossTable, OutageTable, ProfileTable};
use super::machines::{recover, regulate};
use super::mistake::MISTAKES_MAX;
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

/// The profiles that are there without a file.
const BASES: [&str; 3] = ["ns2", "ns3", "modern"];

/// What was found to be wrong, each with its place, such as `flow.0.segments`.
#[derive(Debug, Default)]
pub struct Found(pub Vec<(String, FileError)>);

impl Found {
    /// Notes a mistake.
    pub fn note(&mut self, place: &str, error: FileError) {
        if self.0.len() < MISTAKES_MAX {
            self.0.push((place.to_owned(), error));
        }
    }

    /// Notes what is wrong with a value, if anything.
    fn take<T>(&mut self, place: &str, result: Result<T, FileError>) -> Option<T> {
        result.map_err(|error| self.note(place, error)).ok()
    }
}

/// Builds the scenario of a file.
///
/// # Errors
/// Everything that names something that the file does not define, or is out of bounds.
pub fn build(file: &File) -> Result<Scenario, Found> {
    let mut found = Found::default();
    let flows: usize = file.flow.iter().map(|flow| flow.count as usize).sum();
    found.take("flow", at_most("flows", flows, FLOWS_MAX));
    let pairs = if found.0.is_empty() { flows as u32 } else { 0 };
    let mut scenario = match &file.dumbbell {
        Some(table) => dumbbell(file, table, pairs, &mut found),
        None => links(file, &mut found),
    };
    // Profiles that no flow uses are checked, too, since a sweep may use them.
    let profiles = Profiles::of(file, &mut found);
    if found.0.iter().any(|it| matches!(it.1, FileError::TooMany { .. })) {
        return Err(found);
    }
    let mut builder = Builder { file, scenario: &mut scenario, profiles, found: &mut found };
    builder.flows();
    builder.outages();
    scenario.profiles = builder.profiles.list;
    scenario.seed = file.seed;
    scenario.end_ns = file.end.0;
    if found.0.is_empty() {
        found.take("", scenario.check().map_err(FileError::from));
    }
    if found.0.is_empty() { Ok(scenario) } else { Err(found) }
}

fn dumbbell(file: &File, table: &DumbbellTable, pairs: u32, found: &mut Found) -> Scenario {
    if !file.link.is_empty() || !file.switch.is_empty() {
        let message = "a [dumbbell] has its own links".to_owned();
        let remedy = "leave out [[link]] and [[switch]], or [dumbbell]";
        found.note("dumbbell", FileError::Conflict { message, remedy });
    }
    let links = 4 * (pairs as usize + table.strings.len());
    found.take("dumbbell.strings", at_most("links", links, LINKS_MAX));
    let strings = table.strings.len() as f64;
    found.take("dumbbell.strings", within("number of strings", strings, 1.0..=1e4, "1 to 10000"));
    let recovery = file.recover.as_ref().and_then(|it| recover(it, found));
    let dumbbell = Dumbbell {
        rate_bps: table.rate.0,
        string_rates_bps: table.strings.iter().map(|it| it.0).collect(),
        delays_ns: table.delays.map(|it| it.0),
        buffer: table.queue.map_or(QueueLimit::None, |it| it.0),
        loss: loss(table.loss, "dumbbell.loss", found),
        recovery: recovery.map(|it| it.0),
        alert: recovery.map_or(Alert::Told, |it| it.1),
        rate_control: file.regulate.as_ref().map(|it| regulate(it, found)),
    };
    if found.0.is_empty() { dumbbell.scenario(pairs, Profile::NS2) } else { Scenario::default() }
}

/// The links of the file; routes are found later.
fn links(file: &File, found: &mut Found) -> Scenario {
    found.take("link", at_most("links", 2 * file.link.len(), LINKS_MAX));
    found.take("switch", at_most("switches", file.switch.len(), NODES_MAX));
    if file.switch.is_empty() {
        for (name, is_there) in
            [("recover", file.recover.is_some()), ("regulate", file.regulate.is_some())]
        {
            if is_there {
                let message = format!("there is no edge that [{name}] could work at");
                let remedy = "add a [[switch]], or use a [dumbbell]";
                found.note(name, FileError::Conflict { message, remedy });
            }
        }
    }
    let mut scenario = Scenario::default();
    for (number, table) in file.link.iter().enumerate() {
        let rate_bps = table.rate.map_or(0, |it| it.0);
        let delay_ns = table.delay.0;
        let queue = table.queue.map_or(QueueLimit::None, |it| it.0);
        let loss = loss(table.loss, &format!("link.{number}.loss"), found);
        scenario.links.push(LinkSpec { rate_bps, delay_ns, queue, loss });
        if !table.one_way {
            let (queue, loss) = (QueueLimit::None, LossModel::Never);
            scenario.links.push(LinkSpec { rate_bps, delay_ns, queue, loss });
        }
    }
    scenario
}

fn loss(table: Option<LossTable>, place: &str, found: &mut Found) -> LossModel {
    let mut share = |what: &str, value| {
        found.take(place, within(what, value, 0.0..=1.0, "0 to 1")).unwrap_or_default()
    };
    match table {
        None => LossModel::Never,
        Some(LossTable::Share(loss)) => LossModel::Bernoulli(share("loss", loss)),
        Some(LossTable::Bursts { to_bad, to_good, loss_good, loss_bad }) => {
            LossModel::GilbertElliott {
                to_bad: share("to_bad", to_bad),
                to_good: share("to_good", to_good),
                loss_good: share("loss_good", loss_good),
                loss_bad: share("loss_bad", loss_bad),
            }
        }
    }
}

/// The file's profiles, and those that flows use.
#[derive(Default)]
struct Profiles {
    own: BTreeMap<String, Profile>,
    list: Vec<Profile>,
    numbers: BTreeMap<String, u32>,
}

impl Profiles {
    fn of(file: &File, found: &mut Found) -> Self {
        let one = |(name, table): (&String, &ProfileTable)| {
            (name.clone(), profile(table, &format!("profile.{name}"), found))
        };
        Self { own: file.profile.iter().map(one).collect(), ..Self::default() }
    }

    /// The number of a profile among those that are used.
    fn number(&mut self, name: &str) -> Result<u32, FileError> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let profile = match self.own.get(name) {
            Some(profile) => *profile,
            None => base(name).ok_or_else(|| {
                let own = self.own.keys().map(String::as_str);
                let known: Vec<&str> = BASES.into_iter().chain(own).collect();
                unknown("profile", name, &known)
            })?,
        };
        self.list.push(profile);
        let number = (self.list.len() - 1) as u32;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}

struct Builder<'a> {
    file: &'a File,
    scenario: &'a mut Scenario,
    profiles: Profiles,
    found: &'a mut Found,
}

impl Builder<'_> {
    fn flows(&mut self) {
        let graph = if self.file.dumbbell.is_none() { self.graph() } else { None };
        let strings = self.strings();
        let mut paths = BTreeMap::new();
        let mut number = 0;
        for (index, table) in self.file.flow.iter().enumerate() {
            let place = |key: &str| format!("flow.{index}.{key}");
            let segments = f64::from(table.segments);
            let most = f64::from(SEGMENTS_MAX);
            let segments = within("segments", segments, 1.0..=most, "1 to 100000000");
            self.found.take(&place("segments"), segments);
            let profile = self.profiles.number(&table.profile);
            let profile = self.found.take(&place("profile"), profile).unwrap_or_default();
            if let Some(string) = table.string.filter(|it| *it as usize >= strings) {
                let error = FileError::Missing { what: "string", number: string, count: strings };
                self.found.note(&place("string"), error);
            }
            let path = graph.as_ref().and_then(|graph| self.path(graph, index, table, &mut paths));
            for count in 0..u64::from(table.count) {
                self.scenario.flows.push(FlowSpec {
                    start_ns: count.saturating_mul(table.every.0).saturating_add(table.start.0),
                    segments: table.segments,
                    profile,
                    path: path.unwrap_or(number),
                    string: table.string,
                });
                number += 1;
            }
        }
    }

    /// Number of strings of the first switch.
    fn strings(&self) -> usize {
        match &self.file.dumbbell {
            Some(dumbbell) => dumbbell.strings.len(),
            None => self.file.switch.first().map_or(0, |switch| switch.strings.len()),
        }
    }

    /// The path of flows that are alike; flows between the same nodes share one.
    fn path(
        &mut self,
        graph: &Graph,
        index: usize,
        table: &FlowTable,
        paths: &mut BTreeMap<(u32, u32), u32>,
    ) -> Option<u32> {
        let mut end = |key: &str, name: &Option<String>| {
            let node = match name {
                Some(name) => graph.find(name),
                None => Err(FileError::Conflict {
                    message: format!("a [[flow]] between links needs `{key}`"),
                    remedy: "name a node, or use a [dumbbell]",
                }),
            };
            self.found.take(&format!("flow.{index}.{key}"), node)
        };
        let (from, to) = (end("from", &table.from), end("to", &table.to));
        let ends = (from?, to?);
        if let Some(path) = paths.get(&ends) {
            return Some(*path);
        }
        let path = graph.path(ends.0, ends.1, &self.scenario.switches);
        self.scenario.paths.push(self.found.take(&format!("flow.{index}.to"), path)?);
        let number = (self.scenario.paths.len() - 1) as u32;
        paths.insert(ends, number);
        Some(number)
    }

    /// The nodes with their links and switches; `None` if a switch is wrong, so that no route can
    /// be judged.
    fn graph(&mut self) -> Option<Graph> {
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
        let before = self.found.0.len();
        let mut inside = Vec::new();
        for number in 0..self.file.switch.len() {
            let switch = self.switch(&mut graph, number, &mut inside);
            self.scenario.switches.push(switch.unwrap_or_default());
        }
        // Links inside a switch are not open to shortest routes, since the switch decides there.
        inside.sort_unstable();
        for (from, to, link) in joins {
            if inside.binary_search(&link).is_err() {
                graph.join(from, to, link, &self.scenario.links[link as usize]);
            }
        }
        (self.found.0.len() == before).then_some(graph)
    }

    fn switch(
        &mut self,
        graph: &mut Graph,
        number: usize,
        inside: &mut Vec<u32>,
    ) -> Option<SwitchSpec> {
        let table = &self.file.switch[number];
        let place = |key: &str| format!("switch.{number}.{key}");
        let mut spec = SwitchSpec::default();
        if number == 0 {
            if let Some((config, alert)) =
                self.file.recover.as_ref().and_then(|it| recover(it, self.found))
            {
                (spec.recovery, spec.alert) = (Some(config), alert);
            }
            spec.rate_control = self.file.regulate.as_ref().map(|it| regulate(it, self.found));
        }
        let from = self.found.take(&place("from"), graph.find(&table.from));
        let to = self.found.take(&place("to"), graph.find(&table.to));
        let (from, to) = (from?, to?);
        let lengths = |string: &Vec<String>| string.len();
        if table.strings.iter().map(lengths).max() != table.strings.iter().map(lengths).min() {
            let message = "the strings have different numbers of nodes".to_owned();
            let remedy = "give all strings of a switch as many";
            self.found.note(&place("strings"), FileError::Conflict { message, remedy });
            return None;
        }
        let mut delay_ns = 0;
        for (index, between) in table.strings.iter().enumerate() {
            let ways = string(graph, (from, to), between);
            let (forward, back) = self.found.take(&place(&format!("strings.{index}")), ways)?;
            if index == 0 {
                let delay = |link: &u32| self.scenario.links[*link as usize].delay_ns;
                delay_ns = forward.iter().map(delay).sum();
            }
            inside.extend(forward.iter().chain(&back));
            let weight = table.weights.get(index).copied().unwrap_or(1);
            spec.strings.push(StringSpec { forward, back, weight });
        }
        graph.join_switch(from, to, number as u32, delay_ns);
        Some(spec)
    }

    fn outages(&mut self) {
        let strings = self.strings();
        for (index, table) in self.file.outage.iter().enumerate() {
            let place = |key: &str| format!("outage.{index}.{key}");
            if let Some(string) = table.string.filter(|it| *it as usize >= strings) {
                let error = FileError::Missing { what: "string", number: string, count: strings };
                self.found.note(&place("string"), error);
            }
            if table.until.0 < table.from.0 {
                let message = "the outage ends before it begins".to_owned();
                let remedy = "give it a later end";
                self.found.note(&place("until"), FileError::Conflict { message, remedy });
            }
            if table.string.is_none() && table.links.is_empty() && table.node.is_none() {
                let message = "nothing is down in this outage".to_owned();
                let remedy = "name a string, links or a node";
                self.found.note(&place(""), FileError::Conflict { message, remedy });
            }
            let links = self.outage_links(index, table);
            self.scenario.outages.push(OutageSpec {
                links,
                string: table.string.map(|string| (0, string)),
                from_ns: table.from.0,
                until_ns: table.until.0,
                moves_flows: table.moves_flows,
                cut: if table.far_end { CutAt::FarEnd } else { CutAt::BothEnds },
            });
        }
    }

    /// The links of an outage. Links are numbered as they are written: one, or two, for each table.
    fn outage_links(&mut self, index: usize, table: &OutageTable) -> Vec<u32> {
        let mut down = Vec::new();
        let mut link = 0;
        let mut named = vec![false; table.links.len()];
        for it in &self.file.link {
            let width = if it.one_way { 1 } else { 2 };
            let name = format!("{}-{}", it.from, it.to);
            let at = table.links.iter().position(|wanted| *wanted == name);
            let of_node =
                table.node.as_ref().is_some_and(|node| *node == it.from || *node == it.to);
            if at.is_some() || of_node {
                down.extend(link..link + width);
            }
            if let Some(at) = at {
                named[at] = true;
            }
            link += width;
        }
        for (at, name) in table.links.iter().enumerate().filter(|it| !named[it.0]) {
            let known = self.file.link.iter().map(|it| format!("{}-{}", it.from, it.to)).collect();
            let error = FileError::Unknown { what: "link", name: name.clone(), known };
            self.found.note(&format!("outage.{index}.links.{at}"), error);
        }
        let nodes = || self.file.link.iter().flat_map(|it| [&it.from, &it.to]);
        if let Some(name) = table.node.as_ref().filter(|node| nodes().all(|it| it != *node)) {
            let known: std::collections::BTreeSet<String> = nodes().cloned().collect();
            let known = known.into_iter().collect();
            let error = FileError::Unknown { what: "node", name: name.clone(), known };
            self.found.note(&format!("outage.{index}.node"), error);
        }
        down
    }
}

/// The links of a string, there and back.
fn string(
    graph: &Graph,
    (from, to): (u32, u32),
    between: &[String],
) -> Result<(Vec<u32>, Vec<u32>), FileError> {
    let mut nodes = vec![from];
    for name in between {
        nodes.push(graph.find(name)?);
    }
    nodes.push(to);
    let link = |it: &[u32]| {
        graph
            .ends
            .get(&(it[0], it[1]))
            .copied()
            .ok_or_else(|| FileError::NoRoute { from: graph.name(it[0]), to: graph.name(it[1]) })
    };
    let forward = nodes.windows(2).map(link).collect::<Result<_, _>>()?;
    nodes.reverse();
    let back = nodes.windows(2).map(link).collect::<Result<_, _>>()?;
    Ok((forward, back))
}

fn base(name: &str) -> Option<Profile> {
    match name {
        "ns2" => Some(Profile::NS2),
        "ns3" => Some(Profile::NS3),
        "modern" => Some(Profile::MODERN),
        _ => None,
    }
}

fn profile(table: &ProfileTable, place: &str, found: &mut Found) -> Profile {
    let name = table.base.as_deref().unwrap_or("ns2");
    let known = base(name).ok_or_else(|| unknown("base", name, &BASES));
    let mut it = found.take(&format!("{place}.base"), known).unwrap_or(Profile::NS2);
    if let Some(name) = &table.congestion {
        let place = format!("{place}.congestion");
        it.congestion = found.take(&place, congestion(name)).unwrap_or(it.congestion);
        let is_told_apart = matches!(it.congestion, Congestion::NewReno | Congestion::Cubic);
        if it.stack == Stack::TwoWay && !is_told_apart {
            found.note(&place, FileError::Alike(name.clone()));
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
    let initial = f64::from(it.initial_window_segments);
    let window = f64::from(it.window_segments);
    let mut check = |key: &str, what: &str, value, bounds, said| {
        found.take(&format!("{place}.{key}"), within(what, value, bounds, said));
    };
    check("mss_bytes", "mss_bytes + header_bytes", bytes, 41.0..=65_000.0, "41 to 65000");
    check("tick", "tick, ns", it.tick_ns as f64, 1.0..=1e10, "1ns to 10s");
    check("syn_timeout", "syn_timeout, ns", it.syn_timeout_ns as f64, 1e6..=1e12, "at least 1ms");
    check("initial_window_segments", "initial_window_segments", initial, 1.0..=1e6, "1 to 1000000");
    check("window_segments", "window_segments", window, 1.0..=1e6, "1 to 1000000");
    it
}

fn congestion(name: &str) -> Result<Congestion, FileError> {
    const ALL: [(&str, Congestion); 5] = [
        ("reno", Congestion::Reno),
        ("newreno", Congestion::NewReno),
        ("sack", Congestion::Sack),
        ("vegas", Congestion::Vegas),
        ("cubic", Congestion::Cubic),
    ];
    let found = ALL.iter().find(|it| it.0 == name).map(|it| it.1);
    found.ok_or_else(|| unknown("congestion control", name, &ALL.map(|it| it.0)))
}
