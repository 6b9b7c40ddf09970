//! What the edge of a spread group says about its protection.

use super::{Service, SpreadMachine};
use crate::shown::{Protection, Shown};

impl SpreadMachine {
    /// A spread group is protected if every service has two host servers.
    #[must_use]
    pub fn shown(&self) -> Shown {
        let waits = |reason: &str, remedy: &str| Shown::new(Protection::Waiting, reason, remedy);
        if let Some((service, why)) = self.roster.refused() {
            let reason = format!("{service} is not redirected: {why}");
            return waits(&reason, "serve less services, or make two groups of this one");
        }
        let drained = |service: &Service| {
            let slot = self.roster.drained(service)?;
            Some(format!("holdfast edge drain {} --end --config FILE", self.name_of(slot)))
        };
        let weakest = self.roster.services().min_by_key(|(_, slots)| slots.len());
        let Some((service, slots)) = weakest else {
            let remedy = "start holdfast on the host servers, and their servers";
            return waits("nothing is announced", remedy);
        };
        match slots[..] {
            [] => {
                let remedy = drained(service).unwrap_or_else(|| {
                    "look at `holdfast edge show`, and start a server on a host server".to_owned()
                });
                waits(&format!("nobody serves {service}"), &remedy)
            }
            [only] => {
                let reason = format!("only {} serves {service}", self.name_of(only));
                let remedy = drained(service).unwrap_or_else(|| {
                    "start its server on another host, or the daemon there".to_owned()
                });
                Shown::new(Protection::Unprotected, &reason, &remedy)
            }
            _ => Shown::protected(),
        }
    }
}
