//! Which nodes there are, and which to ask first.

use super::error::Error;
use super::exchange::Reply;
use crate::clock::Stopwatch;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Nodes named at once.
const NODES_MAX: usize = 64;

/// How long a node that takes no connections is not believed to lead, whoever says so, and is asked after all others: its address
/// may be one that cannot be reached from here.
const SHUNNED_FOR: Duration = Duration::from_secs(5);

/// The nodes of a cluster as a client knows them.
#[derive(Debug)]
pub(super) struct Nodes {
    configured: Vec<String>,
    known: Mutex<Known>,
    /// What the times count from.
    began: Stopwatch,
}

#[derive(Debug, Default)]
struct Known {
    /// Where the leader was last seen. A hint: any node answers, the leader just answers without a hop.
    leader: Option<String>,
    /// Nodes that took no connection, and until when that counts.
    shunned: HashMap<String, Duration>,
}

impl Nodes {
    pub(super) fn new(urls: &[String]) -> Result<Self, Error> {
        if urls.is_empty() || urls.len() > NODES_MAX {
            return Err(Error::Misuse(format!("a client needs 1 to {NODES_MAX} nodes, these are {}", urls.len())));
        }
        let configured = urls.iter().map(|url| base(url)).collect::<Result<_, _>>()?;
        Ok(Self { configured, known: Mutex::default(), began: Stopwatch::start() })
    }

    pub(super) fn configured(&self) -> &[String] {
        &self.configured
    }

    /// The leader if it is known, then all others in the order they were named, those that took no connection last.
    pub(super) fn in_turn(&self) -> Vec<String> {
        let (known, now) = (self.known(), self.began.elapsed());
        let others = self.configured.iter().filter(|node| Some(*node) != known.leader.as_ref()).cloned();
        let (last, first): (Vec<_>, Vec<_>) = others.partition(|node| known.is_shunned(node, now));
        known.leader.iter().cloned().chain(first).chain(last).collect()
    }

    /// A follower names the leader on every answer; a decision without that header came from the leader itself; a node
    /// that does not answer is not asked first again.
    pub(super) fn learn(&self, node: &str, reply: &Reply) {
        self.learn_at(node, reply, self.began.elapsed());
    }

    fn learn_at(&self, node: &str, reply: &Reply, now: Duration) {
        let mut known = self.known();
        if matches!(reply, Reply::Answered { .. }) {
            known.shunned.remove(node);
        }
        match reply {
            Reply::Answered { leader: Some(named), .. } => {
                if let Ok(named) = base(named)
                    && !known.is_shunned(&named, now)
                {
                    known.leader = Some(named);
                }
            }
            Reply::Answered { status: 200 | 429, .. } => known.leader = Some(node.to_owned()),
            Reply::Answered { .. } | Reply::NotSent(_) | Reply::Lost(_) => {
                if known.leader.as_deref() == Some(node) {
                    known.leader = None;
                }
            }
        }
        if matches!(reply, Reply::NotSent(_)) {
            known.shunned.retain(|_, until| *until > now);
            if known.shunned.len() < NODES_MAX {
                known.shunned.insert(node.to_owned(), now.saturating_add(SHUNNED_FOR));
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A hint cannot be left half-written.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_shunned(&self, node: &str, now: Duration) -> bool {
        self.shunned.get(node).is_some_and(|until| now < *until)
    }
}

/// The URL without what a person may have put at its end.
fn base(url: &str) -> Result<String, Error> {
    let wrong =
        |why: &dyn std::fmt::Display| Error::Misuse(format!("{url:?} is no URL of a node ({why}): http://host:port"));
    let parsed = reqwest::Url::parse(url.trim()).map_err(|error| wrong(&error))?;
    if parsed.scheme() != "http" || parsed.host_str().is_none() {
        return Err(wrong(&"it has to begin with http://"));
    }
    if parsed.path() != "/" || parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(wrong(&"nothing comes behind the port"));
    }
    Ok(parsed.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, leader: Option<&str>) -> Reply {
        Reply::Answered { status, body: Vec::new(), leader: leader.map(str::to_owned) }
    }

    #[test]
    fn the_leader_is_asked_first_and_forgotten_when_it_is_gone() {
        let nodes = Nodes::new(&["http://a:1/".to_owned(), "http://b:2".to_owned()]).unwrap();
        assert_eq!(nodes.in_turn(), ["http://a:1", "http://b:2"]);
        nodes.learn("http://a:1", &answered(200, Some("http://b:2")));
        assert_eq!(nodes.in_turn(), ["http://b:2", "http://a:1"]);
        nodes.learn("http://b:2", &Reply::Lost(String::new()));
        assert_eq!(nodes.in_turn(), ["http://a:1", "http://b:2"]);
        nodes.learn("http://a:1", &Reply::NotSent(String::new()));
        assert_eq!(nodes.in_turn(), ["http://b:2", "http://a:1"], "who takes no connection comes last");
        nodes.learn("http://a:1", &answered(200, Some("http://c:3")));
        assert_eq!(nodes.in_turn(), ["http://c:3", "http://a:1", "http://b:2"], "also one that nobody named");
        nodes.learn("http://a:1", &answered(200, Some("nonsense")));
        assert_eq!(nodes.in_turn()[0], "http://c:3");
    }

    /// The address that the nodes name may be one for their own network.
    #[test]
    fn a_leader_that_cannot_be_reached_is_not_asked_again_for_a_while() {
        let nodes = Nodes::new(&["http://a:1".to_owned(), "http://b:2".to_owned()]).unwrap();
        let hint = answered(200, Some("http://inside:3"));
        let ms = Duration::from_millis;
        nodes.learn_at("http://a:1", &hint, ms(10));
        assert_eq!(nodes.in_turn()[0], "http://inside:3");
        nodes.learn_at("http://inside:3", &Reply::NotSent(String::new()), ms(20));
        nodes.learn_at("http://a:1", &hint, ms(30));
        assert_eq!(nodes.in_turn(), ["http://a:1", "http://b:2"], "every answer names it");
        nodes.learn_at("http://a:1", &hint, ms(20) + SHUNNED_FOR);
        assert_eq!(nodes.in_turn()[0], "http://inside:3", "it may be back");
        nodes.learn_at("http://inside:3", &Reply::Lost(String::new()), ms(30) + SHUNNED_FOR);
        nodes.learn_at("http://a:1", &hint, ms(40) + SHUNNED_FOR);
        assert_eq!(nodes.in_turn()[0], "http://inside:3", "it took the connection");
    }

    #[test]
    fn urls_are_checked() {
        for bad in ["", "a:1", "https://a:1", "http://", "http://a:1/x", "http://a:1?x"] {
            assert!(Nodes::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(Nodes::new(&[]).is_err());
    }
}
