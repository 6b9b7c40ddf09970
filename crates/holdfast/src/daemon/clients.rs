//! Whether packets can come to an edge through the interfaces that its file names.

use holdfast_linux::link::{Carries, carries};

/// Names of the interfaces that carry nothing.
pub fn deaf(interfaces: &[String]) -> Vec<String> {
    let is_deaf = |name: &&String| !matches!(carries(name), Ok(Carries::Yes));
    interfaces.iter().filter(is_deaf).cloned().collect()
}

/// Reason and remedy if none of the interfaces works, which `which` names. Clients can still come
/// while one of several does, so that alone is no trouble.
pub fn unreached(which: &str, all: &[String], deaf: &[String]) -> Option<(String, String)> {
    (all.len() == deaf.len()).then(|| {
        (
            format!("no {which} interface of the edge is up: {}", deaf.join(", ")),
            format!(
                "ip link set {} up, or look at what is at its other end",
                deaf.join(" up; ip link set ")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_no_client_reaches_says_so() {
        let [one, two] = ["ec", "ed"].map(str::to_owned);
        let both = [one.clone(), two.clone()];
        let unreached = |deaf| unreached("clients'", &both, deaf);
        assert_eq!(unreached(&[]), None);
        assert_eq!(unreached(std::slice::from_ref(&two)), None, "they come by the other");
        let (reason, remedy) = unreached(&both).expect("nobody comes");
        assert_eq!(reason, "no clients' interface of the edge is up: ec, ed");
        assert!(remedy.starts_with("ip link set ec up; ip link set ed up"), "{remedy}");
    }

    #[test]
    fn what_is_not_there_carries_nothing() {
        assert_eq!(deaf(&["lo".to_owned(), "nobody7".to_owned()]), ["nobody7"]);
    }
}
