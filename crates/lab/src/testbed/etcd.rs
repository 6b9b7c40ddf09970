//! An etcd of three members, as one may run it: TLS in all directions, certificates of the clients,
//! a user who may use one prefix.

use super::Host;
use crate::command::{descendants_running, shell, wait_for};
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Number of its members.
const MEMBERS: u16 = 3;
/// Port of the first one for its clients; the next port is for the other members.
const FIRST_PORT: u16 = 2379;
/// Distance between the ports of two members.
const PORT_STEP: u16 = 10;
/// Longest time until it answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// What a user of it needs: certificates of the authority and its own, its key and password.
const FILES: [&str; 4] = ["ca.pem", "client.pem", "client.key", "password"];

/// Authority, certificates and keys, valid for two days.
const CERTIFICATES: &str = "
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj '/CN=test ca' -keyout ca.key -out ca.pem 2>/dev/null
sign() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj \"/O=$1\" \
        -keyout $1.key -out $1.csr 2>/dev/null
    printf \"$2\" > $1.ext
    openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
        -extfile $1.ext -out $1.pem 2>/dev/null
}
sign server \"subjectAltName=IP:$ADDRESS\\nextendedKeyUsage=serverAuth,clientAuth\\n\"
sign client 'extendedKeyUsage=clientAuth\\n'
echo pair-secret > password
";

/// The user who may use the prefix of the groups, and then nobody without a name.
const USERS: &str = "
printf 'root-secret\\n' | ctl user add root --interactive=false
ctl role add holdfast
ctl role grant-permission holdfast --prefix=true readwrite /holdfast/
ctl user add pair --interactive=false < password
ctl user grant-role pair holdfast
ctl user grant-role root root
ctl auth enable
";

/// A running etcd; it ends with its value.
pub struct EtcdCluster {
    members: Vec<Child>,
    address: String,
    /// Its folder as seen from outside, and as its host sees it.
    folder: [PathBuf; 2],
}

impl EtcdCluster {
    /// Starts it on a host with this address, and waits until it answers.
    ///
    /// # Errors
    /// When a program fails, or it does not answer in time.
    pub fn start(host: &Host, address: &str) -> Result<Self> {
        let folder = [host.outside().join("etcd"), host.inside().join("etcd")];
        fs::create_dir_all(&folder[0])?;
        let outside = folder[0].display();
        shell(&format!("cd '{outside}'; ADDRESS={address}\n{CERTIFICATES}"))?;
        let mut cluster = Self { members: Vec::new(), address: address.to_owned(), folder };
        for index in 0..MEMBERS {
            let member = cluster.spawn(host, index)?;
            cluster.members.push(member);
        }
        wait_for("an etcd that answers", START_LIMIT, || {
            cluster.ctl(host, "ctl endpoint health").ok()
        })?;
        cluster.ctl(host, USERS)?;
        Ok(cluster)
    }

    fn url(&self, index: u16, port: u16) -> String {
        format!("https://{}:{}", self.address, FIRST_PORT + index * PORT_STEP + port)
    }

    fn spawn(&self, host: &Host, index: u16) -> Result<Child> {
        let [outside, inside] = &self.folder;
        let log = outside.join(format!("{index}.log"));
        let log = fs::File::options().create(true).append(true).open(log)?;
        let name = |index: u16| format!("e{index}");
        let peers = (0..MEMBERS).map(|it| format!("{}={}", name(it), self.url(it, 1)));
        let peers: Vec<String> = peers.collect();
        let [client, peer] = [self.url(index, 0), self.url(index, 1)];
        let file = |file: &str| inside.join(file).display().to_string();
        let mut command = host.command("etcd");
        command.args(["--name", &name(index), "--data-dir", &file(&format!("data-{index}"))]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--log-level", "warn"]);
        for side in ["", "peer-"] {
            command.args([format!("--{side}cert-file"), file("server.pem")]);
            command.args([format!("--{side}key-file"), file("server.key")]);
            command.args([format!("--{side}trusted-ca-file"), file("ca.pem")]);
            command.arg(format!("--{side}client-cert-auth"));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command
            .spawn()
            .context("cannot start etcd; remedy: apt-get install etcd-server etcd-client")
    }

    /// Runs a script on the host in which `ctl` is `etcdctl`, as root, for all members.
    fn ctl(&self, host: &Host, script: &str) -> Result<String> {
        let urls: Vec<String> = (0..MEMBERS).map(|it| self.url(it, 0)).collect();
        shell(&format!(
            "cd '{}'; holder={}\nctl() {{ nsenter -t $holder -n etcdctl --endpoints {} --cacert \
             ca.pem --cert client.pem --key client.key \"$@\"; }}\nexport ETCDCTL_API=3\n{script}",
            self.folder[0].display(),
            host.holder(),
            urls.join(","),
        ))
    }

    /// Copies what a user of it needs to a host's folder.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn give(&self, folder: &Path) -> Result<()> {
        for file in FILES {
            fs::copy(self.folder[0].join(file), folder.join(format!("etcd-{file}")))?;
        }
        Ok(())
    }

    /// The lines of `[arbiter]` that name it, with files in this folder.
    #[must_use]
    pub fn lines(&self, folder: &Path) -> String {
        let urls: Vec<String> = (0..MEMBERS).map(|it| self.url(it, 0)).collect();
        let file = |file: &str| folder.join(format!("etcd-{file}"));
        format!(
            "etcd = {urls:?}\netcd_ca_file = {:?}\netcd_cert_file = {:?}\netcd_key_file = {:?}\n\
             etcd_user = \"pair\"\netcd_password_file = {:?}\n",
            file("ca.pem"),
            file("client.pem"),
            file("client.key"),
            file("password"),
        )
    }

    /// Sends a signal to one of its members, or to all.
    ///
    /// # Errors
    /// When one does not run.
    pub fn signal(&self, index: Option<usize>, signal: Signal) -> Result<()> {
        let members = self.members.iter().enumerate();
        for (_, member) in members.filter(|(at, _)| index.is_none_or(|index| index == *at)) {
            let pids = descendants_running(member.id(), Path::new("/usr/bin/etcd"));
            let pid = pids.last().copied().context("a member of etcd does not run")?;
            let pid = Pid::from_raw(pid.cast_signed()).context("no process number")?;
            kill_process(pid, signal).context("cannot send a signal")?;
        }
        Ok(())
    }

    /// The member that leads.
    ///
    /// # Errors
    /// When none does.
    pub fn leader(&self, host: &Host) -> Result<usize> {
        let shown = self.ctl(host, "ctl endpoint status --write-out=json")?;
        let all: serde_json::Value = serde_json::from_str(&shown)?;
        let leads = |it: &serde_json::Value| {
            it["Status"]["leader"] == it["Status"]["header"]["member_id"]
                && !it["Status"]["leader"].is_null()
        };
        let leader = all.as_array().into_iter().flatten().find(|it| leads(it));
        let url = leader.and_then(|it| it["Endpoint"].as_str()).context("etcd has no leader")?;
        (0..MEMBERS).position(|it| self.url(it, 0) == url).context("it leads at no address of ours")
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        let _ = self.signal(None, Signal::KILL);
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
        // Each of its members keeps a log of 64 MB ready, and the folder may lie in memory.
        let _ = fs::remove_dir_all(&self.folder[0]);
    }
}
