//! `quorate policy`: the stored rules, one at a time or a whole file of them.

mod apply;
mod file;
mod plan;

use super::exit::Failure;
use super::limit;
use super::output::{Output, columns};
use super::reach::Reach;
use crate::api::{Code, Limit, Override, PolicyRequest, PolicyResponse};
use crate::client::{Client, Error, Precondition};
use crate::limiter::Key;
use std::fmt::Write as _;

/// Longest name of a policy, in bytes.
const NAME_BYTES_MAX: usize = 64;

// Texts with words that a doc comment would want in backticks, which a terminal would show.
const LIMIT_HELP: &str = r#"The limit: 1/6s, 10/s, 100/1m, or an object such as '{"rate":"1/6s","max_reserved":3}'"#;
const OVERRIDE_HELP: &str =
    "Members of the limit that a request may bring itself, such as max_reserved,start_window; limit means all of them";

/// The subcommands of `quorate policy`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show one policy, or all
    Get(GetArgs),
    /// Store a policy, in place of the one of this name if there is one
    Set(SetArgs),
    /// Delete a policy
    Rm(RmArgs),
    /// Make the stored policies what a file says
    Apply(apply::Args),
}

/// Arguments of `quorate policy get`.
#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    /// The policy [default: all of them]
    #[arg(value_parser = name)]
    name: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// Arguments of `quorate policy set`.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// What to call it: letters, digits, dots, underscores and hyphens
    #[arg(value_parser = name)]
    name: String,
    /// Which keys it is for: a key, a prefix that ends in *, or * alone
    #[arg(long = "match", value_name = "PATTERN", value_parser = pattern)]
    pattern: String,
    #[arg(long, value_parser = limit::read, help = LIMIT_HELP)]
    limit: Limit,
    #[arg(long = "override", value_name = "MEMBERS", value_delimiter = ',', help = OVERRIDE_HELP)]
    overrides: Vec<Override>,
    /// Only if the policy has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Only if there is no policy of this name
    #[arg(long, conflicts_with = "if_match")]
    create: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Arguments of `quorate policy rm`.
#[derive(Debug, clap::Args)]
pub(super) struct RmArgs {
    /// The policy
    #[arg(value_parser = name)]
    name: String,
    /// Only if the policy has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(command: &Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Get(GetArgs { name: Some(name), reach }) => {
            let policy = reach.client()?.policy(name).await?;
            output.data(&policy, || describe(&policy))
        }
        Command::Get(GetArgs { name: None, reach }) => {
            let answer = reach.client()?.policies().await?;
            output.data(&answer, || table(&answer.policies))
        }
        Command::Set(args) => set(args, output).await,
        Command::Rm(args) => rm(args, output).await,
        Command::Apply(args) => apply::run(args, output).await,
    }
}

async fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let overrides = args.overrides.iter().copied().collect();
    let wanted = PolicyRequest { overrides, ..PolicyRequest::new(&args.pattern, args.limit.clone()) };
    let precondition = match (args.if_match, args.create) {
        (Some(revision), _) => Some(Precondition::Revision(revision)),
        (None, true) => Some(Precondition::Absent),
        (None, false) => None,
    };
    let stored = put(&args.reach.client()?, &args.name, &wanted, precondition).await;
    let stored = stored.map_err(|error| explained(error, &args.name))?;
    output.data(&stored, || describe(&stored))
}

async fn rm(args: &RmArgs, output: Output) -> Result<(), Failure> {
    let removed = args.reach.client()?.delete_policy(&args.name, args.if_match).await;
    let removed = removed.map_err(|error| explained(error, &args.name))?;
    let json = serde_json::json!({ "deleted": true, "name": removed.name, "revision": removed.revision });
    output.data(&json, || format!("policy {}: deleted", removed.name))
}

/// Stores a policy. The client compares word for word; here it is known which words mean the same.
async fn put(
    client: &Client,
    name: &str,
    wanted: &PolicyRequest,
    precondition: Option<Precondition>,
) -> Result<PolicyResponse, Error> {
    match client.put_policy(name, wanted, precondition).await {
        Err(unknown @ Error::OutcomeUnknown { .. }) => match client.policy(name).await {
            Ok(stored) if differences(&stored, wanted).is_empty() => Ok(stored),
            _ => Err(unknown),
        },
        settled => settled,
    }
}

fn explained(error: Error, name: &str) -> Failure {
    let changed = error.problem().is_some_and(|problem| problem.code == Code::RevisionMismatch);
    let unknown = matches!(error, Error::OutcomeUnknown { .. });
    let mut failure = Failure::from(error);
    if changed || unknown {
        let _ = write!(failure.message, "\nquorate policy get {name} shows how it stands");
    }
    failure
}

