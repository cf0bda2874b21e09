//! Which nodes there are, and which to ask first.

use super::error::Error;
use super::exchange::Reply;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nodes named at once.
const NODES_MAX: usize = 64;

/// The nodes of a cluster as a client knows them.
#[derive(Debug)]
pub(super) struct Nodes {
    configured: Vec<String>,
    /// Where the leader was last seen. A hint: any node answers, the leader just answers without a hop.
    leader: Mutex<Option<String>>,
}

impl Nodes {
    pub(super) fn new(urls: &[String]) -> Result<Self, Error> {
        if urls.is_empty() || urls.len() > NODES_MAX {
            return Err(Error::Misuse(format!("a client needs 1 to {NODES_MAX} nodes, these are {}", urls.len())));
        }
        let configured = urls.iter().map(|url| base(url)).collect::<Result<_, _>>()?;
        Ok(Self { configured, leader: Mutex::new(None) })
    }

    pub(super) fn configured(&self) -> &[String] {
        &self.configured
    }

    /// The leader if it is known, then all others in the order they were named.
    pub(super) fn in_turn(&self) -> Vec<String> {
        let leader = self.leader().clone();
        let others = self.configured.iter().filter(|node| Some(*node) != leader.as_ref()).cloned();
        leader.iter().cloned().chain(others).collect()
    }

    /// A follower names the leader on every answer; a decision without that header came from the leader itself; a node
    /// that does not answer is not asked first again.
    pub(super) fn learn(&self, node: &str, reply: &Reply) {
        let mut leader = self.leader();
        match reply {
            Reply::Answered { leader: Some(named), .. } => {
                if let Ok(named) = base(named) {
                    *leader = Some(named);
                }
            }
            Reply::Answered { status: 200 | 429, .. } => *leader = Some(node.to_owned()),
            Reply::Answered { .. } | Reply::NotSent(_) | Reply::Lost(_) => {
                if leader.as_deref() == Some(node) {
                    *leader = None;
                }
            }
        }
    }

    fn leader(&self) -> MutexGuard<'_, Option<String>> {
        // A hint cannot be left half-written.
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
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
        nodes.learn("http://b:2", &Reply::NotSent(String::new()));
        assert_eq!(nodes.in_turn(), ["http://a:1", "http://b:2"]);
        nodes.learn("http://a:1", &answered(200, Some("http://c:3")));
        assert_eq!(nodes.in_turn(), ["http://c:3", "http://a:1", "http://b:2"], "also one that nobody named");
        nodes.learn("http://a:1", &answered(200, Some("nonsense")));
        assert_eq!(nodes.in_turn()[0], "http://c:3");
    }

    #[test]
    fn urls_are_checked() {
        for bad in ["", "a:1", "https://a:1", "http://", "http://a:1/x", "http://a:1?x"] {
            assert!(Nodes::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(Nodes::new(&[]).is_err());
    }
}
