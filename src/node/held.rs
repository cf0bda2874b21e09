//! A request whose answer is held until its slot has come.
//!
//! It waits in line at the leader if there is no place for it, survives changes of the leader under its own id, and waits out
//! the time to its slot here. Whoever drops it on the way, because the client has gone or the node goes down, gives back what
//! it has.

use super::forward::Reply;
use super::handle::Handle;
use super::search::{Attempt, Inquiry, Search, Task};
use super::verdict::{Failure, Refusal, Verdict};
use crate::clock::{Deadline, Stopwatch};
use crate::limiter::Span;
use crate::limits::{LEADER_WAIT_IN_LINE_MS, LEADER_WAIT_MS};
use crate::metric_names;
use crate::state::{Acquire, Outcome, Withdraw};
use std::time::Duration;
use tokio::time::sleep;

/// One question to the leader lasts no longer than this; then it is asked again under the same id.
const ASKED_MAX: Duration = Duration::from_secs(3_600);
const LEADER_PATIENCE: Duration = Duration::from_millis(LEADER_WAIT_IN_LINE_MS);
const LEADER_WAIT: Duration = Duration::from_millis(LEADER_WAIT_MS);
/// Whoever was with a leader for longer than this stood in its line.
const IN_LINE_FOR: Duration = Duration::from_millis(100);
/// How long to try to give back what nobody waits for any more. Past it the slot is wasted, which is the safe side.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// A pause between two attempts to do so.
const LEAVE_PAUSE: Duration = Duration::from_millis(200);

/// A request on its way.
pub(super) struct Held<'a> {
    pub(super) handle: &'a Handle,
    pub(super) acquire: Acquire,
    pub(super) leaving: Leaving,
}

impl Held<'_> {
    pub(super) async fn run(self) -> Result<Verdict, Failure> {
        let Held { handle, acquire, leaving } = self;
        let mut draining = handle.shared.draining.subscribe();
        let until = acquire.terms.max_wait.map(|wait| Deadline::after(Duration::from_nanos(wait.0)));
        let work = async {
            let (mut verdict, doubt) = in_line(handle, &acquire, until).await?;
            if let Outcome::Granted(grant) = &verdict.outcome {
                let wait = verdict.wait(grant);
                metrics::gauge!(metric_names::HELD).increment(1.0);
                let _held = OnDrop(|| metrics::gauge!(metric_names::HELD).decrement(1.0));
                let watch = Stopwatch::start();
                sleep(Duration::from_nanos(wait.0)).await;
                // The slot has come; and if that took much longer, its start window may have closed.
                let waited = Span(u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX)).max(wait);
                verdict.at = verdict.at.after(waited);
                return Ok((verdict, None));
            }
            Ok((verdict, doubt))
        };
        let told_to_go = async { draining.wait_for(|draining| *draining).await.is_ok() };
        let done = tokio::select! {
            biased;
            done = work => Some(done),
            _ = told_to_go => None,
        };
        match done {
            // Without an answer nobody holds anything: what may have been granted goes back.
            Some(Err(failure)) => Err(failure),
            // Refused, but an earlier attempt was lost on the way: once that is withdrawn, nothing was consumed for certain.
            Some(Ok((verdict, Some(detail)))) => match leaving.now().await {
                Ok(()) => Ok(verdict),
                Err(_) => Err(Failure::Unknown { detail }),
            },
            Some(Ok((verdict, None))) => {
                leaving.stay();
                Ok(verdict)
            }
            None => Err(leaving.now().await.err().unwrap_or_else(going_down)),
        }
    }
}

