//! What goes wrong, when, and for how long: several faults at once, each with an end of its own.

use crate::machine::Machine;
use crate::network::host_name;
use crate::rng::Rng;
use quorate::clock::ManualClocks;
use quorate::limiter::Span;
use quorate::limits::DRIFT_PPM;
use quorate::planted::{self, Place};
use std::collections::BTreeMap;
use std::time::Duration;
use turmoil::Sim;

/// The longest that a message takes when nothing is wrong.
pub(crate) const LATENCY_MAX: Duration = Duration::from_millis(10);

const NODES: [u64; 3] = [1, 2, 3];

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    CrashLeader,
    CrashAny,
    CrashTwo,
    CrashAll,
    PowerCutLeader,
    PowerCutAny,
    PowerCutAll,
    IsolateLeader,
    PartitionOneWay,
    PartitionRing,
    Delay,
    ClockRate,
    ClockFreezeLeader,
    ClockJumpOne,
    OtherClock,
    Pause,
    StallProposer,
    StallAnswers,
    SlowDisk,
    FullDisk,
    Usurp,
}

impl Fault {
    pub(crate) const ALL: [Self; 21] = [
        Self::CrashLeader,
        Self::CrashAny,
        Self::CrashTwo,
        Self::CrashAll,
        Self::PowerCutLeader,
        Self::PowerCutAny,
        Self::PowerCutAll,
        Self::IsolateLeader,
        Self::PartitionOneWay,
        Self::PartitionRing,
        Self::Delay,
        Self::ClockRate,
        Self::ClockFreezeLeader,
        Self::ClockJumpOne,
        Self::OtherClock,
        Self::Pause,
        Self::StallProposer,
        Self::StallAnswers,
        Self::SlowDisk,
        Self::FullDisk,
        Self::Usurp,
    ];

    /// How often it is chosen, relative to the others.
    const fn weight(self) -> u64 {
        match self {
            Self::CrashLeader => 34,
            Self::PowerCutLeader => 6,
            Self::CrashAny | Self::IsolateLeader | Self::PartitionOneWay | Self::Delay | Self::ClockRate => 5,
            Self::CrashTwo | Self::Pause | Self::ClockFreezeLeader | Self::PowerCutAny => 4,
            _ => 3,
        }
    }
}

/// What ends a fault.
#[derive(Debug)]
enum End {
    Restart(u64),
    Open {
        gates: Vec<(u64, u64)>,
        cut: bool,
    },
    Quick(u64, u64),
    TrueRate(u64),
    Thaw(u64),
    Unstall(Place, u64),
    FastDisk(u64),
    Room(u64),
    PowerCutAll,
    /// The second half of a usurpation: whoever leads now is cut off, so that the first leader may lead again.
    Restore,
}

/// How often each fault happened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// A node that led, as far as anybody knew, died.
    pub(crate) leader_crashes: u64,
    pub(crate) power_cuts: u64,
}

/// The faults of one run.
pub(crate) struct Faults {
    rng: Rng,
    machines: Vec<Machine>,
    next: Duration,
    ends: BTreeMap<(Duration, u64), End>,
    serial: u64,
    down: [bool; 4],
    pub(crate) counts: Counts,
}

impl Faults {
    pub(crate) fn new(rng: Rng, machines: Vec<Machine>) -> Self {
        Self {
            rng,
            machines,
            next: Duration::from_secs(2),
            ends: BTreeMap::new(),
            serial: 0,
            down: [false; 4],
            counts: Counts::default(),
        }
    }

