//! What a node answers when it is asked as the leader, by itself or by another node.

use super::forward::{Asked, Question, Reply, Report};
use super::handle::Shared;
use super::queue::{Decided, Waiting};
use super::verdict::{Look, Rules};
use crate::clock::Deadline;
use crate::limiter::{Key, Time};
use crate::state::{Acquire, Command, Outcome, Withdraw};
use std::time::Duration;

/// A command that was put to the cluster, or why it was not.
enum Put {
    Waits(Waiting, Frees),
    Refused,
}

fn after(ms: u64) -> Deadline {
    Deadline::after(Duration::from_millis(ms))
}

impl Shared {
    /// Answers a question of another node, or of this one.
    pub(super) async fn answer(&self, question: Question) -> Reply {
        match question {
            Question::Decide(asked) => Reply::Several(self.decide_all(asked).await),
            Question::Wait { acquire, waited_ms, wait_ms } => {
                self.waitroom.wait(acquire, Duration::from_millis(waited_ms), wait_ms.map(after)).await
            }
            Question::Leave { withdraw, within_ms } => self.leave_here(withdraw, after(within_ms)).await,
            Question::Look { key, waiter, within_ms } => self.look_here(&key, waiter, after(within_ms)).await,
            Question::Rules { name, within_ms } => self.rules_here(name.as_deref(), after(within_ms)).await,
            Question::Change { change, within_ms } => self.change_here(change, after(within_ms)).await,
            Question::Report => {
                let progress = self.consensus.progress();
                let role = self.consensus.status().borrow().role.to_owned();
                let settled = self.consensus.settled();
                let full = self.consensus.is_full();
                Reply::Report(Report { role, last_log: progress.last_log, applied: progress.applied, settled, full })
            }
        }
    }

    /// All of them are put to the cluster before the first is waited for, so that they ride in one entry.
    async fn decide_all(&self, asked: Vec<Asked>) -> Vec<Reply> {
        let put: Vec<_> = asked
            .into_iter()
            .map(|Asked { command, queued_ms, within_ms }| {
                let (command, behind) = self.line_up(command);
                (self.put(command), behind, after(queued_ms), after(within_ms))
            })
            .collect();
        let mut replies = Vec::with_capacity(put.len());
        for (put, behind, queued_until, deadline) in put {
            replies.push(self.decided(put, behind, queued_until, deadline).await);
        }
        replies
    }

    /// Decides one command as the leader. It is put to the cluster at once, so that what waits is small.
    pub(super) fn decide_here(
        &self,
        command: Command,
        queued_until: Deadline,
        deadline: Deadline,
    ) -> impl Future<Output = Reply> {
        let (command, behind) = self.line_up(command);
        self.decided(self.put(command), behind, queued_until, deadline)
    }

    /// Those who stand in line came first: what is free is theirs. Only a retry of what was granted before passes them; then
    /// this has the request as it was asked.
    fn line_up(&self, mut command: Command) -> (Command, Option<Box<Acquire>>) {
        let behind = match &mut command {
            Command::Acquire(acquire) if self.waitroom.is_blocked(&acquire.first.key) && acquire.more.is_empty() => {
                let asked = Box::new(acquire.clone());
                acquire.replay_only = true;
                Some(asked)
            }
            _ => None,
        };
        (command, behind)
    }

    async fn decided(
        &self,
        put: Put,
        behind: Option<Box<Acquire>>,
        queued_until: Deadline,
        deadline: Deadline,
    ) -> Reply {
        match (self.outcome(put, queued_until, deadline).await, behind) {
            (Reply::Decided(verdict), Some(asked)) if verdict.outcome == Outcome::Skipped => {
                match self.waitroom.refusal_of(&asked.first.key) {
                    Some(refusal) => Reply::Decided(refusal),
                    // The line has gone meanwhile.
                    None => self.outcome(self.put(Command::Acquire(*asked)), queued_until, deadline).await,
                }
            }
            (reply, _) => reply,
        }
    }

    fn put(&self, command: Command) -> Put {
        let frees = Frees::of(&command);
        self.proposer.submit(command).map_or(Put::Refused, |waiting| Put::Waits(waiting, frees))
    }

    async fn outcome(&self, put: Put, queued_until: Deadline, deadline: Deadline) -> Reply {
        let Put::Waits(waiting, frees) = put else { return Reply::Overloaded };
        match waiting.until(queued_until, deadline).await {
            Decided::Verdict(verdict) => {
                self.stir(&frees, &verdict.outcome);
                Reply::Decided(verdict)
            }
            Decided::NotLeading => Reply::NotLeading,
            Decided::NoQuorum => Reply::NoQuorum,
            Decided::DiskFull => Reply::DiskFull,
            Decided::Unknown(why) => Reply::Unknown(why),
        }
    }

    /// Tells those in line that there may be a place now.
    fn stir(&self, frees: &Frees, outcome: &Outcome) {
        match (frees, outcome) {
            (Frees::Key(key), Outcome::Released(true) | Outcome::Reset(true)) => self.waitroom.stir(key),
            (Frees::Keys(keys), Outcome::Withdrawn(permits)) => {
                for (key, _) in keys.iter().zip(permits).filter(|(_, permit)| permit.is_some()) {
                    self.waitroom.stir(key);
                }
            }
            (Frees::Everything, Outcome::PolicyPut { changed: true, .. } | Outcome::PolicyDeleted { .. }) => {
                self.waitroom.stir_all();
            }
            _ => {}
        }
    }

    /// First out of the line, so that nothing is put to the cluster any more; then whatever was granted goes back.
    async fn leave_here(&self, withdraw: Withdraw, deadline: Deadline) -> Reply {
        self.waitroom.leave(&withdraw);
        self.decide_here(Command::Withdraw(withdraw), deadline, deadline).await
    }

    async fn look_here(&self, key: &Key, waiter: Option<u128>, deadline: Deadline) -> Reply {
        if let Err(refused) = self.proposer.confirmed(deadline).await {
            return refused;
        }
        // Without a timeline of its own (leadership was just lost) the state's own time is a lower bound all the same.
        let (now, view) = self.consensus.view(key, self.proposer.time().unwrap_or(Time::ZERO));
        let (waiting, position) = self.waitroom.standing(key, waiter);
        Reply::Looked(Look { now, key: view, waiting, position })
    }

    async fn rules_here(&self, name: Option<&str>, deadline: Deadline) -> Reply {
        if let Err(refused) = self.proposer.confirmed(deadline).await {
            return refused;
        }
        let (stored, revision) = self.consensus.policies(name);
        Reply::Rules(Rules { stored, revision })
    }
}

/// What a command may make room for.
enum Frees {
    Nothing,
    Key(Key),
    Keys(Vec<Key>),
    Everything,
}

impl Frees {
    fn of(command: &Command) -> Self {
        match command {
            Command::Release(held) => Self::Key(held.key.clone()),
            Command::Reset(key) => Self::Key(key.clone()),
            Command::Withdraw(withdraw) => Self::Keys(withdraw.keys.clone()),
            Command::PutPolicy { .. } | Command::DeletePolicy { .. } => Self::Everything,
            Command::Acquire(_) | Command::Several(_) | Command::Renew(_) => Self::Nothing,
        }
    }
}