/// Waits until the leader has decided. Comes with what is not known of an earlier attempt, if there is such a thing.
async fn in_line(
    handle: &Handle,
    acquire: &Acquire,
    until: Option<Deadline>,
) -> Result<(Verdict, Option<String>), Failure> {
    let mut doubt = None;
    let mut search = Search::new(&handle.shared);
    // Nobody waits for a leader much longer than for a permit.
    let patience = || until.map_or(LEADER_PATIENCE, |until| until.remaining().clamp(LEADER_WAIT, LEADER_PATIENCE));
    search.renew(patience());
    let since = Stopwatch::start();
    // Whatever leaders say, nobody waits longer for an answer than a request takes that does not wait at all.
    let given_up = until.map(|until| Deadline::after(until.remaining() + handle.shared.request_timeout));
    loop {
        let asked = Stopwatch::start();
        let asked_max = Deadline::after(ASKED_MAX);
        let deadline = given_up.map_or(asked_max, |given_up| given_up.min(asked_max));
        match search.attempt(&Task::Ask(Inquiry::Wait(acquire, since, until)), deadline).await {
            Attempt::Done(Reply::Decided(verdict)) => {
                return Ok((verdict, doubt));
            }
            Attempt::Done(_) => doubt = Some("the leader answered another question".to_owned()),
            Attempt::Unknown(detail) => {
                doubt = Some(detail.clone());
                search.failed(Refusal::NoLeader, detail);
                // There was a leader, and it had the request: the search for the next one begins now.
                search.renew(patience());
            }
            Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
            Attempt::Again(refusal, detail) => {
                // The same for one that had it in line for a while and sent it away because it does not lead any more. One that
                // has no majority all the time says something else.
                if refusal == Refusal::NoLeader && asked.elapsed() > IN_LINE_FOR {
                    search.renew(patience());
                }
                search.failed(refusal, detail);
            }
        }
        if let Err(failure) = search.again(deadline).await {
            return Err(doubt.map_or(failure, |detail| Failure::Unknown { detail }));
        }
    }
}

fn going_down() -> Failure {
    let detail = "this node is going down; what was reserved was given back".to_owned();
    Failure::Refused { refusal: Refusal::ShuttingDown, detail, retry_after: Span::from_millis(100) }
}

/// Gives back what a request has when it is dropped, unless it was answered.
pub(super) struct Leaving {
    handle: Handle,
    withdraw: Option<Withdraw>,
}

impl Leaving {
    pub(super) fn new(handle: &Handle, acquire: &Acquire) -> Self {
        let keys = acquire.wanted().map(|wanted| wanted.key.clone()).collect();
        let withdraw = acquire.identity.map(|identity| Withdraw { id: identity.id, claim: acquire.claim, keys });
        Self { handle: handle.clone(), withdraw }
    }

    /// The request is answered: what it has is the client's.
    fn stay(mut self) {
        self.withdraw = None;
    }

    /// Gives back now. An error means that nobody knows.
    async fn now(mut self) -> Result<(), Failure> {
        let Some(withdraw) = self.withdraw.take() else { return Ok(()) };
        if leave(&self.handle, &withdraw, self.handle.shared.request_timeout).await {
            return Ok(());
        }
        Err(Failure::Unknown { detail: "what was reserved could not be given back in time".to_owned() })
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(withdraw) = self.withdraw.take() else { return };
        let handle = self.handle.clone();
        // Without a runtime the process is at its end, and the slot is wasted.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { leave(&handle, &withdraw, LEAVE_WITHIN).await });
        }
    }
}

/// Asks until the cluster has decided, or time is up.
async fn leave(handle: &Handle, withdraw: &Withdraw, within: Duration) -> bool {
    let all = Deadline::after(within);
    loop {
        let deadline = Deadline::after(handle.shared.request_timeout.min(all.remaining()));
        let search = Search::new(&handle.shared);
        if let Attempt::Done(_) = search.attempt(&Task::Ask(Inquiry::Leave(withdraw)), deadline).await {
            return true;
        }
        if all.remaining() < LEAVE_PAUSE || handle.shared.is_closed() {
            return false;
        }
        sleep(LEAVE_PAUSE).await;
    }
}

/// Runs something when it goes out of scope, in whatever way.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
