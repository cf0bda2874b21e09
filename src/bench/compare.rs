//! The same load against everything, in one run, and what that says as ratios.

use super::baseline::Baseline;
use super::dialect::{Dialect, WaitMode, limit};
use super::load::{Measured, measure};
use super::plan::Plan;
use super::rival::{self, Running};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Requests in one batch.
const BATCH: usize = 100;
/// Connections that ask for one and the same key, and as many that ask for different ones.
const CROWD: usize = 512;

/// What was measured, beside each other.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The machine, at the beginning of every round; the middle ones.
    pub baseline: Baseline,
    /// Every system and way of asking.
    pub rows: Vec<Row>,
    /// What is not installed here.
    pub missing: Vec<&'static str>,
    /// Changes of our leader while anything was measured; none, in a run that counts.
    pub leader_changes: u64,
    /// What the figures say.
    pub ratios: Vec<Ratio>,
}

/// One way of asking one system.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// What it keeps, and where.
    pub keeps: &'static str,
    /// Connections.
    pub connections: usize,
    /// Decisions a second of every round.
    pub rounds: Vec<f64>,
    /// The middle one.
    pub measured: Measured,
}

/// A ratio of two figures of this run.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Of what to what.
    pub name: &'static str,
    /// The ratio, or the figure.
    pub value: f64,
    /// What we want of it.
    pub wanted: &'static str,
    /// Whether that is so.
    pub met: bool,
}

const LEADER: &str = "quorate, at the leader";
const FOLLOWERS: &str = "quorate, through followers";
const CROWDED: &str = "quorate, many connections";
const HOT: &str = "quorate, all for one key";
const BATCHES: &str = "quorate, batches of 100";
const ALONE: &str = "quorate, one connection";
const HALF: &str = "quorate, half that rate";
const CEILING: &str = "our HTTP alone";
const ETCD: &str = "etcd";
const REDIS: &str = "redis";
const REDIS_DURABLE: &str = "redis, fsynced";
const CRAB: &str = "throttlecrab";

/// Where rounds are kept until the middle one is chosen.
struct Rows(Vec<(Row, Vec<Measured>)>);

impl Rows {
    fn add(&mut self, name: &str, keeps: &'static str, connections: usize, measured: Measured) {
        if let Some((_, rounds)) = self.0.iter_mut().find(|(row, _)| row.name == name) {
            rounds.push(measured);
            return;
        }
        let row = Row { name: name.to_owned(), keeps, connections, rounds: Vec::new(), measured: measured.clone() };
        self.0.push((row, vec![measured]));
    }

    fn done(self) -> Vec<Row> {
        let middle = |(mut row, mut rounds): (Row, Vec<Measured>)| {
            row.rounds = rounds.iter().map(|measured| measured.per_second).collect();
            // In open loop the rate is what was asked for, and says nothing.
            let measure = |of: &Measured| if row.name == HALF { of.latency_ms.p99 } else { of.per_second };
            rounds.sort_by(|one, other| measure(one).total_cmp(&measure(other)));
            row.measured = rounds.swap_remove(rounds.len() / 2);
            row
        };
        self.0.into_iter().map(middle).collect()
    }
}

/// Measures everything `rounds` times, in turns. `plan` says how many connections, keys and seconds; `dir` is on the disk that counts.
pub fn compare(
    plan: &Plan,
    (program, dir): (&Path, &Path),
    rounds: usize,
    tell: &mut dyn FnMut(&str),
) -> io::Result<Comparison> {
    std::fs::create_dir_all(dir)?;
    let (mut rows, mut missing, mut leader_changes) = (Rows(Vec::new()), Vec::new(), 0);
    let mut baselines = Vec::with_capacity(rounds);
    for round in 1..=rounds {
        baselines.push(Baseline::measure(dir)?);
        let mut run = |name: &str, keeps: &'static str, plan: &Plan, rows: &mut Rows| -> io::Result<Measured> {
            tell(&format!("round {round} of {rounds}: {name}"));
            let measured = measure(plan, &mut |_, _| {})?;
            rows.add(name, keeps, plan.connections, measured.clone());
            Ok(measured)
        };
        let asking = |running: &Running| {
            let dialect = running.dialect.clone().unwrap_or_else(|| plan.dialect.clone());
            Plan { dialect, addresses: vec![running.addresses[running.leader]], ..plan.clone() }
        };
        let ceiling = rival::ceiling(program, dir)?;
        run(CEILING, "nothing", &asking(&ceiling), &mut rows)?;
        drop(ceiling);

        let cluster = rival::cluster(program, dir, 3)?;
        let keeps = "3 nodes, fsynced";
        let term = term_of(cluster.addresses[0])?;
        let at_leader = asking(&cluster);
        let full = run(LEADER, keeps, &at_leader, &mut rows)?;
        let followers: Vec<SocketAddr> =
            cluster.addresses.iter().copied().filter(|at| !at_leader.addresses.contains(at)).collect();
        run(FOLLOWERS, keeps, &Plan { addresses: followers, ..at_leader.clone() }, &mut rows)?;
        let crowd = Plan { connections: CROWD, ..at_leader.clone() };
        run(CROWDED, keeps, &crowd, &mut rows)?;
        run(HOT, keeps, &Plan { hot_percent: 100, ..crowd }, &mut rows)?;
        run(BATCHES, keeps, &Plan { dialect: Dialect::Batch(BATCH), ..at_leader.clone() }, &mut rows)?;
        run(ALONE, keeps, &Plan { connections: 1, ..at_leader.clone() }, &mut rows)?;
        run(HALF, keeps, &Plan { rate: Some(full.per_second / 2.0), ..at_leader }, &mut rows)?;
        leader_changes += term_of(cluster.addresses[0])?.saturating_sub(term);
        drop(cluster);

        let others = [
            (REDIS_DURABLE, "1 process, fsynced", rival::redis(dir, true)?),
            (REDIS, "1 process, memory", None),
            (CRAB, "1 process, memory", None),
            (ETCD, "3 nodes, fsynced", None),
        ];
        for (name, keeps, started) in others {
            let started = match name {
                REDIS => rival::redis(dir, false)?,
                CRAB => rival::throttlecrab(dir)?,
                ETCD => rival::etcd(dir)?,
                _ => started,
            };
            match started {
                Some(running) => {
                    run(name, keeps, &asking(&running), &mut rows)?;
                }
                None if missing.contains(&name) => {}
                None => missing.push(name),
            }
        }
    }
    let rows = rows.done();
    let baseline = Baseline::middle(&baselines);
    let ratios = ratios(&rows, &baseline);
    Ok(Comparison { baseline, rows, missing, leader_changes, ratios })
}

