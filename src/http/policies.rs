//! `/policies` and `/policies/{name}`: stored rules.

use super::app::App;
use super::ask::{self, Refused, bad_request, refused};
use super::{acquire, answer, body, keys, limit, respond};
use crate::api::{Code, PoliciesResponse, PolicyDeleted, PolicyRequest, PolicyResponse, Problem};
use crate::limiter::{Member, Overrides};
use crate::node::Failure;
use crate::state::{Command, Condition, Outcome, Pattern, Policy, Stored, policy_name};
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use tokio::time::timeout;

/// All stored policies.
///
/// Linearizable.
#[utoipa::path(
    get,
    path = "/policies",
    tag = "policies",
    responses(
        (status = 200, description = "Sorted by name", body = PoliciesResponse),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    match timeout(app.options.request_timeout, app.upstream.rules(None)).await.unwrap_or_else(|_| Err(unseen())) {
        Ok(rules) => respond::json(&PoliciesResponse {
            policies: rules.stored.iter().map(written).collect(),
            revision: rules.revision,
        }),
        Err(failure) => respond::problem(&keys::unseen(failure)),
    }
}

/// One stored policy.
///
/// Linearizable. Its revision is also the `ETag`.
#[utoipa::path(
    get,
    path = "/policies/{name}",
    tag = "policies",
    params(("name" = String, Path, description = "1 to 64 letters, digits, `.`, `_` or `-`")),
    responses(
        (
            status = 200,
            description = "The policy",
            body = PolicyResponse,
            headers(("ETag" = String, description = "The revision, for `If-Match`"))
        ),
        (status = 400, description = "`bad_request`: the name", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "`no_policy`", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn get(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let name = match name(&uri) {
        Ok(name) => name,
        Err(problem) => return respond::problem(&problem),
    };
    let looked = timeout(app.options.request_timeout, app.upstream.rules(Some(&name))).await;
    match looked.unwrap_or_else(|_| Err(unseen())) {
        Ok(rules) => match rules.stored.first() {
            Some(stored) => tagged(stored.revision, respond::json(&written(stored))),
            None => respond::problem(&no_policy(&name)),
        },
        Err(failure) => respond::problem(&keys::unseen(failure)),
    }
}

/// Store a policy.
///
/// In force from its log entry on. What was granted stays granted. The same policy again changes nothing and keeps its
/// revision.
#[utoipa::path(
    put,
    path = "/policies/{name}",
    tag = "policies",
    request_body = PolicyRequest,
    params(
        ("name" = String, Path, description = "1 to 64 letters, digits, `.`, `_` or `-`"),
        ("If-Match" = Option<String>, Header, description = "Only if this revision is stored, or with `*` any"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if none is stored")
    ),
    responses(
        (
            status = 200,
            description = "The policy as it is stored",
            body = PolicyResponse,
            headers(("ETag" = String, description = "The revision, for `If-Match`"))
        ),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 409,
            description = "`policy_conflict`: another policy has the same pattern",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 412, description = "`revision_mismatch`", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "`too_large`: the body", body = Problem, content_type = "application/problem+json"),
        (
            status = 422,
            description = "`never`: a limit that can never grant; `too_many_policies`",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`: not applied",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 504, description = "`outcome_unknown`", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn put(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = match body::read(&parts, body, &app.options).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(&app.options),
    };
    let read = || Ok::<_, Refused>((name(&parts.uri)?, policy(&bytes)?, condition(&parts.headers)?));
    let (name, policy, condition) = match read() {
        Ok(read) => read,
        Err(problem) => return respond::problem(&problem),
    };
    let command = Command::PutPolicy { name: Arc::clone(&name), policy: policy.clone(), condition };
    match decide(&app, command).await {
        Ok(Outcome::PolicyPut { revision, .. }) => {
            tagged(revision, respond::json(&written(&Stored { name, policy, revision })))
        }
        Ok(other) => respond::problem(&refusal(&name, Some(&policy), &other)),
        Err(problem) => respond::problem(&problem),
    }
}

/// Remove a policy.
///
/// Keys that it matched go by the next best policy, or by what requests bring along.
#[utoipa::path(
    delete,
    path = "/policies/{name}",
    tag = "policies",
    params(
        ("name" = String, Path, description = "1 to 64 letters, digits, `.`, `_` or `-`"),
        ("If-Match" = Option<String>, Header, description = "Only if this revision is stored, or with `*` any")
    ),
    responses(
        (status = 200, description = "It is gone", body = PolicyDeleted),
        (status = 400, description = "`bad_request`: the name", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "`no_policy`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`revision_mismatch`", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`: not applied",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 504, description = "`outcome_unknown`", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn delete(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    let read = || Ok::<_, Refused>((name(&uri)?, condition(&headers)?));
    let (name, condition) = match read() {
        Ok(read) => read,
        Err(problem) => return respond::problem(&problem),
    };
    match decide(&app, Command::DeletePolicy { name: Arc::clone(&name), condition }).await {
        Ok(Outcome::PolicyDeleted { revision }) => {
            respond::json(&PolicyDeleted { deleted: true, name: name.to_string(), revision })
        }
        Ok(other) => respond::problem(&refusal(&name, None, &other)),
        Err(problem) => respond::problem(&problem),
    }
}

async fn decide(app: &App, command: Command) -> Result<Outcome, Box<Problem>> {
    let decided = timeout(app.options.request_timeout, app.upstream.decide(command)).await;
    match decided.unwrap_or_else(|_| Err(acquire::no_word())) {
        Ok(verdict) => Ok(verdict.outcome),
        Err(failure) => Err(Box::new(answer::failure_problem(failure))),
    }
}

fn refusal(name: &str, policy: Option<&Policy>, outcome: &Outcome) -> Problem {
    match outcome {
        Outcome::OtherRevision { found: Some(found) } => {
            Problem::new(Code::RevisionMismatch, format!("policy {name} has revision {found}"))
        }
        Outcome::OtherRevision { found: None } => {
            Problem::new(Code::RevisionMismatch, format!("there is no policy {name}"))
        }
        Outcome::PolicyConflict { with } => {
            let pattern = policy.map(|policy| policy.pattern.to_string()).unwrap_or_default();
            Problem::new(Code::PolicyConflict, format!("policy {with} has the pattern {pattern} already"))
        }
        Outcome::TooManyPolicies => {
            Problem::new(Code::TooManyPolicies, "as many policies are stored as may be; delete one first")
        }
        Outcome::NoPolicy => no_policy(name),
        other => {
            tracing::error!(?other, "a change of a policy was decided as something else");
            Problem::new(Code::Internal, "the cluster decided something else; the node's log says more")
        }
    }
}

fn no_policy(name: &str) -> Problem {
    Problem::new(Code::NoPolicy, format!("there is no policy {name}"))
}

fn unseen() -> Failure {
    Failure::Unknown { detail: "the node did not get a majority to answer in time".to_owned() }
}

fn tagged(revision: u64, mut response: Response) -> Response {
    if let Ok(value) = HeaderValue::try_from(format!("\"{revision}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

fn name(uri: &Uri) -> Result<Arc<str>, Refused> {
    let encoded = uri.path().strip_prefix("/policies/").unwrap_or_default();
    let text = percent_decode_str(encoded).decode_utf8_lossy();
    policy_name(&text).map_err(|error| bad_request(error.to_string()))
}

fn policy(bytes: &[u8]) -> Result<Policy, Refused> {
    let request: PolicyRequest = ask::parse(bytes, "a `match` and a `limit`")?;
    let pattern = Pattern::new(&request.pattern).map_err(|error| bad_request(format!("match: {error}")))?;
    let limit = limit::read(format_args!("limit"), &request.limit)?;
    let member = |word: &str| Member::ALL.into_iter().find(|member| member.as_str() == word);
    let overrides = request.overrides.iter().filter_map(|said| member(said.as_str()));
    Ok(Policy { pattern, limit, overrides: overrides.fold(Overrides::NONE, Overrides::with) })
}

fn written(stored: &Stored) -> PolicyResponse {
    PolicyResponse {
        name: stored.name.to_string(),
        pattern: stored.policy.pattern.to_string(),
        limit: limit::canonical(&stored.policy.limit),
        overrides: stored.policy.overrides.members().map(|member| member.as_str().to_owned()).collect(),
        revision: stored.revision,
    }
}

/// `If-Match: "7"`, `If-Match: *` or `If-None-Match: *`.
fn condition(headers: &HeaderMap) -> Result<Condition, Refused> {
    let one = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let value = values.next();
        if values.next().is_some() {
            return Err(bad_request(format!("{name}: given more than once")));
        }
        let text = |value: &HeaderValue| value.to_str().map(|text| text.trim().to_owned());
        value.map(text).transpose().map_err(|_| bad_request(format!("{name}: not text")))
    };
    match (one(&IF_MATCH)?.as_deref(), one(&IF_NONE_MATCH)?.as_deref()) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Exists),
        (None, Some("*")) => Ok(Condition::Absent),
        (Some(tag), None) => {
            let number = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(tag);
            match number.parse() {
                Ok(revision) => Ok(Condition::Revision(revision)),
                // A tag that no policy ever had matches none.
                Err(_) if tag.starts_with('"') && tag.len() > 1 && tag.ends_with('"') => Ok(Condition::Revision(0)),
                Err(_) => Err(bad_request(format!(
                    "If-Match: one revision such as \"7\", or *; this is {:?}",
                    respond::shortened(tag)
                ))),
            }
        }
        (None, Some(_)) => Err(bad_request("If-None-Match: only *")),
        (Some(_), Some(_)) => Err(refused(Code::BadRequest, "If-Match and If-None-Match do not go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_from_the_headers() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            condition(&headers).map_err(|problem| problem.detail)
        };
        assert_eq!(read(&[]), Ok(Condition::Always));
        assert_eq!(read(&[("if-match", "\"7\"")]), Ok(Condition::Revision(7)));
        assert_eq!(read(&[("if-match", "7")]), Ok(Condition::Revision(7)));
        assert_eq!(read(&[("if-match", "*")]), Ok(Condition::Exists));
        assert_eq!(read(&[("if-match", "\"abc\"")]), Ok(Condition::Revision(0)), "matches nothing");
        assert_eq!(read(&[("if-none-match", "*")]), Ok(Condition::Absent));
        assert!(read(&[("if-match", "W/\"7\"")]).is_err());
        assert!(read(&[("if-match", "\"7\", \"8\"")]).is_ok_and(|condition| condition == Condition::Revision(0)));
        assert!(read(&[("if-match", "7"), ("if-match", "8")]).unwrap_err().contains("more than once"));
        assert!(read(&[("if-match", "7"), ("if-none-match", "*")]).unwrap_err().contains("do not go together"));
    }

    #[test]
    fn a_policy_reads_back_as_it_was_written() {
        let body = br#"{"match":"github:*","limit":{"kind":"bucket","rate":"100/s","burst":50},"override":["burst"]}"#;
        let stored = Stored { name: "github".into(), policy: policy(body).unwrap(), revision: 7 };
        assert_eq!(
            serde_json::to_string(&written(&stored)).unwrap(),
            r#"{"name":"github","match":"github:*","limit":{"kind":"bucket","rate":"100/s","burst":50},"override":["burst"],"revision":7}"#
        );
        for (body, why) in [
            (&br#"{"match":"a*b*","limit":"1/s"}"#[..], "match: a pattern has one '*'"),
            (br#"{"match":"a","limit":"1/x"}"#, "limit: expected a unit"),
            (br#"{"match":"a","limit":"1/s","override":["colour"]}"#, "override"),
            (br#"{"limit":"1/s"}"#, "missing field `match`"),
        ] {
            let problem = policy(body).unwrap_err();
            assert!(problem.detail.contains(why), "{problem}");
        }
    }
}
