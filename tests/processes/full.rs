//! Disks that fill up: the node with room leads, without any nobody is granted anything, and room is all it takes to go on. Needs
//! root, for a small file system under each node.

use super::cluster::{Cluster, get, patience, skip};
use super::workers::ask;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// A file system in memory, and a file that takes up most of it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: &Path) -> Option<Self> {
        std::fs::create_dir_all(dir).expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=96m", "quorate-test"]).arg(dir);
        mount.output().is_ok_and(|done| done.status.success()).then(|| Self(dir.to_owned()))
    }

    /// Leaves about this much, which is less than the reserve.
    fn fill(&self, leave: u64) {
        let room = rustix::fs::statvfs(&self.0).expect("a file system");
        let ballast = File::create(self.0.join("ballast")).expect("a file");
        let length = room.f_bavail * room.f_frsize - leave;
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, length).expect("room for the ballast");
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("ballast")).expect("the ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The nodes may live on for a moment; the mount goes when the last of them does.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// FAULTS row 10, "disk full": "clean refusal, recovers, V". Nobody restarts anything.
#[tokio::test(flavor = "multi_thread")]
async fn full_disks_are_refused_and_recover() {
    let test = "full_disks_are_refused_and_recover";
    let mut cluster = Cluster::prepare(3, &["--disk-reserve", "33554432", "--history", "false"]);
    let disks: Option<Vec<_>> = cluster.nodes.iter().map(|node| SmallDisk::mount(&node.data)).collect();
    let Some(disks) = disks else {
        return skip(test, "needs root, to mount a small file system");
    };
    for node in &mut cluster.nodes {
        node.spawn();
    }
    cluster.ready().await;
    let mut told = Vec::new();

    // The leader's: another one takes over, and nobody is refused.
    let full = cluster.leader().await;
    disks[usize::try_from(full).unwrap() - 1].fill(8 * MIB);
    let mut tries = patience();
    for number in 0.. {
        told.push(granted(&cluster, &format!("leader-{number}")).await);
        if cluster.leader().await != full {
            break;
        }
        assert!(tries.next().await, "node {full} still leads:\n{}", cluster.logs());
    }
    // As a follower it takes nothing more, and the others go on without it.
    for number in 0..50 {
        told.push(granted(&cluster, &format!("follower-{number}")).await);
    }

    // All of them: refused, and certainly not granted.
    for disk in disks.iter().filter(|disk| !disk.0.join("ballast").exists()) {
        disk.fill(8 * MIB);
    }
    let mut tries = patience();
    for number in 0.. {
        let (id, url) = (format!("all-{number}"), &cluster.nodes[number % 3].url);
        match ask(&cluster.http, url, "k", &id).await.expect("an answer") {
            (200, body) => told.push((id, body["permit"].as_u64().unwrap())),
            (503, body) if body["code"] == "disk_full" => break,
            // Some were full before the leader was: what it had proposed stays open until there is room, and what stands behind that is
            // refused, until it knows of the others' disks. It may also have made way for one whose disk is full by now.
            (503, body) => assert!(["no_quorum", "no_leader"].iter().any(|code| body["code"] == *code), "{body}"),
            (504, _) => {}
            (status, body) => panic!("{status} {body}"),
        }
        assert!(tries.next().await, "full disks go on:\n{}", cluster.logs());
    }

    // Room again.
    disks.iter().for_each(SmallDisk::empty);
    let mut tries = patience();
    while ask(&cluster.http, &cluster.nodes[0].url, "k", "again").await.expect("an answer").0 != 200 {
        assert!(tries.next().await, "not served again:\n{}", cluster.logs());
    }
    cluster.equal_digests().await;
    for (id, permit) in told {
        let (status, body) = ask(&cluster.http, &cluster.nodes[1].url, "k", &id).await.expect("an answer");
        assert_eq!((status, body["permit"].as_u64()), (200, Some(permit)), "{id}: {body}");
    }
    for node in &cluster.nodes {
        let view = get(&cluster.http, &format!("{}/cluster", node.url)).await.expect("it still runs");
        assert_eq!(view["me"], node.id);
        assert!(!node.log().contains("cannot be trusted"), "{}", node.log());
    }
    drop(cluster);
}

/// Asks at each node in turn; the permit under this id.
async fn granted(cluster: &Cluster, id: &str) -> (String, u64) {
    let mut tries = patience();
    loop {
        for node in &cluster.nodes {
            let (status, body) = ask(&cluster.http, &node.url, "k", id).await.expect("an answer");
            if status == 200 {
                return (id.to_owned(), body["permit"].as_u64().expect("a permit"));
            }
            // Leadership changes hands: certainly not granted, or asked again under its id.
            assert!([503, 504].contains(&status), "{status} {body}");
        }
        assert!(tries.next().await, "nobody grants:\n{}", cluster.logs());
    }
}
