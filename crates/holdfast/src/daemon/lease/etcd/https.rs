//! Requests to one address of etcd, over a connection that stays open; with TLS, a certificate of
//! the member's own, and a user, where the file names them.

use crate::config::Etcd;
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{
    Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem,
};

/// Time to connect and to agree on keys; a try may end before, and the next one finds the
/// connection.
const CONNECT_OUT: Duration = Duration::from_secs(1);
/// Time for an answer: a member of etcd without a leader gives none.
const ANSWER_OUT: Duration = Duration::from_millis(100);
/// Time for the answer of etcd to a password, which it makes slow on purpose.
const LOGIN_OUT: Duration = Duration::from_secs(2);
/// Time for which an unused connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Longest answer, bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Https {
    agent: Agent,
    url: String,
    user: Option<(String, String)>,
    /// What etcd has given for the password.
    token: Option<String>,
}

impl Https {
    /// # Errors
    /// When a file cannot be read, or has not what it should.
    pub fn new(etcd: &Etcd, url: &str) -> Result<Self> {
        let mut tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        if let Some(file) = &etcd.ca_file {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(file)?));
        }
        if let Some((certificate, key)) = &etcd.identity {
            let client = ClientCert::new_with_certs(&certificates(certificate)?, private_key(key)?);
            tls = tls.client_cert(Some(client));
        }
        let user = etcd.user.as_ref().map(|(name, file)| {
            read(file).map(|password| (name.clone(), password.trim_end().to_owned()))
        });
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .max_idle_age(IDLE_MAX)
            .timeout_resolve(Some(CONNECT_OUT))
            .timeout_connect(Some(CONNECT_OUT))
            .timeout_send_request(Some(CONNECT_OUT))
            .build()
            .new_agent();
        Ok(Self { agent, url: url.to_owned(), user: user.transpose()?, token: None })
    }

    /// Asks, and says the password first where that is needed.
    ///
    /// # Errors
    /// When there is no answer in time, or a refusal.
    pub fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let mut refused = String::new();
        for _ in 0..2 {
            self.log_in()?;
            let (status, answer) = self.send(path, body, ANSWER_OUT)?;
            if status == 200 {
                return Ok(answer);
            }
            // A token runs out, or users have changed since: releases say so in different words.
            refused = refusal(status, &answer);
            if self.token.take().is_none() {
                bail!("{} refuses: {refused}", self.url);
            }
        }
        Err(anyhow!("{} refuses who has just logged in: {refused}", self.url))
    }

    fn log_in(&mut self) -> Result<()> {
        let Some((name, password)) = self.user.as_ref().filter(|_| self.token.is_none()) else {
            return Ok(());
        };
        let body = json!({"name": name, "password": password});
        let (status, answer) = self.send("auth/authenticate", &body, LOGIN_OUT)?;
        let token = answer["token"].as_str().filter(|_| status == 200);
        let token = token.map(str::to_owned).with_context(|| {
            format!("{} refuses the user `{name}`: {}", self.url, refusal(status, &answer))
        })?;
        self.token = Some(token);
        Ok(())
    }

    fn send(&self, path: &str, body: &Value, out: Duration) -> Result<(u16, Value)> {
        let mut request = self
            .agent
            .post(format!("{}/v3/{path}", self.url))
            .config()
            .timeout_recv_response(Some(out))
            .timeout_recv_body(Some(out))
            .build()
            .header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let sent = request.send(body.to_string().as_bytes());
        let mut response = sent.with_context(|| self.url.clone())?;
        let status = response.status().as_u16();
        let limited = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let bytes = limited.read_to_vec().with_context(|| self.url.clone())?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }
}

/// etcd's own words, where it has some.
fn refusal(status: u16, answer: &Value) -> String {
    match answer["message"].as_str().or(answer["error"].as_str()) {
        Some(words) => words.chars().take(200).collect(),
        None => format!("HTTP status {status}"),
    }
}

fn read(file: &Path) -> Result<String> {
    let shown = || file.display().to_string();
    let found = fs::metadata(file).with_context(shown)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        bail!("{} is no file of at most {FILE_BYTES_MAX} bytes", file.display());
    }
    fs::read_to_string(file).with_context(shown)
}

fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>> {
    let text = read(file)?;
    let items = parse_pem(text.as_bytes()).filter_map(|item| match item {
        Ok(PemItem::Certificate(it)) => Some(it),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    if found.is_empty() {
        bail!("{} has no certificate in PEM", file.display());
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKey<'static>> {
    PrivateKey::from_pem(read(file)?.as_bytes())
        .with_context(|| format!("{} has no private key in PEM", file.display()))
}
