//! Membership under faults: nodes come and go while leaders are killed and workers go on.

use super::cluster::{Cluster, PATIENCE, QUORATE, get, patience};
use super::workers::{Workers, ask, check};
use serde_json::{Value, json};
use std::process::{Command, Output};

/// Runs `quorate cluster …` against all running nodes.
fn cli(cluster: &Cluster, args: &[&str]) -> Output {
    let nodes = cluster.urls().join(",");
    Command::new(QUORATE).arg("cluster").args(args).args(["--nodes", &nodes, "--json"]).output().expect("it runs")
}

/// Repeats a command of the operator until it is done, as an operator does while leaders die.
async fn done(cluster: &Cluster, args: &[&str]) -> Value {
    let mut tries = patience();
    loop {
        let output = cli(cluster, args);
        if output.status.success() {
            return serde_json::from_slice(&output.stdout).expect("JSON");
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(tries.next().await, "{args:?}: {said}\n{}", cluster.logs());
    }
}

/// The ids of those who vote, as the leader sees them.
async fn voters(cluster: &mut Cluster) -> Vec<u64> {
    let leader = cluster.leader().await;
    let url = format!("{}/cluster", cluster.node(leader).url);
    let view = get(&cluster.http, &url).await.expect("a view");
    let nodes = view["nodes"].as_array().expect("nodes");
    nodes.iter().filter(|node| node["voter"] == json!(true)).filter_map(|node| node["id"].as_u64()).collect()
}

/// "Add a learner, promote, remove the leader, replace a dead node with a new id, while leaders are killed."
#[tokio::test(flavor = "multi_thread")]
async fn nodes_come_and_go_while_leaders_are_killed() {
    let mut cluster = Cluster::start(3).await;
    // Those that come later are there already, and send everybody away until they belong.
    let (four, five) = (cluster.joining(4), cluster.joining(5));
    let workers = Workers::start(&cluster.urls(), 8);
    let served = async |cluster: &Cluster, workers: &Workers| {
        let target = workers.granted() + 100;
        let mut tries = patience();
        while workers.granted() < target {
            assert!(tries.next().await, "nobody serves:\n{}", cluster.logs());
        }
    };
    served(&cluster, &workers).await;

    // A learner, and the leader dies meanwhile.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let added = done(&cluster, &["add", &four, "--learner"]).await;
    assert_eq!((&added["role"], &added["id"]), (&json!("learner"), &json!(4)), "{added}");
    assert!(!voters(&mut cluster).await.contains(&4));
    cluster.node(leader).spawn();
    served(&cluster, &workers).await;

    // Its vote, and the leader dies again.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let promoted = done(&cluster, &["add", &four]).await;
    assert_eq!(promoted["role"], json!("voter"), "{promoted}");
    cluster.node(leader).spawn();
    assert_eq!(voters(&mut cluster).await, [1, 2, 3, 4]);
    served(&cluster, &workers).await;

    // The leader is removed, stops, and the others go on.
    let leader = cluster.leader().await;
    let removed = done(&cluster, &["remove", &leader.to_string()]).await;
    assert_eq!(removed["id"], json!(leader));
    assert!(!voters(&mut cluster).await.contains(&leader));
    cluster.node(leader).signal("TERM");
    assert!(cluster.node(leader).ended().await.success());
    let gone = cluster.nodes.iter().position(|node| node.id == leader).expect("it was there");
    cluster.nodes.remove(gone);
    served(&cluster, &workers).await;

    // One dies for good and a new one takes its place, under a new id, while a leader is killed.
    let leader = cluster.leader().await;
    let dead = cluster.nodes.iter().map(|node| node.id).find(|id| *id != leader && *id != 5).expect("a follower");
    cluster.node(dead).kill();
    done(&cluster, &["add", &five]).await;
    done(&cluster, &["remove", &dead.to_string()]).await;
    let gone = cluster.nodes.iter().position(|node| node.id == dead).expect("it was there");
    cluster.nodes.remove(gone);
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    served(&cluster, &workers).await;
    cluster.node(leader).spawn();
    cluster.ready().await;
    assert_eq!(voters(&mut cluster).await.len(), 3);
    cluster.restarted_all().await;
    served(&cluster, &workers).await;

    let history = workers.finish().await;
    check(&history.grants.lock().unwrap());
    cluster.equal_digests().await;
}

/// What would cost the cluster its majority, or is a mistake, is refused in words; and leadership moves where it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_refused_and_leadership_moves() {
    let mut cluster = Cluster::start(3).await;
    let said = |cluster: &Cluster, args: &[&str]| {
        let output = cli(cluster, args);
        assert!(!output.status.success(), "{args:?} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Nobody there; another node there; an address that is taken; an id that is taken.
    let nobody = format!("9=127.0.0.1:{}", super::cluster::free_port());
    assert!(said(&cluster, &["add", &nobody]).contains("node 9 at"), "refused");
    let four = cluster.joining(4);
    let address = four.trim_start_matches("4=").to_owned();
    let (mut tries, livez) = (patience(), format!("{}/livez", cluster.node(4).url));
    while cluster.http.get(&livez).send().await.is_err() {
        assert!(tries.next().await, "it does not answer");
    }
    let wrong = said(&cluster, &["add", &format!("5={address}")]);
    assert!(wrong.contains("this is node 4"), "{wrong}");
    assert!(said(&cluster, &["add", &format!("1={address}")]).contains("already"));
    assert!(said(&cluster, &["add", "4=nowhere"]).contains("host:port"));
    assert!(said(&cluster, &["transfer", "4"]).contains("no voter has the id 4"));

    // Leadership goes where it is sent, and twice is once.
    let leader = cluster.leader().await;
    let other = cluster.nodes.iter().map(|node| node.id).find(|id| *id != leader && *id != 4).unwrap().to_string();
    for _ in 0..2 {
        let moved = done(&cluster, &["transfer", &other]).await;
        assert_eq!(moved["leader"].to_string(), other);
    }
    let moved = done(&cluster, &["transfer"]).await;
    assert_ne!(moved["leader"].to_string(), other, "somebody else");

    // Two of three answer: taking one more away would leave one of two.
    let leader = cluster.leader().await;
    let followers: Vec<u64> = cluster.nodes.iter().map(|n| n.id).filter(|id| *id != leader && *id != 4).collect();
    cluster.node(followers[0]).kill();
    let mut tries = patience();
    loop {
        let refused = said(&cluster, &["remove", &followers[1].to_string()]);
        if refused.contains("no majority") {
            break;
        }
        assert!(tries.next().await, "{refused}");
    }
    // The dead one may go, and what is gone may go again.
    assert_eq!(done(&cluster, &["remove", &followers[0].to_string()]).await["removed"], json!(true));
    assert_eq!(done(&cluster, &["remove", &followers[0].to_string()]).await["removed"], json!(false));
    // Its directory is gone: a new one under the old id is turned away, on both sides.
    let mut tries = patience();
    std::fs::remove_dir_all(&cluster.node(followers[0]).data).unwrap();
    let address = cluster.joining_again(followers[0]);
    loop {
        let refused = said(&cluster, &["add", &address]);
        if refused.contains("new id") {
            break;
        }
        assert!(tries.next().await, "{refused}");
    }
}

/// A node that joins waits for its cluster, says so, and serves only then.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_joins_serves_when_it_belongs() {
    let mut cluster = Cluster::start(1).await;
    let two = cluster.joining(2);
    let url = cluster.node(2).url.clone();
    let ask = json!({"key": "k", "limit": "1/s"});
    let mut tries = patience();
    loop {
        if let Ok(answer) = cluster.http.post(format!("{url}/acquire")).json(&ask).send().await {
            assert_eq!(answer.status(), 503);
            break;
        }
        assert!(tries.next().await, "it does not answer");
    }
    done(&cluster, &["add", &two]).await;
    cluster.ready().await;
    let answer = cluster.http.post(format!("{url}/acquire")).json(&ask).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    // One of two is no majority; and it comes back with what it knows, without being told again.
    cluster.node(2).kill();
    cluster.node(2).spawn();
    cluster.ready().await;
    done(&cluster, &["remove", "2"]).await;
    assert_eq!(voters(&mut cluster).await, [1]);
    let refused = cli(&cluster, &["remove", "1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the only one that votes"));
}

/// Two changes at once, each of which would be fine alone: what was checked still holds when it is proposed. And every change has an
/// answer in time.
#[tokio::test(flavor = "multi_thread")]
async fn two_removals_at_once_keep_a_majority() {
    let mut cluster = Cluster::start(3).await;
    let added = cluster.joining(4);
    done(&cluster, &["add", &added]).await;
    assert_eq!(voters(&mut cluster).await, [1, 2, 3, 4]);
    let leader = cluster.leader().await;
    let url = cluster.node(leader).url.clone();
    let others: Vec<u64> = (1..=4).filter(|id| *id != leader).collect();
    // Of four, two may go only if both that stay answer; one of them does not.
    cluster.node(others[2]).signal("STOP");
    let remove = |id: u64| cluster.http.delete(format!("{url}/cluster/nodes/{id}")).timeout(PATIENCE).send();
    let (one, other) = tokio::join!(remove(others[0]), remove(others[1]));
    let statuses = [one.unwrap().status().as_u16(), other.unwrap().status().as_u16()];
    println!("{statuses:?}");
    assert!(statuses.iter().filter(|status| **status == 200).count() <= 1, "{statuses:?}");
    // Whoever is left has a majority: it serves, with the silent one still silent.
    let mut tries = patience();
    while !ask(&cluster.http, &url, "k", "after").await.is_ok_and(|(status, _)| status == 200) {
        assert!(tries.next().await, "no majority is left after {statuses:?}:\n{}", cluster.logs());
    }
    cluster.node(others[2]).signal("CONT");
}

/// A hand-over without a name, asked for at a follower, happens once.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_handed_over_once() {
    let mut cluster = Cluster::start(3).await;
    for _ in 0..4 {
        let leader = cluster.leader().await;
        let follower = cluster.nodes.iter().find(|node| node.id != leader).unwrap().url.clone();
        let before = cluster.count_in_logs("handing leadership over");
        let answer = cluster.http.post(format!("{follower}/cluster/transfer")).body("{}").send().await.unwrap();
        let status = answer.status();
        let said: Value = answer.json().await.unwrap();
        assert_eq!(status, 200, "{said}");
        assert_ne!(said["leader"].as_u64(), Some(leader), "it went there and back: {said}");
        assert_eq!(cluster.count_in_logs("handing leadership over"), before + 1, "{said}");
    }
}
