use super::*;

/// The listeners of a host, and a channel to nobody.
#[derive(Default)]
struct Bench {
    now: Nanos,
    /// Duration of a look at the listeners.
    look_takes: Nanos,
    /// Sockets that listen; `None`: the kernel does not tell.
    sockets: Option<Vec<Service>>,
    /// Binds not reported yet.
    binds: usize,
    asked: Vec<Vec<Service>>,
    /// Services that listen and do not answer, and whose queues do not move.
    deaf: Vec<Service>,
    hangs: Vec<Service>,
    answers: Option<Vec<(Service, Answer)>>,
    looks: Vec<u64>,
    said: Vec<String>,
    /// The edge that each of these was said to.
    to: Vec<usize>,
    lines: Vec<String>,
}

impl ListenerHost for Bench {
    fn now(&self) -> Nanos {
        self.now
    }
    fn send(&mut self, edge: usize, message: &Message<'_>) {
        self.to.push(edge);
        self.said.push(match message {
            Message::Hello { group, member, .. } => format!("hello {member} of {group}"),
            Message::Beat { number, echo, .. } => format!("beat {number} {echo}"),
            Message::Announce { weight, layer2, tunnels, services } => {
                let names: Vec<String> =
                    services.iter().map(|it| Service::from(it).to_string()).collect();
                format!("{weight} {layer2} {} {}", tunnels.len(), names.join(" "))
            }
            other => format!("{other:?}"),
        });
    }
    fn listening(&mut self) -> Option<Vec<Waiting>> {
        self.looks.push(self.now.as_ms());
        self.now = self.now.plus(self.look_takes);
        let waiting = |service: &Service| Waiting {
            address: service.address.ip(),
            port: service.address.port(),
            udp: service.udp,
        };
        self.sockets.as_ref().map(|sockets| sockets.iter().map(waiting).collect())
    }
    fn take_bind(&mut self) -> bool {
        std::mem::take(&mut self.binds) > 0
    }
    fn ask(&mut self, services: &[Service]) {
        self.asked.push(services.to_vec());
        let answer = |service: &Service| match service {
            it if self.deaf.contains(it) => (*it, Answer::Refused),
            it if self.hangs.contains(it) => (*it, Answer::Queued { moved: false }),
            it => (*it, Answer::Served),
        };
        self.answers = Some(services.iter().map(answer).collect());
    }
    fn answers(&mut self) -> Option<Vec<(Service, Answer)>> {
        self.answers.take()
    }
    fn note(&mut self, what: &'static str, words: String) {
        self.lines.push(format!("{what}: {words}"));
    }
}

struct Bed {
    machine: HostServer,
    bench: Bench,
}

fn service(port: u16) -> Service {
    Service { address: ([10, 9, 0, 100], port).into(), udp: false }
}

impl Bed {
    fn new() -> Self {
        let setup = Setup {
            group: "web".to_owned(),
            name: "a".to_owned(),
            edges: vec!["edge".to_owned()],
            weight: 50,
            layer2: false,
            tunnels: vec![IpAddr::from([10, 9, 0, 2])],
            addresses: vec![IpAddr::from([10, 9, 0, 100])],
            services: None,
        };
        let bench = Bench { sockets: Some(Vec::new()), ..Bench::default() };
        Self { machine: HostServer::new(setup, Nanos(0)), bench }
    }

    /// Takes turns when they are due, until `ms` milliseconds since the beginning.
    fn run_until(&mut self, ms: u64) {
        let until = Nanos::from_ms(ms);
        while self.machine.next_deadline() <= until {
            self.bench.now = self.bench.now.max(self.machine.next_deadline());
            self.machine.handle_timeout(self.bench.now, &mut self.bench);
        }
        self.bench.now = self.bench.now.max(until);
    }

    /// A server binds, and listens after `listens_after` milliseconds.
    fn bind(&mut self, port: u16, listens_after: u64) {
        self.bench.binds += 1;
        self.machine.handle_bind(self.bench.now, &mut self.bench);
        self.run_until(self.bench.now.as_ms() + listens_after);
        self.bench.sockets.get_or_insert_default().push(service(port));
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.bench.said)
    }

    fn looks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.bench.looks)
    }
}