/// What is different, as `member: before -> after`.
fn differences(stored: &PolicyResponse, wanted: &PolicyRequest) -> Vec<String> {
    let mut found = Vec::new();
    if stored.pattern != wanted.pattern {
        found.push(format!("match: {} -> {}", stored.pattern, wanted.pattern));
    }
    if !limit::same(&stored.limit, &wanted.limit) {
        found.push(format!("limit: {} -> {}", limit::shown(&stored.limit), limit::shown(&wanted.limit)));
    }
    let mut before: Vec<_> = stored.overrides.iter().map(String::as_str).collect();
    before.sort_unstable();
    let mut after: Vec<_> = wanted.overrides.iter().map(|member| member.as_str()).collect();
    after.sort_unstable();
    if before != after {
        found.push(format!("override: {} -> {}", list(&before), list(&after)));
    }
    found
}

fn list(words: &[&str]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(",") }
}

fn describe(policy: &PolicyResponse) -> String {
    let overrides: Vec<_> = policy.overrides.iter().map(String::as_str).collect();
    format!(
        "policy    {}\nmatch     {}\nlimit     {}\noverride  {}\nrevision  {}",
        policy.name,
        policy.pattern,
        limit::shown(&policy.limit),
        list(&overrides),
        policy.revision
    )
}

fn table(policies: &[PolicyResponse]) -> String {
    if policies.is_empty() {
        return "no policies are stored".to_owned();
    }
    let row = |policy: &PolicyResponse| {
        let overrides: Vec<_> = policy.overrides.iter().map(String::as_str).collect();
        let limit = limit::shown(&policy.limit);
        [policy.name.clone(), policy.pattern.clone(), limit, list(&overrides), policy.revision.to_string()]
    };
    let header = ["NAME", "MATCH", "LIMIT", "OVERRIDE", "REVISION"].map(str::to_owned);
    columns(&std::iter::once(header).chain(policies.iter().map(row)).collect::<Vec<_>>()).join("\n")
}

/// A name as the nodes take it. Dots alone would be directories to whatever reads URLs.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes, this one has {}", text.len()));
    }
    if let Some(wrong) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        return Err(format!("a name has letters, digits, dots, underscores and hyphens, this one has {wrong:?}"));
    }
    if matches!(text, "." | "..") {
        return Err("a name is not made of dots alone".to_owned());
    }
    Ok(text.to_owned())
}

/// A pattern whose part before the `*` could be a key. The nodes judge the rest.
fn pattern(text: &str) -> Result<String, String> {
    let prefix = text.strip_suffix('*').unwrap_or(text);
    if text != "*" {
        Key::new(prefix).map_err(|error| format!("{text:?} matches no key: {error}"))?;
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(pattern: &str, limit: &str, overrides: &[&str]) -> PolicyResponse {
        PolicyResponse {
            name: "p".to_owned(),
            pattern: pattern.to_owned(),
            limit: limit::read(limit).unwrap(),
            overrides: overrides.iter().map(|word| (*word).to_owned()).collect(),
            revision: 7,
        }
    }

    #[test]
    fn only_what_means_something_else_is_a_difference() {
        let mut wanted = PolicyRequest::new("p:*", limit::read("60/60s").unwrap());
        wanted.overrides.extend([Override::Rate, Override::Burst]);
        assert_eq!(differences(&stored("p:*", "60/1m", &["rate", "burst"]), &wanted), [""; 0]);
        assert_eq!(
            differences(&stored("p", "1/6s", &["limit"]), &wanted),
            ["match: p -> p:*", "limit: 1/6s -> 60/60s", "override: limit -> burst,rate"]
        );
        assert_eq!(differences(&stored("p:*", "60/1m", &[]), &wanted), ["override: none -> burst,rate"]);
    }

    #[test]
    fn names_and_patterns_are_checked() {
        for good in ["a", "github.api_v2-eu", "...", &"x".repeat(64)] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a b", "a/b", "ü", "a*", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        for good in ["*", "a", "a:*", "a*b", &"x".repeat(256)] {
            assert_eq!(pattern(good).as_deref(), Ok(good));
        }
        for bad in ["", "a\n*", &"x".repeat(257)] {
            assert!(pattern(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_table_lines_up() {
        assert_eq!(
            table(&[stored("github:*", "1/6s", &[]), stored("x", "1/s", &["rate", "burst"])]),
            "NAME  MATCH     LIMIT  OVERRIDE    REVISION\n\
             p     github:*  1/6s   none        7\n\
             p     x         1/s    rate,burst  7"
        );
    }
}
