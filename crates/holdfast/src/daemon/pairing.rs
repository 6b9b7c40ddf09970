//! How the members meet: both say hello, and each pairs only if the other one
//! speaks the same and lives in the same world (decision 25). What differs is
//! said in the state, and tried again: nobody need restart a daemon after
//! copying a file.

use super::edge_link::{EdgeLink, LinkEvent};
use super::member::{Node, RESTART_BOTH};
use crate::channel::{Channel, ChannelError, Listener};
use crate::poll::Interest;
use crate::status::{Role, State};
use crate::world::{Part, World};
use holdfast_member::host::Context as _;
use holdfast_member::standing::hello;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, VERSION};
use std::time::{Duration, Instant};

/// How often the primary looks after handshakes that have come to a halt.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the edge hears from a member that is busy with itself.
const BEAT_EVERY: Duration = Duration::from_millis(5);
/// The backup compares again after this long; reading a server and its
/// libraries takes a good part of a second.
const COMPARE_EVERY: Duration = Duration::from_secs(2);

/// What a hello said that decides about the pair.
#[derive(Debug)]
struct Greeting {
    version: u32,
    log_version: u32,
    epoch: u64,
    world: Vec<Part>,
}

/// Why the members do not pair.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    reason: String,
    remedy: String,
}

/// Waits until a backup has come that may be one, and answers its hello.
/// `token` becomes its channel's. `None`: asked to stop.
///
/// # Errors
/// When the event loop fails, or this host cannot tell its own world.
pub fn wait_for_backup(
    node: &mut Node<'_>,
    listener: &mut Listener,
    token: u64,
) -> anyhow::Result<Option<Channel>> {
    let mut candidate: Option<Channel> = None;
    loop {
        if node.wait(Some(Instant::now() + LOOK_EVERY))? {
            return Ok(None);
        }
        node.turn_edge(&mut |_| {});
        match listener.accept(Instant::now()) {
            Ok(None) => {}
            Ok(Some(channel)) => {
                node.doubt(None);
                node.poll.add(&channel, token, Interest::Read)?;
                candidate = Some(channel);
            }
            // One from elsewhere is a stranger's, and no news.
            Err(ChannelError::Refused { from, why, .. }) if from == node.other.address.ip() => {
                let distrust = why.distrust(&node.other.name);
                node.doubt(distrust);
            }
            Err(_) => {}
        }
        let Some(channel) = &mut candidate else { continue };
        match listen(channel) {
            Ok(None) => {}
            Ok(Some(greeting)) if answer(node, channel, &greeting)? => return Ok(candidate),
            Ok(Some(_)) => candidate = None,
            Err(error) => {
                node.events.add("backup refused", error.to_string());
                candidate = None;
            }
        }
    }
}

/// The hello of the other end, once it is here.
fn listen(channel: &mut Channel) -> Result<Option<Greeting>, ChannelError> {
    let mut greeting = None;
    channel.tick(Instant::now())?;
    channel.recv(|message| greeting = Greeting::of(&message).or(greeting.take()))?;
    channel.flush()?;
    Ok(greeting)
}

/// Says hello, so that the other end knows as well what differs. Returns
/// whether it is the backup from now on.
fn answer(node: &mut Node<'_>, channel: &mut Channel, greeting: &Greeting) -> anyhow::Result<bool> {
    let world = own_world(node)?;
    let said = channel.send(&hello(
        &node.config.group.name,
        &node.me.name,
        (node.status.epoch, false),
        world.wire(),
    ));
    if let Err(error) = said.and_then(|()| channel.flush()) {
        node.events.add("backup refused", error.to_string());
        return Ok(false);
    }
    let judged = judge(&world, greeting, &node.me.name, &node.other.name);
    Ok(judged.map_err(|refusal| refuse(node, Role::Primary, &refusal)).is_ok())
}

/// Tells whoever connects why there is nothing to join.
pub fn turn_away(node: &mut Node<'_>, listener: &mut Listener, reason: &str) {
    while let Ok(Some(mut channel)) = listener.accept(Instant::now()) {
        node.events.add("turned away", format!("{}: {reason}", channel.peer()));
        let _ = channel.send(&Message::Refused { reason, again: true });
        let _ = channel.flush();
    }
}

/// What a member is told that comes back to a group which runs without it.
pub fn no_rejoin(node: &Node<'_>) -> String {
    let Node { me, status, .. } = node;
    match status.state {
        State::Unprotected => {
            format!("{} runs alone in epoch {}, and nobody can join it yet", me.name, status.epoch)
        }
        _ => format!("{} does not serve: {}", me.name, status.reason),
    }
}

