//! `quorate policy apply`: makes the stored policies what a file says, one change after the other.
//!
//! Invariants
//! - The whole file is checked, and the whole plan printed, before the first change is sent.
//! - Each change is made only if the policy is still as it was when the plan was made. The first one that fails ends it,
//!   and what was done by then is said.
//! - Applying the same file again takes up where this one ended.

use super::super::exit::{Exit, Failure};
use super::super::output::{self, Output};
use super::super::reach::Reach;
use super::plan::{Change, Plan, Step};
use super::{file, put};
use crate::api::Code;
use crate::client::{Client, Error, Precondition};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Most names in a list for people.
const NAMES_SHOWN_MAX: usize = 20;

/// Arguments of `quorate policy apply`.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    /// The policies, as YAML or JSON; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also delete policies that the file does not name
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    reach: Reach,
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was sent.
    Waiting,
    /// Done, at this revision where the answer said so.
    Done(Option<u64>),
    /// Sent, and nothing to do: to the nodes both mean the same.
    Same,
    /// Deleted to make room, and not stored again yet.
    Aside,
    /// Refused, or never decided: certainly not made.
    Failed,
    /// May or may not have been made.
    Unknown,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "not_applied",
            Self::Done(_) => "applied",
            Self::Same => "unchanged",
            Self::Aside => "deleted_for_a_moment",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let rules = file::read(&args.file)?;
    let client = args.reach.client()?;
    let stored = client.policies().await?;
    let plan = Plan::new(rules, stored.policies, args.prune).map_err(|found| Failure::error(found.join("\n")))?;
    let mut states = vec![State::Waiting; plan.changes.len()];
    if !output.is_json() && !plan.changes.is_empty() {
        match output::line(&plan.diff().join("\n")) {
            // Nobody reads it, and it is to be done all the same.
            Err(closed) if closed.exit == Exit::Done && !args.dry_run => {}
            written => written?,
        }
    }
    let failed = if args.dry_run { None } else { carry_out(&client, &plan, &mut states).await.err() };
    let Some((step, error)) = failed else {
        return output.data(&report(&plan, &states, args.dry_run), || summary(&plan, &states, args.dry_run));
    };
    let mut failure = Failure::from(error);
    failure.message = ended(&plan, &states, step, &failure.message);
    output::message(&failure.message);
    if output.is_json() {
        let mut report = report(&plan, &states, false);
        let code = failure.problem.as_ref().map_or(failure.exit.word(), |problem| problem.code.as_str());
        report["code"] = code.into();
        report["detail"] = failure.message.as_str().into();
        // Whether anybody reads it or not: it failed.
        let _ = output::line(&report.to_string());
    }
    Err(Failure::said(failure.exit))
}

/// Takes the steps in order up to the first that fails.
async fn carry_out(client: &Client, plan: &Plan, states: &mut [State]) -> Result<(), (Step, Error)> {
    for (number, step) in plan.steps.iter().enumerate() {
        let (Step::Put(at) | Step::Delete(at) | Step::Aside(at) | Step::Return(at)) = *step;
        let change = &plan.changes[at];
        match take(client, change, *step).await {
            Ok(revision) => {
                let before = change.before.as_ref().map(|before| before.revision);
                states[at] = match step {
                    Step::Aside(_) => State::Aside,
                    Step::Put(_) if before.is_some() && before == revision => State::Same,
                    _ => State::Done(revision),
                };
                let done = if states[at] == State::Same { "unchanged" } else { past(*step, change) };
                let revision = revision.map_or_else(String::new, |revision| format!(", revision {revision}"));
                let of = format!("({} of {})", number + 1, plan.steps.len());
                output::message(&format!("{} {done}{revision} {of}", change.name));
            }
            Err(error) => {
                states[at] = match (&error, step) {
                    (Error::OutcomeUnknown { .. }, _) => State::Unknown,
                    // It is still away, and that matters more.
                    (_, Step::Return(_)) => State::Aside,
                    _ => State::Failed,
                };
                return Err((*step, error));
            }
        }
    }
    Ok(())
}

