//! All hosts of the group that this daemon knows of, itself first.

use super::super::app::Watched;
use super::super::look::{EdgeMember, EdgeSeen};
use super::super::theme::Theme;
use super::super::words::{count, fill, short};
use super::Section;
use holdfast::status::{Peer, Role, State, Status};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

const NAME: usize = 14;
const ROLE: usize = 9;
const HEARD: usize = 11;

/// All of them in `room` columns and lines; where there are more, their number.
pub fn section(group: &Watched, room: (u16, u16), theme: Theme) -> Section {
    let (columns, lines_max) = (room.0, usize::from(room.1.max(2)));
    let mut lines: Vec<Line<'static>> = group.status.as_ref().map_or(Vec::new(), |status| {
        let peers = status.peers.iter().map(|peer| row_of(status, peer, group.edge.as_ref()));
        let rows = std::iter::once(own_row(status)).chain(peers);
        rows.map(|row| row.line(usize::from(columns), theme)).collect()
    });
    if lines.len() > lines_max {
        let more = lines.len() + 1 - lines_max;
        lines.truncate(lines_max - 1);
        lines.push(Line::styled(format!("… and {more} more"), theme.quiet()));
    }
    let served = group.edge.as_ref().map_or(String::new(), served);
    Section { title: format!("hosts{served}"), lines }
}

struct Row {
    name: String,
    role: &'static str,
    heard: &'static str,
    says: String,
    is_heard: bool,
    /// Whether what it says needs somebody.
    is_alarm: bool,
}

impl Row {
    fn line(&self, columns: usize, theme: Theme) -> Line<'static> {
        let room = columns.saturating_sub(NAME + ROLE + HEARD);
        let alarm = |is: bool| if is { theme.bad() } else { Style::new() };
        Line::from(vec![
            Span::styled(fill(&self.name, NAME), theme.title()),
            Span::raw(fill(self.role, ROLE)),
            Span::styled(fill(self.heard, HEARD), alarm(!self.is_heard)),
            Span::styled(short(&self.says, room), alarm(self.is_alarm)),
        ])
    }
}

fn own_row(status: &Status) -> Row {
    Row {
        name: status.member.clone(),
        role: role_word(status.role),
        heard: "this host",
        says: status.state.to_string(),
        is_heard: true,
        is_alarm: status.state != State::Protected,
    }
}

fn row_of(status: &Status, peer: &Peer, edge: Option<&EdgeSeen>) -> Row {
    let seen = edge.and_then(|edge| edge.members.iter().find(|it| it.name == peer.name));
    let parts = [peer.note.clone(), seen.map_or(String::new(), carries)];
    let says: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Row {
        name: peer.name.clone(),
        role: role_of(status, peer),
        heard: if peer.connected { "heard" } else { "NOT HEARD" },
        says: says.join("; "),
        is_heard: peer.connected,
        is_alarm: false,
    }
}

fn role_word(role: Role) -> &'static str {
    match role {
        Role::Edge => "edge",
        Role::Witness => "witness",
        Role::Host => "host",
        Role::Primary => "primary",
        Role::Backup => "backup",
        Role::None => "none yet",
    }
}

/// The role of another host, as far as what is said of it tells: the edge and the witness have
/// their own names, they call one member current or owner, and of two members that hear each other
/// one is the primary.
fn role_of(status: &Status, peer: &Peer) -> &'static str {
    let begins = |words: &[&str]| words.iter().any(|word| peer.note.starts_with(word));
    match (status.role, peer.name.as_str()) {
        (_, "edge") => "edge",
        (_, "witness") => "witness",
        (Role::Primary, _) if peer.connected => "backup",
        (Role::Backup, _) if peer.connected => "primary",
        _ if begins(&["current", "owns the service"]) => "primary",
        _ if begins(&["in step"]) => "backup",
        // The witness calls a group protected only if the other member is its backup.
        (Role::Witness, _) if status.state == State::Protected => "backup",
        _ => "",
    }
}

/// What an edge has given a host server or a string.
fn carries(member: &EdgeMember) -> String {
    let flows = member.flows.map(|n| format!("{} flows", count(n)));
    let weight = member.weight.map(|n| format!("weight {n}"));
    [flows, weight].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What is served, and how full the edge's table is.
fn served(edge: &EdgeSeen) -> String {
    let services = edge.services();
    let for_whom = if services.is_empty() { String::new() } else { format!(" for {services}") };
    format!("{for_whom} · {} of {} flows", count(edge.flows.count), count(edge.flows.max))
}