/// Reaches a primary that may be one, and returns the messages that came right
/// behind its hello, encoded. `None`: asked to stop.
///
/// # Errors
/// When the event loop fails, or this host cannot tell its own world.
pub fn reach_primary(
    node: &mut Node<'_>,
    link: &mut EdgeLink,
) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
    let mut again_at = None;
    let mut world = None;
    loop {
        let due = again_at.or(link.deadline());
        if node.wait([due, node.edge.deadline()].into_iter().flatten().min())? {
            return Ok(None);
        }
        node.turn_edge(&mut |_| {});
        if again_at.is_some_and(|at| Instant::now() < at) {
            continue;
        }
        again_at = None;
        let (mut greeting, mut turned_away, mut early) = (None, None, Vec::new());
        let event = link.turn(Instant::now(), &node.poll, |message| {
            if let Message::Refused { reason, .. } = message {
                turned_away = Some(reason.to_owned());
            }
            if greeting.is_some() {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                early.push(bytes);
            }
            greeting = Greeting::of(&message).or(greeting.take());
        });
        match &event {
            LinkEvent::Failed(error) => {
                let distrust = error.distrust(&node.other.name);
                node.doubt(distrust);
                // Whatever it said when it last answered.
                let remedy = "start the other member's daemon, or look at the way to it";
                node.set_state(Role::Backup, State::Waiting, "the primary does not answer", remedy);
            }
            LinkEvent::Opened => node.doubt(None),
            _ => {}
        }
        if matches!(event, LinkEvent::Opened) && turned_away.is_none() {
            let own = world.insert(own_world(node)?);
            link.send(&hello(
                &node.config.group.name,
                &node.me.name,
                (node.status.epoch, false),
                own.wire(),
            ));
            link.flush(Instant::now(), &node.poll);
        }
        let refusal = match (turned_away, greeting, &world) {
            (Some(reason), ..) => Refusal { reason, remedy: RESTART_BOTH.to_owned() },
            (None, Some(greeting), Some(own)) => {
                match judge(own, &greeting, &node.me.name, &node.other.name) {
                    Ok(()) => {
                        // What it does from now on counts in the primary's epoch,
                        // whatever the edge may have said before or says later.
                        node.set_epoch(greeting.epoch);
                        return Ok(Some(early));
                    }
                    Err(refusal) => refusal,
                }
            }
            _ => continue,
        };
        refuse(node, Role::Backup, &refusal);
        link.close(Instant::now());
        again_at = Some(Instant::now() + COMPARE_EVERY);
    }
}

/// Looked at anew for each attempt: files may have been repaired meanwhile.
/// It takes longer than the edge waits for a heartbeat, so that goes on meanwhile.
fn own_world(node: &mut Node<'_>) -> anyhow::Result<World> {
    let (config, key) = (node.config, node.key.clone());
    let gathered = std::thread::scope(|scope| {
        let gathering = scope.spawn(|| World::gather(config, &key));
        while !gathering.is_finished() {
            node.hear_edge(&mut |_| {});
            std::thread::sleep(BEAT_EVERY);
        }
        gathering.join()
    });
    let world = gathered.map_err(|_| anyhow::anyhow!("comparing the members' worlds failed"))?;
    world.map_err(|error| anyhow::anyhow!("{error}\n  remedy: {}", error.remedy()))
}

fn refuse(node: &mut Node<'_>, role: Role, refusal: &Refusal) {
    node.set_state(role, State::Waiting, &refusal.reason, &refusal.remedy);
}

/// Whether two members may pair; `me` and `other` are their names.
fn judge(world: &World, theirs: &Greeting, me: &str, other: &str) -> Result<(), Refusal> {
    if theirs.version != VERSION || theirs.log_version != LOG_VERSION {
        return Err(Refusal {
            reason: format!("{other} speaks another version"),
            remedy: "run the same release on both members".to_owned(),
        });
    }
    match world.difference(&theirs.world, me, other) {
        None => Ok(()),
        Some(difference) => Err(Refusal {
            reason: format!("{me} and {other} differ: {}", difference.what),
            remedy: difference.remedy,
        }),
    }
}

impl Greeting {
    fn of(message: &Message<'_>) -> Option<Self> {
        let Message::Hello { version, log_version, epoch, world, .. } = message else {
            return None;
        };
        let world = world.iter().map(Part::from).collect();
        Some(Self { version: *version, log_version: *log_version, epoch: *epoch, world })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::world::World;

    #[test]
    fn only_the_same_release_and_world_may_pair() {
        let key = crate::key::GroupKey::generate().unwrap();
        let text = include_str!("../../../../docs/example.toml");
        let mut config = Config::parse(std::path::Path::new("/demo.toml"), text).unwrap();
        config.server.command = vec!["/bin/sh".to_owned()];
        let shim = std::env::current_exe().unwrap();
        let of = |config: &Config| World::gather_with(config, &key, &shim).unwrap();
        let own = of(&config);
        let greeting = |world: &World, log_version| {
            let (group, member, version, epoch, speaks) = ("demo", "b", VERSION, 1, false);
            let world = world.wire();
            let hello =
                Message::Hello { version, log_version, group, member, epoch, speaks, world };
            Greeting::of(&hello).unwrap()
        };
        assert_eq!(judge(&own, &greeting(&own, LOG_VERSION), "a", "b"), Ok(()));
        let older = judge(&own, &greeting(&own, LOG_VERSION - 1), "a", "b").unwrap_err();
        assert_eq!(older.reason, "b speaks another version");

        config.group.heartbeat_ms = 100;
        let other = judge(&own, &greeting(&of(&config), LOG_VERSION), "a", "b").unwrap_err();
        let settings = "settings heartbeat_ms = 100 (only on b), heartbeat_ms = 18 (only on a)";
        assert_eq!(other.reason, format!("a and b differ: {settings}"));
        assert!(other.remedy.contains("same group file"), "{}", other.remedy);
    }
}