#[test]
fn the_edge_hears_who_it_is_and_what_it_serves_whenever_the_channel_opens() {
    let mut bed = Bed::new();
    bed.machine.handle_opened(0, &mut bed.bench);
    assert_eq!(bed.said(), ["hello a of web", "50 false 1 "]);
    bed.bench.sockets = Some(vec![service(80), service(443)]);
    bed.run_until(200);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:80 10.9.0.100:443"]);
    bed.run_until(1000);
    assert_eq!(bed.said(), [""; 0], "said once");
    bed.machine.handle_closed(0, "it is gone", &mut bed.bench);
    bed.bench.sockets = Some(vec![service(443)]);
    bed.run_until(1200);
    bed.said();
    bed.machine.handle_opened(0, &mut bed.bench);
    assert_eq!(bed.said(), ["hello a of web", "50 false 1 10.9.0.100:443"]);
    let expected = [
        "joined: the edge",
        "announced: 10.9.0.100:80, 10.9.0.100:443",
        "left: the edge: it is gone",
        "announced: 10.9.0.100:443",
        "joined: the edge",
    ];
    assert_eq!(bed.bench.lines, expected);
}

#[test]
fn a_heartbeat_is_answered_and_a_refusal_is_told() {
    let mut bed = Bed::new();
    let mut heard = EdgeWords::default();
    for message in [
        Message::Beat { number: 6, echo: 0, executed: 0 },
        Message::Refused { reason: "not yours", again: false },
        Message::Ask,
        Message::Beat { number: 7, echo: 0, executed: 0 },
    ] {
        heard.take(&message);
    }
    bed.machine.handle_heard(0, heard, &mut bed.bench);
    assert_eq!(
        (bed.said(), &bed.bench.lines[..]),
        (vec!["beat 7 7".to_owned()], &["refused: not yours".to_owned()][..])
    );
    bed.machine.handle_heard(0, EdgeWords::default(), &mut bed.bench);
    assert_eq!((bed.said().len(), bed.bench.lines.len()), (0, 1));
    bed.bench.sockets = Some(vec![service(80)]);
    bed.run_until(900);
    let refusal = EdgeWords { refused: Some("not yours".to_owned()), ..EdgeWords::default() };
    bed.machine.handle_heard(0, refusal, &mut bed.bench);
    let shown = bed.machine.shown(&[true]);
    let reason = "the edge refuses this host server: not yours";
    assert_eq!((shown.protection, shown.reason.as_str()), (Protection::Waiting, reason));
    bed.machine.handle_opened(0, &mut bed.bench);
    assert_eq!(bed.machine.shown(&[true]), Shown::protected(), "it is told anew");
}

#[test]
fn a_listener_that_stops_answering_is_withdrawn_after_two_failures() {
    let mut bed = Bed::new();
    bed.bench.sockets = Some(vec![service(80), service(443)]);
    bed.run_until(900);
    bed.bench.deaf.push(service(80));
    bed.said();
    bed.run_until(1900);
    assert_eq!(bed.said(), [""; 0], "one failure is none");
    bed.run_until(2000);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:443"]);
    bed.bench.deaf.clear();
    bed.run_until(3000);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:80 10.9.0.100:443"]);
    // A newly bound service is announced before it was tested.
    bed.bench.deaf.push(service(80));
    bed.run_until(5200);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:443"]);
    bed.bench.sockets = Some(vec![service(443)]);
    bed.run_until(6100);
    bed.bench.sockets = Some(vec![service(80), service(443)]);
    bed.run_until(6400);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:80 10.9.0.100:443"]);
    assert!(bed.bench.asked.len() == 7, "once a second: {}", bed.bench.asked.len());
}

#[test]
fn a_server_that_hangs_is_withdrawn_until_it_goes_on() {
    let mut bed = Bed::new();
    bed.bench.sockets = Some(vec![service(80), service(443)]);
    bed.run_until(900);
    bed.bench.hangs.push(service(80));
    bed.said();
    bed.run_until(1900);
    assert_eq!(bed.said(), [""; 0], "once is not for long");
    bed.run_until(3000);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:443"]);
    bed.bench.hangs.clear();
    bed.run_until(4200);
    assert_eq!(bed.said(), ["50 false 1 10.9.0.100:80 10.9.0.100:443"]);
}

