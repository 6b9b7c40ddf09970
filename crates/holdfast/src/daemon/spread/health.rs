//! Whether the services of this host answer: a TCP connection to each, made by a
//! thread of its own so that a server that hangs delays no heartbeat.

use crate::config::spread::Service;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

/// A server that takes longer to accept is ill.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);
/// Failures in a row until a service is withdrawn.
const FAILURES_MAX: u32 = 2;

/// Asks one list of services at a time.
pub(super) struct Health {
    questions: Sender<Vec<Service>>,
    answers: Receiver<Vec<(Service, bool)>>,
    asked: bool,
    failures: BTreeMap<Service, u32>,
}

impl Health {
    pub fn start() -> Self {
        let (questions, asked) = channel::<Vec<Service>>();
        let (answer, answers) = channel();
        // It ends with the channel, when the daemon does.
        thread::spawn(move || {
            for services in asked {
                let verdicts = services.into_iter().map(|s| (s, answers_client(&s))).collect();
                if answer.send(verdicts).is_err() {
                    return;
                }
            }
        });
        Self { questions, answers, asked: false, failures: BTreeMap::new() }
    }

    /// Starts a round unless one is under way.
    pub fn ask(&mut self, services: &[Service]) {
        if !self.asked {
            self.asked = self.questions.send(services.to_vec()).is_ok();
        }
        self.failures.retain(|service, _| services.contains(service));
    }

    /// Takes the verdicts of a round that has ended.
    pub fn take(&mut self) {
        match self.answers.try_recv() {
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            Ok(verdicts) => {
                self.asked = false;
                for (service, good) in verdicts {
                    let failures = self.failures.entry(service).or_default();
                    *failures = if good { 0 } else { failures.saturating_add(1) };
                }
            }
        }
    }

    /// Whether a service may be announced; what was never asked may.
    pub fn is_good(&self, service: &Service) -> bool {
        self.failures.get(service).is_none_or(|failures| *failures < FAILURES_MAX)
    }
}

/// Nobody knows what a UDP server would answer to: being bound is enough.
fn answers_client(service: &Service) -> bool {
    service.udp || TcpStream::connect_timeout(&service.address, CONNECT_LIMIT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_service_that_stops_answering_is_withdrawn_after_two_rounds() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Service { address: listener.local_addr().unwrap(), udp: false };
        let mut health = Health::start();
        let round = |health: &mut Health| {
            health.ask(&[service]);
            let until = Instant::now() + Duration::from_secs(10);
            while health.asked && Instant::now() < until {
                health.take();
                thread::sleep(Duration::from_millis(1));
            }
            health.is_good(&service)
        };
        assert!(round(&mut health));
        drop(listener);
        assert!(round(&mut health));
        assert!(!round(&mut health));
    }
}