/// One step: the revision it led to, where the answer said so.
async fn take(client: &Client, change: &Change, step: Step) -> Result<Option<u64>, Error> {
    let revision = change.before.as_ref().map(|before| before.revision);
    match (step, &change.after) {
        (Step::Put(_) | Step::Return(_), Some(wanted)) => {
            let seen = revision.filter(|_| matches!(step, Step::Put(_)));
            let precondition = seen.map_or(Precondition::Absent, Precondition::Revision);
            Ok(Some(put(client, &change.name, wanted, Some(precondition)).await?.revision))
        }
        _ => match client.delete_policy(&change.name, revision).await {
            Ok(removed) => Ok(removed.revision),
            // Somebody else was faster, and it is as it shall be.
            Err(Error::Refused(problem)) if problem.code == Code::NoPolicy => Ok(None),
            Err(error) => Err(error),
        },
    }
}

const fn past(step: Step, change: &Change) -> &'static str {
    match step {
        Step::Put(_) if change.before.is_none() => "created",
        Step::Put(_) => "changed",
        Step::Delete(_) => "deleted",
        Step::Aside(_) => "deleted for a moment",
        Step::Return(_) => "stored again",
    }
}

/// How many come, change and go.
fn counts(plan: &Plan, states: &[State]) -> [usize; 3] {
    let real = || plan.changes.iter().zip(states).filter(|(_, state)| **state != State::Same);
    let count = |is: fn(&Change) -> bool| real().filter(|(change, _)| is(change)).count();
    [
        count(|change| change.before.is_none()),
        count(|change| change.before.is_some() && change.after.is_some()),
        count(|change| change.after.is_none()),
    ]
}

fn summary(plan: &Plan, states: &[State], dry_run: bool) -> String {
    let [created, changed, deleted] = counts(plan, states);
    let unchanged = plan.unchanged + plan.changes.len() - created - changed - deleted;
    if plan.changes.is_empty() {
        let kept = if plan.kept == 0 { String::new() } else { format!(", {} not in the file", plan.kept) };
        return format!("nothing to change: {unchanged} unchanged{kept}");
    }
    let numbers = if dry_run {
        format!("dry run: {created} to create, {changed} to change, {deleted} to delete")
    } else {
        format!("{created} created, {changed} changed, {deleted} deleted")
    };
    format!("{numbers}, {unchanged} unchanged")
}

fn report(plan: &Plan, states: &[State], dry_run: bool) -> Value {
    let entry = |(change, state): (&Change, &State)| {
        let kind = match (&change.before, &change.after) {
            (None, _) => "create",
            (Some(_), Some(_)) => "update",
            (Some(_), None) => "delete",
        };
        let revision = if let State::Done(revision) = state { *revision } else { None };
        let word = if dry_run { "planned" } else { state.word() };
        json!({ "name": change.name, "change": kind, "state": word, "revision": revision,
            "before": change.before, "after": change.after })
    };
    let changes: Vec<_> = plan.changes.iter().zip(states).map(entry).collect();
    json!({ "dry_run": dry_run, "changes": changes, "unchanged": plan.unchanged, "kept": plan.kept })
}

/// What went wrong, and how far it had come by then.
fn ended(plan: &Plan, states: &[State], step: Step, why: &str) -> String {
    let (Step::Put(at) | Step::Delete(at) | Step::Aside(at) | Step::Return(at)) = step;
    let mut text = format!("{}: {why}", plan.changes[at].name);
    let names = |is: fn(&State) -> bool| {
        let names: Vec<_> = plan
            .changes
            .iter()
            .zip(states)
            .filter(|(_, state)| is(state))
            .map(|(change, _)| change.name.as_str())
            .collect();
        let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => None,
            count if count > NAMES_SHOWN_MAX => Some(format!("{shown} and {} more", count - NAMES_SHOWN_MAX)),
            _ => Some(shown),
        }
    };
    let applied = names(|state| matches!(state, State::Done(_) | State::Same)).unwrap_or_else(|| "none".to_owned());
    let _ = write!(text, "\napplied: {applied}");
    for (called, list) in [
        ("not applied", names(|state| matches!(state, State::Failed | State::Waiting))),
        ("may or may not be applied", names(|state| matches!(state, State::Unknown))),
        ("deleted to make room, and not stored again", names(|state| matches!(state, State::Aside))),
    ] {
        if let Some(list) = list {
            let _ = write!(text, "\n{called}: {list}");
        }
    }
    text.push_str("\napply the file again to compare with what is stored now, and do the rest");
    text
}
