//! Public keys of hosts (`public_keys`), the same in files of every kind.

use super::error::Findings;
use crate::key::{KEYS_MAX, PublicKey};
use toml::Spanned;

/// A host's public keys as they are written.
pub(super) type RawKeys = Option<Spanned<Vec<Spanned<String>>>>;

/// Remedy for a text that is no public key.
const HOW: &str = "write what `holdfast key pub FILE` prints of that host's key file";

/// Checks one host's `public_keys`; empty: it has none.
pub(super) fn check_keys(findings: &mut Findings, raw: RawKeys) -> Vec<PublicKey> {
    let Some(raw) = raw else { return Vec::new() };
    let count = raw.get_ref().len();
    if count == 0 || count > KEYS_MAX {
        let message = format!("public_keys has {count} entries");
        let remedy = "name the one that the host is spoken to with, and the one before or after it \
                      while it is being changed";
        findings.add(raw.span(), message, remedy);
    }
    let mut keys: Vec<PublicKey> = Vec::new();
    for written in raw.get_ref() {
        match written.get_ref().parse() {
            Ok(key) if keys.contains(&key) => {
                findings.add(written.span(), format!("{key} is listed twice"), "remove one");
            }
            Ok(key) => keys.push(key),
            // What is written may be a secret, and is not repeated.
            Err(error) => findings.add(written.span(), format!("this {error}"), HOW),
        }
    }
    keys
}

/// Checks the keys of all roles with each other: where one has keys of its own, all must.
pub(super) fn check_all(findings: &mut Findings, roles: &[(&str, &[PublicKey])]) {
    let names = |has: bool| {
        let those = roles.iter().filter(|(_, keys)| keys.is_empty() != has);
        those.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>()
    };
    let (with, without) = (names(true), names(false));
    if !with.is_empty() && !without.is_empty() {
        let have = |names: &[String]| if names.len() == 1 { "has" } else { "have" };
        let message = format!(
            "{} {} no public_keys, and {} {}",
            without.join(", "),
            have(&without),
            with.join(", "),
            have(&with)
        );
        let remedy = format!(
            "{HOW}, for each of them; or remove public_keys everywhere, and give all hosts the same \
             key_file"
        );
        findings.add_at_key(message, remedy);
    }
    for (index, (name, keys)) in roles.iter().enumerate() {
        for (other, theirs) in &roles[..index] {
            if let Some(key) = keys.iter().find(|key| theirs.contains(key)) {
                let message = format!("`{other}` and `{name}` have the same public key {key}");
                findings
                    .add_at_key(message, "each host has a key file of its own: holdfast key gen");
            }
        }
    }
}
