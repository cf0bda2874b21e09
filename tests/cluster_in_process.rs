//! Three nodes in one process: real consensus, real disks, real connections, no HTTP.

use quorate::limiter::{Ask, Key, Limit, Spacing, Span};
use quorate::node::{Node, Options, start};
use quorate::state::{Acquire, Identity, Outcome};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;

fn acquire(key: &str, rate: &str, id: Option<&str>) -> Acquire {
    let key = Key::new(key).unwrap();
    let limit = Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, 100_000).unwrap());
    let identity = id.map(|id| Identity::of(id, &key, Some(&limit), 1));
    Acquire { key, limit: Some(limit), ask: Ask::default(), identity }
}

async fn cluster(dir: &Path, count: u64) -> Vec<Node> {
    let mut listeners = Vec::new();
    let mut members = BTreeMap::new();
    for id in 1..=count {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        members.insert(id, listener.local_addr().unwrap().to_string());
        listeners.push((id, listener));
    }
    let mut nodes = Vec::new();
    for (id, listener) in listeners {
        let options = Options {
            id,
            data: dir.join(format!("node{id}")),
            members: members.clone(),
            cluster: "test".to_owned(),
            advertise: format!("http://node{id}"),
            keys_max: 1_000,
            heartbeat_ms: 100,
            election_ms_min: 200,
            election_ms_max: 350,
            request_timeout_ms: 10_000,
            snapshot_every_entries: 1_000,
        };
        nodes.push(start(&options, listener).await.unwrap());
    }
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_spaced_whichever_node_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    let mut slots = Vec::new();
    for round in 0..60 {
        let handle = nodes[round % 3].handle();
        let verdict = loop {
            match handle.acquire(acquire("k", "10/s", None)).await {
                Ok(verdict) => break verdict,
                Err(failure) => println!("{failure:?}"),
            }
        };
        let Outcome::Granted(grant) = verdict.outcome else { panic!("{verdict:?}") };
        slots.push((grant.permit, grant.slot));
    }
    for pair in slots.windows(2) {
        assert!(pair[1].0 > pair[0].0, "permits grow: {pair:?}");
        assert!(pair[1].1.since(pair[0].1) >= Span::from_millis(100), "slots are spaced: {pair:?}");
    }
    let first = nodes[0].handle().acquire(acquire("once", "10/s", Some("id"))).await.unwrap();
    let again = nodes[1].handle().acquire(acquire("once", "10/s", Some("id"))).await.unwrap();
    let (Outcome::Granted(first), Outcome::Granted(again)) = (first.outcome, again.outcome) else { panic!() };
    assert_eq!((first.permit, first.slot), (again.permit, again.slot));
    assert!(again.replayed && !first.replayed);
    for node in &nodes {
        let look = node.handle().look(Key::new("k").unwrap()).await.unwrap();
        assert_eq!(look.key.unwrap().permit, 60);
    }
    for node in nodes {
        node.shutdown(Duration::from_secs(5)).await;
    }
}
