//! Directories that lost something: old copies, cut-off and flipped files. Recognised and refused, never served.

use super::cluster::{Cluster, patience};
use super::workers::ask;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Grants some permits, through all nodes in turn.
async fn grant_some(cluster: &Cluster, round: &str) {
    for number in 0..20 {
        let url = &cluster.nodes[number % 2].url;
        let (status, body) = ask(&cluster.http, url, "k", &format!("{round}-{number}")).await.unwrap();
        assert_eq!(status, 200, "{body}");
    }
}

/// Waits until nodes 1 and 2 have written down that node 3 got at least as far as the others are now.
async fn known_to_others(cluster: &Cluster) {
    let digest = super::cluster::get(&cluster.http, &format!("{}/cluster/digest", cluster.nodes[0].url)).await.unwrap();
    let applied = digest["applied"].as_u64().unwrap();
    for other in [0, 1] {
        let file = cluster.nodes[other].data.join("peers.json");
        let mut tries = patience();
        loop {
            let peers: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            if peers["3"]["footing"]["entry_index"].as_u64() >= Some(applied) {
                break;
            }
            assert!(tries.next().await, "node {} does not learn where node 3 stands: {peers}", other + 1);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() { copy(&source, &target) } else { fs::copy(&source, &target).map(drop).unwrap() }
    }
}

/// Starts node 3, which has to end by itself and say why.
async fn is_refused(cluster: &mut Cluster, why: &str) {
    cluster.node(3).spawn();
    let status = cluster.node(3).ended().await;
    let log = cluster.node(3).log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains(why), "{log}");
    // The others serve on.
    let (status, body) = ask(&cluster.http, &cluster.nodes[1].url, "k", &format!("without 3: {why}")).await.unwrap();
    assert_eq!(status, 200, "{body}");
}

/// "Old copy of a data directory restored: refused, never served": it could vote twice and lose what it acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_a_directory_is_refused() {
    let mut cluster = Cluster::start(3).await;
    grant_some(&cluster, "before").await;
    known_to_others(&cluster).await;
    let data = cluster.nodes[2].data.clone();
    let (old, latest) = (data.with_extension("old"), data.with_extension("latest"));
    cluster.node(3).kill();
    copy(&data, &old);
    cluster.node(3).spawn();
    cluster.ready().await;
    grant_some(&cluster, "after").await;
    known_to_others(&cluster).await;
    cluster.node(3).kill();
    fs::rename(&data, &latest).unwrap();
    copy(&old, &data);
    is_refused(&mut cluster, "old copy").await;
    // Also by peers that were all restarted meanwhile: they have written it down.
    for id in [1, 2] {
        cluster.node(id).kill();
    }
    for id in [1, 2] {
        cluster.node(id).spawn();
    }
    cluster.ready().await;
    is_refused(&mut cluster, "old copy").await;
    // The latest directory is as welcome as ever.
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&latest, &data).unwrap();
    cluster.node(3).spawn();
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// The files of a node's log that hold anything, oldest first.
fn log_files(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data.join("log")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    files.retain(|path| used(&fs::read(path).unwrap()) > 0);
    files.sort();
    files
}

/// How much of a file holds anything: files of the log are filled with zeros before they are used.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn flip(file: &Path, share: usize) -> Vec<u8> {
    let whole = fs::read(file).unwrap();
    let mut flipped = whole.clone();
    let at = used(&whole) * share / 100;
    flipped[at] ^= 0x10;
    fs::write(file, flipped).unwrap();
    whole
}

/// "Truncated file": what a crash can have torn is dropped; what was acknowledged and is gone is missed by the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_its_end_is_refused() {
    let mut cluster = Cluster::start(3).await;
    grant_some(&cluster, "a").await;
    known_to_others(&cluster).await;
    cluster.node(3).kill();
    let file = log_files(&cluster.nodes[2].data).pop().unwrap();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..used(&whole) * 6 / 10]).unwrap();
    is_refused(&mut cluster, "lost its end").await;
    fs::write(&file, &whole).unwrap();
    cluster.node(3).spawn();
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// "Flipped bits: detect; refuse; never serve", in the log and in the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_refused() {
    let mut cluster = Cluster::prepare(3, &["--snapshot-every", "100"]);
    for node in &mut cluster.nodes {
        node.spawn();
    }
    cluster.ready().await;
    let snapshot = cluster.nodes[2].data.join("snapshots/current.snapshot");
    let mut tries = patience();
    for round in 0.. {
        grant_some(&cluster, &format!("round {round}")).await;
        if snapshot.exists() {
            break;
        }
        assert!(tries.next().await, "no snapshot is taken:\n{}", cluster.logs());
    }
    grant_some(&cluster, "after the snapshot").await;
    cluster.node(3).kill();
    let whole = flip(&snapshot, 50);
    is_refused(&mut cluster, "snapshot").await;
    fs::write(&snapshot, whole).unwrap();
    let file = log_files(&cluster.nodes[2].data).pop().unwrap();
    let whole = flip(&file, 50);
    is_refused(&mut cluster, "log").await;
    fs::write(&file, whole).unwrap();
    cluster.node(3).spawn();
    cluster.ready().await;
    cluster.equal_digests().await;
}
