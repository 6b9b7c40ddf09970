//! Which services answer clients, by the answers to test questions.

use crate::spread::Service;
use crate::timing::host_server::FAILURES_MAX;
use std::collections::BTreeMap;

/// Failures in a row, by service.
#[derive(Debug, Default)]
pub(super) struct Answering(BTreeMap<Service, u32>);

impl Answering {
    /// Forgets services that are not among `listening`: a later bind begins
    /// anew.
    pub fn keep(&mut self, listening: &[Service]) {
        self.0.retain(|service, _| listening.contains(service));
    }

    /// Notes which services have answered, and which have not.
    pub fn learn(&mut self, answers: &[(Service, bool)]) {
        for (service, answered) in answers {
            let failures = self.0.entry(*service).or_default();
            *failures = if *answered { 0 } else { failures.saturating_add(1) };
        }
    }

    /// Whether a service may be announced; one that was never asked may.
    pub fn is_good(&self, service: &Service) -> bool {
        self.0.get(service).is_none_or(|failures| *failures < FAILURES_MAX)
    }
}
