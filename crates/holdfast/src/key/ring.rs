//! What a host shares with each of the others, and which of it is spoken with.

use super::{GroupKey, KeyError, KeyLine, PublicKey};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// The secrets that a host shares with the others of its group. Clones share what they hold:
/// keys that one takes over count for all of them, and so for channels and heartbeats that use
/// them. What was opened before stays open.
#[derive(Clone)]
pub struct Keyring(Arc<RwLock<Arc<Ring>>>);

struct Ring {
    /// The lines of the key file.
    lines: Vec<KeyLine>,
    shared: Shared,
}

#[derive(PartialEq, Eq)]
enum Shared {
    /// All hosts have the lines of the key file.
    ByAll(Secrets),
    /// Each host has a key file of its own: what is shared with whom, by its role. On the way from
    /// one key for all, or to it, that one is among the secrets of everybody.
    InPairs(BTreeMap<String, Secrets>),
}

/// What is shared with another host, never empty: the first is the one to speak with, all are
/// accepted.
#[derive(Clone)]
pub struct Secrets {
    all: Arc<[GroupKey]>,
    /// Whether the other host has shown that it has one of them.
    proven: Proven,
}

/// Notes that a host has shown that it has a secret.
#[derive(Clone, Debug, Default)]
pub struct Proven(Arc<AtomicBool>);

/// A secret that a caller may have.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub secret: GroupKey,
    /// The only host that has it besides this one; `None`: all have it.
    pub peer: Option<String>,
}

impl Keyring {
    /// Of a group whose hosts have the same key file, with these lines.
    #[must_use]
    pub fn shared(lines: Vec<GroupKey>) -> Self {
        let all = Secrets::new(lines.iter().cloned());
        let lines = lines.into_iter().map(KeyLine::from).collect();
        Self::new(Ring { lines, shared: Shared::ByAll(all) })
    }

    /// Of the host `me` of `group`, whose key file has the `lines`, and where each role has the
    /// `publics`.
    ///
    /// # Errors
    /// [`KeyError::NoneOfItsOwn`], [`KeyError::NotListed`] and [`KeyError::NotHeld`]: others would
    /// not understand this host, or it them. [`KeyError::ListedOfAll`].
    pub fn in_pairs(
        (group, me): (&str, &str),
        lines: Vec<KeyLine>,
        publics: &[(&str, &[PublicKey])],
    ) -> Result<Self, KeyError> {
        let ours = publics.iter().find(|(name, _)| *name == me).map_or(&[][..], |(_, its)| *its);
        let own = || lines.iter().filter(|it| !it.of_all).map(|it| it.key.public());
        let host = me.to_owned();
        let Some(spoken) = own().next() else { return Err(KeyError::NoneOfItsOwn { host }) };
        if !ours.contains(&spoken) {
            return Err(KeyError::NotListed { host, ours: spoken });
        }
        // Whoever has that one could be this host, also after its mark is gone.
        let of_all = || lines.iter().filter(|it| it.of_all).map(|it| it.key.public());
        let listed = publics.iter().flat_map(|(_, its)| its.iter());
        if listed.into_iter().any(|it| of_all().any(|all| all == *it)) {
            return Err(KeyError::ListedOfAll);
        }
        if let Some(listed) = ours.first().filter(|listed| own().all(|it| it != **listed)) {
            return Err(KeyError::NotHeld { host, listed: *listed, ours: spoken });
        }
        let others = publics.iter().filter(|(name, _)| *name != me);
        let agreed = others.map(|(name, its)| {
            let of = |line: &KeyLine| match line.of_all {
                true => vec![line.key.clone()],
                false => its.iter().filter_map(|it| line.key.agree(*it, group)).collect(),
            };
            ((*name).to_owned(), Secrets::new(lines.iter().flat_map(of)))
        });
        let agreed = agreed.filter(|(_, secrets)| !secrets.all.is_empty());
        Ok(Self::new(Ring { shared: Shared::InPairs(agreed.collect()), lines }))
    }

