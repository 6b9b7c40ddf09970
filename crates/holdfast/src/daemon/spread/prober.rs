//! Whether the services of this host answer: a thread of its own makes a TCP
//! connection to each, so that a hanging server delays no heartbeat.

use holdfast_member::spread::Service;
use holdfast_member::timing::host_server::ANSWER_MAX;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Asks one list of services at a time.
pub(super) struct Prober {
    questions: Sender<Vec<Service>>,
    answers: Receiver<Vec<(Service, bool)>>,
    asked: bool,
}

impl Prober {
    pub fn start() -> Self {
        let (questions, asked) = channel::<Vec<Service>>();
        let (answer, answers) = channel();
        // The thread ends with the channel, when the daemon does.
        thread::spawn(move || {
            for services in asked {
                let verdicts = services.into_iter().map(|s| (s, answers_client(&s))).collect();
                if answer.send(verdicts).is_err() {
                    return;
                }
            }
        });
        Self { questions, answers, asked: false }
    }

    /// Starts a round unless one is under way.
    pub fn ask(&mut self, services: &[Service]) {
        if !self.asked {
            self.asked = self.questions.send(services.to_vec()).is_ok();
        }
    }

    /// The verdicts of a round that has ended.
    pub fn take(&mut self) -> Option<Vec<(Service, bool)>> {
        let verdicts = self.answers.try_recv().ok()?;
        self.asked = false;
        Some(verdicts)
    }
}

/// Whether a service answers. Nobody knows what a UDP server would answer to,
/// so being bound is enough.
fn answers_client(service: &Service) -> bool {
    service.udp || TcpStream::connect_timeout(&service.address, ANSWER_MAX).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    #[test]
    fn who_listens_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |udp| Service { address: listener.local_addr().unwrap(), udp };
        let services = [at(false), at(true)];
        let mut prober = Prober::start();
        let mut round = || {
            prober.ask(&services);
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                if let Some(answers) = prober.take() {
                    return answers;
                }
                thread::sleep(Duration::from_millis(1));
            }
            Vec::new()
        };
        assert_eq!(round(), services.map(|service| (service, true)));
        drop(listener);
        assert_eq!(round(), [(services[0], false), (services[1], true)]);
    }
}
