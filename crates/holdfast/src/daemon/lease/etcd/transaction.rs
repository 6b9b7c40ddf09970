//! What etcd is asked, and what it answers, in its JSON: bytes are base64, 64-bit numbers are text
//! (etcd 3.4, `api_reference_v3`). Answers are untrusted: whatever is not as it should be is an
//! error.

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_cluster::arbiter::Record;
use holdfast_cluster::arbiter::stored::GroupState;
use serde_json::{Value, json};

/// The record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub record: Option<Record>,
    /// etcd's revision at which the key was last changed; 0 if there is none.
    changed: u64,
    /// Revision of etcd when it was read.
    pub revision: u64,
    /// Number of the cluster.
    pub cluster: u64,
}

/// The keys of a group, and what this member says of itself.
pub(super) struct Keys {
    group: String,
    members: [String; 2],
    /// Where the record is.
    record: String,
    /// Where this member's lives tell of themselves.
    alive: String,
    /// This life, as it is told there.
    life: String,
    /// A key that nobody reads.
    tried: String,
}

impl Keys {
    pub fn new(group: &str, members: [&str; 2], me: &str, life: u64) -> Self {
        let mut members = members.map(str::to_owned);
        members.sort();
        let key = |rest: &str| STANDARD.encode(format!("/holdfast/{group}/{rest}"));
        Self {
            group: group.to_owned(),
            members,
            record: key("record"),
            alive: key(&format!("alive/{me}")),
            tried: key("check"),
            life: STANDARD.encode(format!("{life:016x}")),
        }
    }

    /// Asks for the record, and puts this life in the place of another one that told of itself last.
    pub fn look(&self) -> Value {
        let Self { record, alive, life, .. } = self;
        let is_there = json!({"key": alive, "target": "VALUE", "result": "EQUAL", "value": life});
        let read =
            [json!({"request_range": {"key": record}}), json!({"request_range": {"key": alive}})];
        let put = json!({"request_put": {"key": alive, "value": life}});
        let [record, alive] = &read;
        // etcd keeps whatever was put until somebody compacts it.
        json!({"compare": [is_there], "success": read, "failure": [record, alive, put]})
    }

    /// Asks to write what nobody reads.
    pub fn try_out(&self) -> Value {
        json!({"key": self.tried, "value": STANDARD.encode("holdfast check")})
    }

    /// Asks for nothing that matters.
    pub fn touch(&self) -> Value {
        json!({"key": self.record, "count_only": true, "serializable": true})
    }

    /// Asks to make the record `next`, if it is as it was seen.
    pub fn swap(&self, seen: &Seen, next: &Record) -> Value {
        let state = GroupState {
            group: self.group.clone(),
            members: self.members.clone(),
            lineage: super::LINEAGE,
            record: Some(next.clone()),
        };
        let value = STANDARD.encode(state.to_string());
        let key = &self.record;
        // A key that is not there has never been changed: its revision is 0.
        let is_as_seen = json!({
            "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": seen.changed.to_string(),
        });
        json!({
            "compare": [is_as_seen],
            "success": [{"request_put": {"key": key, "value": value}}],
            "failure": [{"request_range": {"key": key}}],
        })
    }

    /// The record after [`Keys::look`], and whether another life has told of itself meanwhile.
    pub fn looked(&self, answer: &Value) -> Result<(Seen, bool)> {
        let seen = self.seen(answer, &answer["responses"][0])?;
        let before = pair(&answer["responses"][1])?;
        let others = before.is_some_and(|pair| pair["value"] != self.life.as_str());
        Ok((seen, others))
    }

    /// The record after [`Keys::swap`].
    pub fn swapped(&self, answer: &Value, next: &Record) -> Result<Seen> {
        if answer["succeeded"] != Value::Bool(true) {
            return self.seen(answer, &answer["responses"][0]);
        }
        let (revision, cluster) = header(answer)?;
        Ok(Seen { record: Some(next.clone()), changed: revision, revision, cluster })
    }