    fn new(ring: Ring) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(ring))))
    }

    fn ring(&self) -> Arc<Ring> {
        // Only ever replaced as a whole, also by whoever panics.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What this host shares with the one of role `peer`. With a role that the file does not
    /// have: something that nobody else knows.
    #[must_use]
    pub fn with(&self, peer: &str) -> Secrets {
        self.ring().with(peer)
    }

    /// What callers may have who are one of `peers`, by their roles.
    #[must_use]
    pub fn candidates(&self, peers: &[String]) -> Vec<Candidate> {
        let ring = self.ring();
        let nobody = [String::new()];
        let (peers, in_pairs) = match &ring.shared {
            Shared::ByAll(_) => (&nobody[..], false),
            Shared::InPairs(_) => (peers, true),
        };
        let mut found: Vec<Candidate> = Vec::new();
        for peer in peers {
            for secret in ring.with(peer).iter() {
                let is_pairs = in_pairs && !ring.is_of_all(secret);
                // What all have is tried once.
                if is_pairs || found.iter().all(|it| it.secret != *secret) {
                    let peer = is_pairs.then(|| peer.clone());
                    found.push(Candidate { secret: secret.clone(), peer });
                }
            }
        }
        found
    }

    /// Notes that the host of role `peer` has shown that it has one of the secrets.
    pub fn note(&self, peer: &str) {
        self.with(peer).proven.note();
    }

    /// Whether each host has a key of its own.
    #[must_use]
    pub fn is_in_pairs(&self) -> bool {
        matches!(self.ring().shared, Shared::InPairs(_))
    }

    /// A secret of the whole group, or where there is none, of this host alone.
    #[must_use]
    pub fn own(&self) -> GroupKey {
        let ring = self.ring();
        let first = ring.lines.first();
        let of_all = matches!(ring.shared, Shared::ByAll(_));
        match first.filter(|it| of_all || it.of_all) {
            Some(first) => first.key.clone(),
            None => GroupKey(first.map_or([0; 32], |it| it.key.derive(b"holdfast own 1"))),
        }
    }

    /// Whether both hold the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (self.ring(), other.ring());
        one.lines == two.lines && one.shared == two.shared
    }

    /// Holds from now on what `next` does.
    pub fn take_over(&self, next: &Self) {
        let (now, next) = (self.ring(), next.ring());
        match (&now.shared, &next.shared) {
            (Shared::InPairs(before), Shared::InPairs(_)) => {
                let proven = before.iter().filter(|(_, its)| its.proven.is_noted());
                proven.for_each(|(name, _)| next.with(name).proven.note());
            }
            // Whoever was heard is one of those, and nobody knows which.
            (Shared::ByAll(all), Shared::InPairs(after)) if all.proven.is_noted() => {
                after.values().for_each(|its| its.proven.note());
            }
            (Shared::InPairs(before), Shared::ByAll(all)) => {
                let proven = before.values().filter(|its| its.proven.is_noted());
                proven.for_each(|_| all.proven.note());
            }
            (Shared::ByAll(before), Shared::ByAll(all)) if before.proven.is_noted() => {
                all.proven.note();
            }
            (Shared::ByAll(_), _) => {}
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Whom this host would not understand, or who would not understand it, if it took over
    /// `next` while the others have what it has now: what it then speaks with must be accepted
    /// already, and what it speaks with now still be. Who has never been heard is not lost.
    #[must_use]
    pub fn would_lose(&self, next: &Self) -> Option<String> {
        let (now, next) = (self.ring(), next.ring());
        let is_lost = |name: &str| {
            let (now, next) = (now.with(name), next.with(name));
            let is_heard = now.iter().any(|it| it == next.first());
            let hears = next.iter().any(|it| it == now.first());
            now.proven.is_noted() && !(is_heard && hears)
        };
        match (&now.shared, &next.shared) {
            (Shared::InPairs(before), Shared::InPairs(after)) => {
                before.keys().find(|name| after.contains_key(*name) && is_lost(name)).cloned()
            }
            (Shared::InPairs(of), Shared::ByAll(_)) | (Shared::ByAll(_), Shared::InPairs(of)) => {
                of.keys().find(|name| is_lost(name)).cloned()
            }
            (Shared::ByAll(_), Shared::ByAll(_)) => {
                is_lost("").then(|| "every other host".to_owned())
            }
        }
    }
}

impl Ring {
    fn with(&self, peer: &str) -> Secrets {
        match &self.shared {
            Shared::ByAll(all) => all.clone(),
            Shared::InPairs(pairs) => pairs
                .get(peer)
                .cloned()
                .unwrap_or_else(|| Secrets::new([self.nobodys()].into_iter())),
        }
    }

    /// A secret that nobody else knows, of a line that is this host's alone.
    fn nobodys(&self) -> GroupKey {
        let own = self.lines.iter().find(|it| !it.of_all);
        GroupKey(own.map_or([0; 32], |own| own.key.derive(b"holdfast nobody 1")))
    }

    fn is_of_all(&self, secret: &GroupKey) -> bool {
        self.lines.iter().any(|it| it.of_all && it.key == *secret)
    }
}

impl Secrets {
    fn new(all: impl Iterator<Item = GroupKey>) -> Self {
        Self { all: all.collect(), proven: Proven::default() }
    }

    /// The one to speak with.
    #[must_use]
    pub fn first(&self) -> &GroupKey {
        &self.all[0]
    }

    /// Where it is noted that the other host has shown that it has one of them.
    #[must_use]
    pub fn proven(&self) -> &Proven {
        &self.proven
    }

    /// All that are accepted; the one to speak with is the first.
    pub fn iter(&self) -> impl Iterator<Item = &GroupKey> {
        self.all.iter()
    }
}

impl PartialEq for Secrets {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for Secrets {}

impl Proven {
    /// Notes it.
    pub fn note(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(secret)")
    }
}

#[cfg(test)]
mod tests;
