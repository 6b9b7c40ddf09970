//! What a member keeps of the arbiter's record over its own end.

use super::super::record;
use super::locked;
use crate::config::{Arbiter, Config, Member};
use anyhow::{Context as _, Result};
use holdfast_cluster::arbiter::stored::GroupState;
use holdfast_cluster::lease::Kept;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time after which what was granted is written again.
const KEEP_EVERY: Duration = Duration::from_secs(2);

/// What is to be written, and who is told that it was, or could not be.
type Job = (Kept, Option<Box<dyn FnOnce(bool) + Send>>);

/// Writes the newest record that this member has seen, in a thread of its own: no lease waits for a
/// disk.
pub(super) struct Keeper {
    jobs: Sender<Job>,
    failure: Arc<Mutex<Option<String>>>,
    /// What an earlier life has kept.
    pub found: Kept,
}

impl Keeper {
    pub fn start(config: &Config, arbiter: &Arbiter, me: &Member) -> Result<Self> {
        let folder = &arbiter.state_dir;
        std::fs::create_dir_all(folder).with_context(|| {
            format!(
                "{}, arbiter.state_dir; it must be writable and survive a reboot",
                folder.display()
            )
        })?;
        let group = &config.group.name;
        let path = folder.join(format!("{group}-{}.seen", me.name));
        let remedy = match arbiter.is_own() {
            true => {
                "put a copy of it back, or remove it: then the other member waits for an operator"
            }
            false => "remove it, if the other member and the arbiter were not set back",
        };
        let stored = record::read(&path, remedy)?;
        let found =
            stored.map_or_else(Kept::default, |it| Kept { record: it.record, lineage: it.lineage });
        let mut members = [me.name.clone(), config.other(me).name.clone()];
        members.sort();
        let (jobs, todo) = channel::<Job>();
        let group = group.clone();
        let failure = Arc::new(Mutex::default());
        let told = Arc::clone(&failure);
        let write = move |Kept { record, lineage }: &Kept| {
            let (group, members) = (group.clone(), members.clone());
            let state = GroupState { group, members, lineage: *lineage, record: record.clone() };
            let error = record::replace(&path, state.to_string().as_bytes()).err();
            let is_kept = error.is_none();
            *locked(&told) = error.map(|error| format!("{}: {error:#}", path.display()));
            is_kept
        };
        let mut newest = found.clone();
        std::thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            // It is written again and again: a disk that fills up is noticed before it is needed.
            loop {
                let (kept, told) = match todo.recv_timeout(KEEP_EVERY) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => (newest.clone(), None),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let is_kept = write(&kept);
                match told {
                    // Who is told that it is not kept goes on with what was before.
                    Some(told) => {
                        if is_kept {
                            newest = kept;
                        }
                        told(is_kept);
                    }
                    None => newest = kept,
                }
            }
        })?;
        Ok(Self { jobs, failure, found })
    }

    pub fn failure(&self) -> Option<String> {
        locked(&self.failure).clone()
    }

    pub fn keep(&self, kept: &Kept) {
        // The thread ends with this daemon.
        let _ = self.jobs.send((kept.clone(), None));
    }

    /// Keeps it, and then says whether it is on the disk.
    pub fn keep_and(&self, kept: &Kept, told: impl FnOnce(bool) + Send + 'static) {
        let _ = self.jobs.send((kept.clone(), Some(Box::new(told))));
    }
}