#[test]
fn a_bind_brings_looks_forward_for_a_while() {
    let mut bed = Bed::new();
    bed.run_until(450);
    assert_eq!(bed.looks(), [0, 200, 400]);
    bed.bind(80, 7);
    bed.run_until(460);
    assert_eq!((bed.machine.announced(), bed.machine.announced_at_bind()), (&[service(80)][..], 1));
    bed.run_until(800);
    assert_eq!(bed.looks(), [451, 452, 455, 460, 470, 500, 550, 750]);
    // A look that finds a socket whose bind is not reported yet follows a bind,
    // too.
    bed.bench.binds += 1;
    bed.bench.sockets = Some(vec![service(80), service(443)]);
    bed.run_until(950);
    assert_eq!(bed.machine.announced_at_bind(), 2);
    bed.looks();
    // A bind in between begins anew.
    bed.run_until(1200);
    bed.looks();
    bed.bind(81, 15);
    bed.bind(82, 20);
    let start = 1200;
    assert_eq!(bed.looks(), [1, 2, 5, 10, 16, 17, 20, 25, 35].map(|ms| start + ms));
    // A listener without a bind is found all the same, and not counted.
    bed.run_until(2000);
    bed.bench.sockets = Some(vec![service(90)]);
    bed.run_until(2300);
    assert_eq!((bed.machine.announced(), bed.machine.announced_at_bind()), (&[service(90)][..], 4));
}

#[test]
fn however_much_is_bound_there_is_time_for_other_work() {
    let mut bed = Bed::new();
    bed.bench.look_takes = Nanos::from_ms(10);
    for ms in 0..1000 {
        bed.bench.now = bed.bench.now.max(Nanos::from_ms(ms));
        bed.bench.binds += 1;
        bed.machine.handle_bind(bed.bench.now, &mut bed.bench);
        bed.run_until(ms);
    }
    let looked = bed.looks().len();
    assert!((15..=20).contains(&looked), "{looked} looks of 10 ms in a second");
}

#[test]
fn a_kernel_that_does_not_say_who_listens_changes_nothing() {
    let mut bed = Bed::new();
    bed.bench.sockets = Some(vec![service(80)]);
    bed.run_until(100);
    bed.bench.sockets = None;
    bed.said();
    bed.run_until(5000);
    assert_eq!((bed.said().len(), bed.machine.announced()), (0, &[service(80)][..]));
    assert!(bed.looks().len() > 20);
}

#[test]
fn it_shows_what_it_lacks() {
    let mut bed = Bed::new();
    let shown = |bed: &Bed, is_connected| {
        let Shown { protection, reason, .. } = bed.machine.shown(&[is_connected]);
        (protection, reason)
    };
    let nobody = "no server listens at an address of the group".to_owned();
    assert_eq!(shown(&bed, true), (Protection::Waiting, nobody));
    assert!(
        bed.machine.shown(&[true]).remedy.contains("services = ["),
        "[::]:80 is no such address"
    );
    bed.bench.sockets = Some(vec![service(80)]);
    bed.run_until(200);
    assert_eq!(shown(&bed, true), (Protection::Protected, String::new()));
    let edge = "the edge does not answer".to_owned();
    assert_eq!(shown(&bed, false), (Protection::Waiting, edge));
}

#[test]
fn all_of_several_edges_are_told_and_one_that_is_away_is_named() {
    let mut bed = Bed::new();
    bed.machine.setup.edges = vec!["e1".to_owned(), "e2".to_owned()];
    bed.machine.handle_opened(1, &mut bed.bench);
    bed.bench.sockets = Some(vec![service(80)]);
    bed.run_until(200);
    assert_eq!(bed.bench.to, [1, 1, 0, 1], "hello and all to one, news to both");
    assert_eq!(bed.bench.lines[0], "joined: the edge e2");
    let away = bed.machine.shown(&[false, true]);
    assert_eq!(away.protection, Protection::Unprotected);
    assert_eq!(away.reason, "the edge e1 does not answer");
    assert_eq!(bed.machine.shown(&[true, true]), Shown::protected());
    assert_eq!(bed.machine.shown(&[false, false]).protection, Protection::Waiting);
}
