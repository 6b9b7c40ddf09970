//! Health checks of this host's services: a TCP connection to each, made by a thread of its own,
//! so that a server that hangs delays no heartbeat.
//!
//! The connection is closed at once. If it then still waits in the listener's accept queue, the
//! server has not accepted it, and no further connection is made until it has. So health checks
//! alone never fill that queue.

use holdfast_linux::diag::DiagSocket;
use holdfast_member::host_server::Answer;
use holdfast_member::spread::Service;
use holdfast_member::timing::host_server::ANSWER_MAX;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::mapped;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The handle on the thread; it checks one list of services at a time.
pub(super) struct Prober {
    questions: Sender<Vec<Service>>,
    answers: Receiver<Vec<(Service, Answer)>>,
    asked: bool,
}

impl Prober {
    pub fn start() -> Self {
        let (questions, asked) = channel::<Vec<Service>>();
        let (answer, answers) = channel();
        // The thread ends with the channel, when the daemon does.
        thread::spawn(move || {
            let mut clients = Clients::open();
            for services in asked {
                if answer.send(clients.ask_all(services)).is_err() {
                    return;
                }
            }
        });
        Self { questions, answers, asked: false }
    }

    /// Starts a round of checks unless one is under way.
    pub fn ask(&mut self, services: &[Service]) {
        if !self.asked {
            self.asked = self.questions.send(services.to_vec()).is_ok();
        }
    }

    /// The results of a round that has ended since the last call.
    pub fn take(&mut self) -> Option<Vec<(Service, Answer)>> {
        let verdicts = self.answers.try_recv().ok()?;
        self.asked = false;
        Some(verdicts)
    }
}

/// The last health-check connection to each service.
struct Clients {
    /// `None` if the kernel refuses: then a connection that is established is good enough.
    diag: Option<DiagSocket>,
    last: BTreeMap<Service, Client>,
}

struct Client {
    address: SocketAddr,
    /// The connections in the accept queue when it was last read.
    queue: BTreeSet<ConnKey>,
}

impl Clients {
    fn open() -> Self {
        let diag = DiagSocket::open().inspect_err(|error| tracing::warn!("{error}"));
        Self { diag: diag.ok(), last: BTreeMap::new() }
    }

    fn ask_all(&mut self, services: Vec<Service>) -> Vec<(Service, Answer)> {
        self.last.retain(|service, _| services.contains(service));
        services.into_iter().map(|service| (service, self.ask(&service))).collect()
    }

    /// Checks one service. A UDP server counts as serving when it is bound, since nobody knows
    /// what it would answer to.
    fn ask(&mut self, service: &Service) -> Answer {
        if service.udp {
            return Answer::Served;
        }
        if let Some(answer) = self.queued(service) {
            return answer;
        }
        let connected = TcpStream::connect_timeout(&service.address, ANSWER_MAX);
        let Ok(address) = connected.and_then(|stream| stream.local_addr()) else {
            return Answer::Refused;
        };
        self.last.insert(*service, Client { address, queue: BTreeSet::new() });
        Answer::Served
    }

    /// The result for a service that has not accepted the last connection yet; `None`: it has,
    /// or there was none. `moved`: the server has accepted others since the last round.
    fn queued(&mut self, service: &Service) -> Option<Answer> {
        let (client, diag) = (self.last.get_mut(service)?, self.diag.as_mut()?);
        let (address, port) = (mapped(service.address.ip()), service.address.port());
        let key = ConnKey {
            server: address,
            client: mapped(client.address.ip()),
            server_port: port,
            client_port: client.address.port(),
        };
        // If the kernel does not answer, the connection counts as accepted.
        if !diag.is_queued(&key).unwrap_or(false) {
            self.last.remove(service);
            return None;
        }
        let queue: BTreeSet<ConnKey> = diag.queued(address, port).ok()?.into_iter().collect();
        let moved = !client.queue.is_subset(&queue);
        client.queue = queue;
        Some(Answer::Queued { moved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    fn at(listener: &TcpListener, udp: bool) -> Service {
        Service { address: listener.local_addr().unwrap(), udp }
    }

    #[test]
    fn who_listens_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let services = [at(&listener, false), at(&listener, true)];
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
        assert_eq!(round(), services.map(|service| (service, Answer::Served)));
        drop(listener);
        assert_eq!(round(), [(services[0], Answer::Refused), (services[1], Answer::Served)]);
    }

    #[test]
    fn who_does_not_accept_is_not_asked_again_until_it_does() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(bound).unwrap();
            let service = at(&listener, false);
            let mut clients = Clients::open();
            let other = TcpStream::connect(service.address).unwrap();
            let queued = |moved| Answer::Queued { moved };
            assert_eq!(clients.ask(&service), Answer::Served);
            assert_eq!(clients.ask(&service), queued(false));
            let _late = TcpStream::connect(service.address).unwrap();
            assert_eq!(clients.ask(&service), queued(false), "who comes does not move it");
            let accepted = listener.accept().unwrap();
            assert_eq!(accepted.1, other.local_addr().unwrap());
            assert_eq!(clients.ask(&service), queued(true));
            assert_eq!(clients.ask(&service), queued(false));
            drop(listener.accept().unwrap());
            assert_eq!(clients.ask(&service), Answer::Served, "its own is accepted");
            let diag = clients.diag.as_mut().unwrap();
            let queue = diag.queued(mapped(service.address.ip()), service.address.port());
            assert_eq!(queue.unwrap().len(), 2, "the late one, and another of its own");
        }
    }
}