    fn seen(&self, answer: &Value, response: &Value) -> Result<Seen> {
        let (revision, cluster) = header(answer)?;
        let Some(pair) = pair(response)? else {
            return Ok(Seen { record: None, changed: 0, revision, cluster });
        };
        let changed = number(&pair["mod_revision"]).context("etcd tells no revision of the key")?;
        let text = pair["value"].as_str().context("etcd tells no value of the key")?;
        let bytes = STANDARD.decode(text).context("the value that etcd tells")?;
        let state = GroupState::parse(&bytes).context("the group's record in etcd")?;
        if state.group != self.group || state.members != self.members {
            bail!(
                "the record in etcd is of a group `{}` of {} and {}: two groups with one name share \
                 this etcd",
                state.group,
                state.members[0],
                state.members[1]
            );
        }
        Ok(Seen { record: state.record, changed, revision, cluster })
    }
}

/// Revision and cluster of an answer.
fn header(answer: &Value) -> Result<(u64, u64)> {
    let header = &answer["header"];
    number(&header["revision"])
        .zip(number(&header["cluster_id"]))
        .context("this is no answer of an etcd")
}

/// The key and value in a response to a range of one key.
fn pair(response: &Value) -> Result<Option<&Value>> {
    let range = response.get("response_range").context("etcd leaves out what it was asked for")?;
    Ok(range["kvs"].get(0))
}

/// A 64-bit number, which JSON's numbers cannot hold.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_cluster::arbiter::{Mode, Owner};

    fn keys() -> Keys {
        Keys::new("web", ["b", "a"], "b", 7)
    }

    fn record() -> Record {
        Record { epoch: 4, owner: Owner { name: "a".to_owned(), life: 9 }, mode: Mode::Pair }
    }

    fn stored(keys: &Keys, record: &Record) -> Value {
        let seen = Seen { record: None, changed: 0, revision: 1, cluster: 1 };
        keys.swap(&seen, record)["success"][0]["request_put"]["value"].clone()
    }

    fn answer(record: &Value, alive: &Value) -> Value {
        let range = |value: &Value| match value {
            Value::Null => json!({"response_range": {}}),
            value => json!({"response_range": {"kvs": [{"value": value, "mod_revision": "12"}]}}),
        };
        json!({
            "header": {"revision": "20", "cluster_id": "14841639068965178418"},
            "succeeded": true,
            "responses": [range(record), range(alive), {"response_put": {}}],
        })
    }

    #[test]
    fn what_was_swapped_is_read_again() {
        let keys = keys();
        let (seen, others) = keys.looked(&answer(&Value::Null, &Value::Null)).unwrap();
        assert_eq!((&seen.record, seen.changed, others), (&None, 0, false));
        let value = stored(&keys, &record());
        let (seen, _) = keys.looked(&answer(&value, &Value::Null)).unwrap();
        assert_eq!((seen.record.as_ref(), seen.changed), (Some(&record()), 12));
        let asked = keys.swap(&seen, &record());
        assert_eq!(asked["compare"][0]["mod_revision"], "12");
        let won = keys.swapped(&answer(&Value::Null, &Value::Null), &record()).unwrap();
        assert_eq!((won.record, won.changed), (Some(record()), 20));
        let mut lost = answer(&value, &Value::Null);
        lost["succeeded"] = Value::Null;
        let next = Record { epoch: 5, ..record() };
        assert_eq!(keys.swapped(&lost, &next).unwrap().record, Some(record()));
    }

    #[test]
    fn another_life_is_noticed() {
        let keys = keys();
        let others = |life: &str| {
            let alive = Value::from(STANDARD.encode(life));
            keys.looked(&answer(&Value::Null, &alive)).unwrap().1
        };
        assert!(!others("0000000000000007"));
        assert!(others("0000000000000008"));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let keys = keys();
        let good = answer(&stored(&keys, &record()), &Value::Null);
        assert!(keys.looked(&good).is_ok());
        let other = stored(&Keys::new("mail", ["a", "b"], "a", 1), &record());
        let cut: Vec<Value> = vec![
            Value::Null,
            json!({}),
            json!({"header": {}}),
            json!({"header": good["header"]}),
            answer(&Value::from("!"), &Value::Null),
            answer(&Value::from(STANDARD.encode("web")), &Value::Null),
            answer(&Value::from(7), &Value::Null),
            answer(&other, &Value::Null),
        ];
        for wrong in cut {
            assert!(keys.looked(&wrong).is_err(), "{wrong}");
        }
        let mut unnumbered = good.clone();
        unnumbered["responses"][0]["response_range"]["kvs"][0]["mod_revision"] = 12.into();
        assert!(keys.looked(&unnumbered).is_err());
        assert!(keys.swapped(&json!({"succeeded": true}), &record()).is_err());
    }
}