    /// Does whatever is due.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>) {
        self.end_due(sim);
        let now = sim.elapsed();
        if now < self.next {
            return;
        }
        self.next = now + self.rng.millis(300, 2_600);
        for _ in 0..self.rng.pick(&[1, 1, 1, 2, 2, 3]) {
            let fault = self.choose();
            if self.begin(fault, sim) {
                self.machines[0].record.events().note(&[8, fault as u64]);
                *self.counts.faults.entry(fault).or_default() += 1;
            }
        }
    }

    /// Ends everything at once.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>) {
        // What would begin something now does not; a power cut that is due leaves nodes to be started again.
        while let Some((_, end)) = self.ends.pop_first() {
            if !matches!(end, End::Restore) {
                self.end(end, sim);
            }
        }
        self.machines[0].gates.open_all();
    }

    fn end_due(&mut self, sim: &mut Sim<'_>) {
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= sim.elapsed()) {
            let end = first.remove();
            self.end(end, sim);
        }
    }

    fn choose(&mut self) -> Fault {
        let mut at = self.rng.range(0, Fault::ALL.iter().map(|fault| fault.weight()).sum::<u64>() - 1);
        for fault in Fault::ALL {
            if at < fault.weight() {
                return fault;
            }
            at -= fault.weight();
        }
        Fault::CrashLeader
    }

    /// The node that leads as far as anybody knows, if it is up.
    fn leader(&self) -> Option<u64> {
        let leader = self.machines[0].record.events().leader.map(|(_, node)| node);
        leader.filter(|node| !self.is_down(*node))
    }

    fn is_down(&self, node: u64) -> bool {
        self.down[usize::try_from(node).expect("a node")]
    }

    fn machine(&self, node: u64) -> &Machine {
        &self.machines[usize::try_from(node - 1).expect("a node")]
    }

    fn after(&mut self, sim: &Sim<'_>, wait: Duration, end: End) {
        self.serial += 1;
        self.ends.insert((sim.elapsed() + wait, self.serial), end);
    }

    /// Begins a fault; `false` if there is nobody that it could happen to.
    fn begin(&mut self, fault: Fault, sim: &mut Sim<'_>) -> bool {
        let any = self.rng.pick(&NODES);
        let leader = self.leader();
        let short = self.rng.millis(150, 1_800);
        let long = self.rng.millis(500, 5_000);
        match fault {
            Fault::CrashLeader | Fault::PowerCutLeader => {
                let Some(leader) = leader else { return false };
                return self.crash(sim, &[leader], fault == Fault::PowerCutLeader);
            }
            Fault::CrashAny | Fault::PowerCutAny => return self.crash(sim, &[any], fault == Fault::PowerCutAny),
            Fault::CrashTwo => return self.crash(sim, &NODES.map(|node| if node == any { 0 } else { node }), false),
            Fault::CrashAll => return self.crash(sim, &NODES, false),
            Fault::PowerCutAll => {
                // While the disks are busy: much is written then that is not synced.
                for node in NODES {
                    self.machine(node).disk.set_sync_max(Duration::from_millis(900));
                }
                let wait = self.rng.millis(100, 900);
                self.after(sim, wait, End::PowerCutAll);
            }
            Fault::IsolateLeader => {
                let Some(leader) = leader else { return false };
                self.isolate(sim, leader, long);
            }
            Fault::PartitionOneWay => {
                let other = any % 3 + 1;
                let gates = if self.rng.percent(50) { vec![(any, other)] } else { vec![(other, any)] };
                self.close(sim, gates, long);
            }
            Fault::PartitionRing => self.close(sim, vec![(1, 2), (2, 3), (3, 1)], long),
            Fault::Delay => {
                let other = self.rng.pick(&[0, any % 3 + 1]);
                sim.set_link_max_message_latency(host_name(any), host_name(other), self.rng.millis(50, 700));
                self.after(sim, long, End::Quick(any, other));
            }
            Fault::ClockRate => {
                let fast = self.rng.range(1_000_000, 2_000_000);
                let slow = self.rng.range(500_000, 1_000_000 + DRIFT_PPM);
                let other = if self.rng.percent(50) { fast } else { slow };
                self.machine(any).clocks.set_rates(sim.elapsed(), slow, other);
                self.after(sim, long * 2, End::TrueRate(any));
            }
            Fault::ClockFreezeLeader => {
                let Some(leader) = leader else { return false };
                self.machine(leader).clocks.at(sim.elapsed(), ManualClocks::freeze);
                self.after(sim, long, End::Thaw(leader));
            }
            Fault::ClockJumpOne => {
                // Up to two days in a moment.
                let rate = 1_000_000 * self.rng.range(1, 10_000_000);
                self.machine(any).clocks.set_rates(sim.elapsed(), 1_000_000, rate);
                self.after(sim, Duration::from_millis(20), End::TrueRate(any));
            }
            Fault::OtherClock => {
                if !self.crash(sim, &[any], false) {
                    return false;
                }
                let begin = Span(self.rng.range(0, 100_000_000_000));
                self.machine(any).clocks.reboot(sim.elapsed(), begin);
            }
            Fault::Pause => {
                // What a stopped process does to others: nothing comes out of it and nothing goes in.
                let node = if self.rng.percent(70) { leader.unwrap_or(any) } else { any };
                let gates = (0..=3).filter(|other| *other != node).flat_map(|other| [(other, node), (node, other)]);
                self.close(sim, gates.collect(), short);
                self.stall(sim, Place::Stamped, node, short);
            }
            Fault::StallProposer | Fault::StallAnswers => {
                let Some(leader) = leader else { return false };
                let place = if fault == Fault::StallProposer { Place::Stamped } else { Place::Applied };
                self.stall(sim, place, leader, long);
            }
            Fault::SlowDisk => {
                let most = self.rng.millis(50, 900);
                self.machine(any).disk.set_sync_max(most);
                self.after(sim, long, End::FastDisk(any));
            }
            Fault::FullDisk => {
                let node = if self.rng.percent(50) { leader.unwrap_or(any) } else { any };
                self.machine(node).disk.set_free(0);
                self.after(sim, long, End::Room(node));
            }
            Fault::Usurp => {
                let Some(leader) = leader else { return false };
                self.stall(sim, Place::Stamped, leader, Duration::from_millis(3_500));
                self.isolate(sim, leader, Duration::from_millis(1_300));
                self.after(sim, Duration::from_millis(1_500), End::Restore);
            }
        }
        true
    }

    fn end(&mut self, end: End, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        match end {
            End::Restart(node) => {
                self.down[usize::try_from(node).expect("a node")] = false;
                sim.bounce(host_name(node));
            }
            End::Open { gates, cut } => {
                for (from, to) in gates {
                    if cut {
                        self.machines[0].gates.cut(from, to);
                    }
                    self.machines[0].gates.open(from, to);
                }
            }
            End::Quick(one, other) => {
                sim.set_link_max_message_latency(host_name(one), host_name(other), LATENCY_MAX);
            }
            End::TrueRate(node) => {
                let drift = self.rng.range(1_000_000 - DRIFT_PPM, 1_000_000 + DRIFT_PPM);
                self.machine(node).clocks.set_rates(now, drift, drift);
            }
            End::Thaw(node) => self.machine(node).clocks.at(now, ManualClocks::thaw),
            End::Unstall(place, node) => planted::set_stall(place, node, None),
            End::PowerCutAll => {
                self.crash(sim, &NODES, true);
                for node in NODES {
                    self.machine(node).disk.set_sync_max(Duration::from_millis(2));
                }
            }
            End::FastDisk(node) => self.machine(node).disk.set_sync_max(Duration::from_millis(2)),
            End::Room(node) => self.machine(node).disk.set_free(u64::MAX),
            End::Restore => {
                if let Some(leader) = self.leader() {
                    self.isolate(sim, leader, Duration::from_millis(1_500));
                }
            }
        }
    }

    /// Kills those that are up. A process that dies leaves its system behind, which ends its connections; after a power cut
    /// nobody says goodbye.
    ///
    /// The order in which a runtime drops its tasks depends on how many tasks the whole test process had before. So what
    /// they say while they are dropped goes nowhere, and connections end here, in order.
    fn crash(&mut self, sim: &mut Sim<'_>, nodes: &[u64], power_cut: bool) -> bool {
        let leader = self.leader();
        let up: Vec<_> = nodes.iter().copied().filter(|node| *node != 0 && !self.is_down(*node)).collect();
        for node in &up {
            let others: Vec<_> = (0..=3).filter(|other| other != node).collect();
            for other in &others {
                sim.partition(host_name(*node), host_name(*other));
            }
            sim.crash(host_name(*node));
            for other in &others {
                sim.repair(host_name(*node), host_name(*other));
                if !power_cut {
                    self.machines[0].gates.cut(*node, *other);
                }
            }
            self.machine(*node).disk.crash(power_cut);
            self.down[usize::try_from(*node).expect("a node")] = true;
            self.counts.leader_crashes += u64::from(leader == Some(*node));
            self.counts.power_cuts += u64::from(power_cut);
            let wait = if self.rng.percent(60) { self.rng.millis(20, 400) } else { self.rng.millis(400, 3_000) };
            self.after(sim, wait, End::Restart(*node));
        }
        !up.is_empty()
    }

    /// Alone among the nodes; workers still reach it.
    fn isolate(&mut self, sim: &Sim<'_>, node: u64, wait: Duration) {
        let others = NODES.iter().filter(|other| **other != node);
        self.close(sim, others.flat_map(|other| [(node, *other), (*other, node)]).collect(), wait);
    }

    fn close(&mut self, sim: &Sim<'_>, gates: Vec<(u64, u64)>, wait: Duration) {
        for (from, to) in &gates {
            self.machines[0].gates.close(*from, *to);
        }
        let cut = self.rng.percent(40);
        self.after(sim, wait, End::Open { gates, cut });
    }

    fn stall(&mut self, sim: &Sim<'_>, place: Place, node: u64, wait: Duration) {
        planted::set_stall(place, node, Some(wait));
        self.after(sim, wait, End::Unstall(place, node));
    }
}