/// The term of a cluster: it grows with every leader.
fn term_of(address: SocketAddr) -> io::Result<u64> {
    let view: Value = serde_json::from_str(&rival::get(address, "/cluster")?)?;
    view["term"].as_u64().ok_or_else(|| io::Error::other("a cluster without a term"))
}

fn ratios(rows: &[Row], baseline: &Baseline) -> Vec<Ratio> {
    let row = |name: &str| rows.iter().find(|row| row.name == name).map(|row| &row.measured);
    let of = |one: &str, other: &str| Some(row(one)?.per_second / row(other)?.per_second);
    let at_least = |name, value: Option<f64>, wanted: &'static str, least: f64| {
        value.map(|value| Ratio { name, value, wanted, met: value >= least })
    };
    let at_most = |name, value: Option<f64>, wanted: &'static str, most: f64| {
        value.map(|value| Ratio { name, value, wanted, met: value <= most })
    };
    let idle = row(ALONE).map(|alone| alone.latency_ms.p50 / (baseline.fdatasync_ms + baseline.round_trip_ms));
    [
        at_least("at the leader / our HTTP alone", of(LEADER, CEILING), "at least 0.5", 0.5),
        at_least("at the leader / etcd", of(LEADER, ETCD), "at least 6", 6.0),
        at_least("at the leader / redis, fsynced", of(LEADER, REDIS_DURABLE), "at least 0.7", 0.7),
        at_least("through followers / at the leader", of(FOLLOWERS, LEADER), "at least 0.6", 0.6),
        at_least("one key / many keys, 512 connections", of(HOT, CROWDED), "at least 0.9", 0.9),
        at_least("permits a second in batches", row(BATCHES).map(|row| row.per_second), "at least 150000", 150_000.0),
        at_most("p50 of one connection / (fdatasync + round trip)", idle, "at most 2.5", 2.5),
        at_most("p99 at half the rate, in ms", row(HALF).map(|half| half.latency_ms.p99), "at most 10", 10.0),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Plan {
    /// The load that comparisons are made with: 64 connections, 10,000 keys.
    pub fn usual(duration: Duration) -> Self {
        Self {
            addresses: Vec::new(),
            dialect: Dialect::Acquire { wait: WaitMode::Client, ids: false },
            connections: 64,
            threads: 1,
            rate: None,
            keys: 10_000,
            hot_percent: 0,
            limit: limit(),
            warm_up: Duration::from_secs(1),
            duration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Quantiles;
    use super::*;

    #[test]
    fn the_middle_round_counts_by_what_it_measures() {
        let mut rows = Rows(Vec::new());
        for (granted, per_second, p99) in
            [(1, 10.0, 9.0), (2, 30.0, 1.0), (3, 20.0, 5.0), (4, 20.1, 4.0), (5, 5.0, 2.0)]
        {
            for name in [LEADER, HALF] {
                let latency_ms = Quantiles { p99, ..Quantiles::default() };
                let measured = Measured { per_second, granted, denied: 0, failed: 0, latency_ms, seconds: Vec::new() };
                rows.add(name, "nothing", 1, measured);
            }
        }
        let rows = rows.done();
        assert_eq!(rows[0].rounds.len(), 5);
        assert_eq!(rows[0].measured.granted, 3, "as many as they come");
        assert_eq!(rows[1].measured.granted, 4, "as many as asked for: how long they took");
    }
}
