//! A file of policies: YAML, or JSON where the first character is `{`.
//!
//! Invariants
//! - Everything is checked that can be checked without a node, before anything is sent; what is wrong is named with its place.
//! - A name stands once, and so does a pattern.
//! - Anchors and aliases are YAML's business and bounded; merge keys are refused, because which member wins would be a
//!   matter of taste.

use super::super::exit::Failure;
use super::super::limit;
use super::{name, pattern};
use crate::api::PolicyRequest;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_path_to_error::{Path as Place, Track};
use serde_saphyr::budget::BudgetBreach;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest file, in bytes.
const BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most policies in one file: as many as a cluster stores.
pub(super) const POLICIES_MAX: usize = 10_000;
/// Most things found wrong that are said at once.
const SAID_MAX: usize = 20;
/// Most events of a YAML parser: every node of the largest sensible file, and a bound on what aliases stand for.
const YAML_EVENTS_MAX: usize = 2_000_000;
/// Deepest nesting of a YAML file: a ramp in a limit in a policy is 5 deep.
const YAML_DEPTH_MAX: usize = 16;

/// Policies by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(pub(super) BTreeMap<String, PolicyRequest>);

/// Reads a file, or stdin for `-`.
pub(super) fn read(path: &Path) -> Result<Rules, Failure> {
    let stdin = path == Path::new("-");
    let called = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    let bytes = if stdin { bytes(io::stdin().lock()) } else { File::open(path).and_then(bytes) };
    let bytes = bytes.map_err(|error| Failure::error(format!("cannot read {called}: {error}")))?;
    let text = text(&bytes).map_err(|error| Failure::usage(format!("{called}: {error}")))?;
    let rules = parse(text).map_err(|error| Failure::usage(format!("{called}{error}")))?;
    let problems = problems(&rules);
    if problems.is_empty() {
        return Ok(rules);
    }
    let mut lines: Vec<_> = problems.iter().take(SAID_MAX).map(|problem| format!("{called}: {problem}")).collect();
    if problems.len() > SAID_MAX {
        lines.push(format!("{called}: and {} more", problems.len() - SAID_MAX));
    }
    Err(Failure::usage(lines.join("\n")))
}

/// One byte more than allowed, so that too much can be told from just enough.
fn bytes(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("larger than {} MiB", BYTES_MAX / 1024 / 1024));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 from byte {} on", error.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let says_something = |line: &str| !matches!(line.trim(), "" | "---" | "...") && !line.trim().starts_with('#');
    if !text.lines().any(says_something) {
        return Err("empty; a file without policies says `policies: {}`".to_owned());
    }
    Ok(text)
}

/// The error begins with the place: `:3:5: policies.github: …`.
fn parse(text: &str) -> Result<Rules, String> {
    let mut track = Track::new();
    let (read, line, column) = if text.trim_start().starts_with('{') {
        let mut json = serde_json::Deserializer::from_str(text);
        let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
        match Document::deserialize(tracked).and_then(|document| json.end().map(|()| document)) {
            Ok(document) => return Ok(document.policies),
            Err(error) => (without_place(&error.to_string()), error.line() as u64, error.column() as u64),
        }
    } else {
        let yaml = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), |yaml| {
            Document::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
        });
        match yaml {
            Ok(document) => return Ok(document.policies),
            Err(error) => {
                let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
                (in_our_words(&error), line, column)
            }
        }
    };
    Err(format!(":{line}:{column}: {}{read}", spoken(&track.path())))
}

fn yaml_options() -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! {
        max_events: YAML_EVENTS_MAX,
        max_nodes: YAML_EVENTS_MAX,
        max_depth: YAML_DEPTH_MAX,
        max_documents: 1,
        // One limit that a thousand policies share is a good use of an anchor. What they stand for is bounded below.
        enforce_alias_anchor_ratio: false,
    };
    serde_saphyr::options! {
        budget: budget,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: YAML_EVENTS_MAX / 10 },
        strict_booleans: true,
        with_snippet: false,
    }
}

/// The parser speaks to programmers where it can be set otherwise; whoever wrote the file cannot.
fn in_our_words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as Yaml;
    match error {
        Yaml::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} stands here twice"),
        Yaml::DuplicateMappingKey { key: None, .. } => "this stands here twice".to_owned(),
        Yaml::MergeKeyNotAllowed { .. } => "merge keys (<<) are not supported".to_owned(),
        Yaml::NullIntoString { .. } => "expected a text, found nothing".to_owned(),
        Yaml::InvalidScalar { ty, .. } if ty.starts_with(['u', 'i']) => "expected a whole number".to_owned(),
        Yaml::Budget { breach: BudgetBreach::Documents { .. }, .. } | Yaml::MultipleDocuments { .. } => {
            "a second document begins here; all policies go into one".to_owned()
        }
        Yaml::Budget { breach: BudgetBreach::Depth { .. }, .. } => "nested too deeply".to_owned(),
        other => without_place(&other.to_string()),
    }
}

/// Both parsers end with a place of their own; it is said once, in front.
fn without_place(message: &str) -> String {
    message.rfind(" at line ").map_or(message, |at| &message[..at]).to_owned()
}

fn spoken(place: &Place) -> String {
    let place = place.to_string();
    // A question mark stands for a name that could not be read.
    match place.trim_end_matches('?').trim_end_matches('.') {
        "" => String::new(),
        place => format!("{place}: "),
    }
}

/// What a parser cannot know.
fn problems(rules: &Rules) -> Vec<String> {
    let mut found = Vec::new();
    let mut holders = BTreeMap::new();
    for (called, policy) in &rules.0 {
        let mut check = |result: Result<(), String>| {
            if let Err(error) = result {
                found.push(format!("policies.{called}: {error}"));
            }
        };
        check(name(called).map(|_| ()));
        check(pattern(&policy.pattern).map(|_| ()));
        check(limit::check(&policy.limit).map_err(|error| format!("limit: {error}")));
        check(match holders.insert(&policy.pattern, called) {
            Some(other) => Err(format!("has the same match as {other}, {:?}", policy.pattern)),
            None => Ok(()),
        });
    }
    found
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    policies: Rules,
}

/// By hand, because a map would quietly take the last of two entries with one name. And any value is taken first, because
/// in YAML nothing at all is a good map, and a file that ends too soon must not be one that deletes everything.
impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RulesVisitor)
    }
}

struct RulesVisitor;

impl<'de> Visitor<'de> for RulesVisitor {
    type Value = Rules;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("policies by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Rules, A::Error> {
        let mut rules = Rules::default();
        while let Some(called) = members.next_key::<String>()? {
            if rules.0.len() >= POLICIES_MAX {
                return Err(A::Error::custom(format_args!("more than {POLICIES_MAX} policies")));
            }
            match rules.0.entry(called) {
                Entry::Occupied(taken) => {
                    return Err(A::Error::custom(format_args!("two policies are called {:?}", taken.key())));
                }
                Entry::Vacant(free) => free.insert(members.next_value()?),
            };
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Override;

    const YAML: &str = "
# Ours.
policies:
  github:
    match: \"github:*\"
    limit: 1/6s
  search:
    match: search
    limit: {kind: spacing, rate: 100/s, max_reserved: 50}
    override: [max_reserved]
";

    fn rules(text: &str) -> Result<Rules, String> {
        super::text(text.as_bytes()).and_then(parse).and_then(|rules| match problems(&rules) {
            found if found.is_empty() => Ok(rules),
            found => Err(found.join("; ")),
        })
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = rules(YAML).unwrap();
        assert_eq!(yaml.0.len(), 2);
        assert_eq!(yaml.0["search"].overrides, [Override::MaxReserved].into());
        let json = r#" {"policies": {"github": {"match": "github:*", "limit": "1/6s"}, "search":
            {"match": "search", "limit": {"kind": "spacing", "rate": "100/s", "max_reserved": 50}, "override": ["max_reserved"]}}}"#;
        assert_eq!(rules(json), Ok(yaml));
        assert_eq!(rules("policies: {}"), Ok(Rules::default()));
        assert_eq!(rules("\u{feff}---\npolicies: {}\n"), Ok(Rules::default()));
    }

    /// A word is a word where a word belongs, whatever YAML would make of it elsewhere.
    #[test]
    fn texts_need_no_quotes() {
        let read = rules("policies: {no: {match: 1.0, limit: 1/s}, 12: {match: yes, limit: \"2/s\"}}").unwrap();
        assert_eq!(read.0["no"].pattern, "1.0");
        assert_eq!(read.0["12"].pattern, "yes");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let mut unexpected = Vec::new();
        for (text, wanted) in [
            ("", "empty"),
            ("# nothing\n---\n\n", "empty"),
            ("policies:\n", "expected policies by name"),
            ("[]", ":1:1: "),
            ("just words", ":1:1: "),
            ("polices: {}", ":1:1: polices: unknown field `polices`, expected"),
            ("policies: {}\nmore: 1", ":2:1: more: unknown field `more`"),
            ("policies:\n  a:\n    match: a\n    limt: 1/s\n", ":4:5: policies.a.limt: unknown field `limt`"),
            ("policies:\n  a:\n    match: a\n", "policies.a: missing field `limit`"),
            ("policies:\n  a:\n    match: a\n    limit: 5\n", ":4:5: policies.a.limit: invalid type: integer `5`"),
            ("policies:\n  a: {match: a, limit: {rate: 1/s, brst: 5}}", "policies.a.limit.brst: unknown field `brst`"),
            (
                "policies:\n  a: {match: a, limit: 1/s, override: [cost]}",
                "policies.a.override[0]: no member of a limit",
            ),
            (
                "policies:\n  a: {match: a, limit: 1/s}\n  a: {match: b, limit: 1/s}\n",
                ":3:3: policies: \"a\" stands here twice",
            ),
            ("policies:\n  a: {match: a, match: b, limit: 1/s}\n", ":2:17: policies.a: \"match\" stands here twice"),
            ("policies:\n  a: {match: , limit: 1/s}\n", "policies.a.match: expected a text, found nothing"),
            (
                "policies:\n  a: {match: a, limit: {rate: 1/s, max_reserved: -1}}\n",
                "max_reserved: expected a whole number",
            ),
            ("policies:\n\ta: 1", ":2:"),
            ("policies: {}\n---\npolicies: {}", ":2:1: a second document begins here"),
            (
                "policies:\n  a: &x {match: a, limit: 1/s}\n  b: {<<: *x, match: b}",
                ":3:7: policies.b: merge keys (<<) are not supported",
            ),
            ("policies: {a: *nowhere}", ":1:"),
            (
                "{\"policies\": {\"a\": {\"match\": \"a\", \"limt\": 1}}}",
                ":1:40: policies.a.limt: unknown field `limt`",
            ),
            (
                "{\"policies\": {\"a\": {\"match\": \"a\", \"limit\": \"1/s\"},\n\"a\": 1}}",
                ":2:3: policies: two policies are called \"a\"",
            ),
            ("{\"policies\": {}} x", ":1:18: trailing characters"),
            ("{policies: {}}", ":1:2: key must be a string"),
        ] {
            let error = rules(text).map_or_else(|error| error, |rules| format!("read as {rules:?}"));
            if !error.contains(wanted) {
                unexpected.push(format!("{text:?}: {error}"));
            }
        }
        assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    }

    #[test]
    fn what_no_parser_can_know_is_said_all_at_once() {
        let text = "policies:\n  a b: {match: a, limit: 1/s}\n  b: {match: a, limit: 1/6}\n  c: {match: \"\", limit: {rate: 1/s, start_window: x}}\n";
        let error = rules(text).unwrap_err();
        for wanted in [
            "policies.a b: a name has letters",
            "policies.b: limit: expected a unit",
            "policies.b: has the same match as a b, \"a\"",
            "policies.c: \"\" matches no key",
            "policies.c: limit: start_window: expected a number",
        ] {
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    fn many(count: usize) -> String {
        let entry = |at: usize| {
            format!("  p{at}: {{match: \"k{at}\", limit: {{rate: 1/s, max_reserved: 3}}, override: [rate, burst]}}\n")
        };
        std::iter::once("policies:\n".to_owned()).chain((0..count).map(entry)).collect()
    }

    #[test]
    fn bounds_are_met_exactly() {
        assert_eq!(rules(&many(POLICIES_MAX)).unwrap().0.len(), POLICIES_MAX);
        assert!(rules(&many(POLICIES_MAX + 1)).unwrap_err().contains("more than 10000 policies"));
        let padding = |size: u64| format!("policies: {{}}\n#{}", "x".repeat(usize::try_from(size).unwrap() - 14));
        assert_eq!(rules(&padding(BYTES_MAX)), Ok(Rules::default()));
        assert_eq!(rules(&padding(BYTES_MAX + 1)), Err("larger than 4 MiB".to_owned()));
        assert_eq!(super::text(b"policies: \xff"), Err("not UTF-8 from byte 10 on".to_owned()));
    }

    #[test]
    fn an_anchor_may_be_shared_by_all_but_not_explode() {
        let shared = (0..5_000).map(|at| format!("  p{at}: {{match: k{at}, limit: *l}}\n"));
        let text: String =
            std::iter::once("policies:\n  first: {match: k, limit: &l {rate: 1/s, max_reserved: 3}}\n".to_owned())
                .chain(shared)
                .collect();
        assert_eq!(rules(&text).unwrap().0.len(), 5_001);
        let mut bomb = "policies:\n  a: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for at in 1..30 {
            let refer = format!("*a{}, ", at - 1).repeat(9);
            bomb += &["  b", &at.to_string(), ": &a", &at.to_string(), " [", &refer, "]\n"].concat();
        }
        assert!(rules(&bomb).is_err());
        assert!(rules(&format!("policies: {}", "[".repeat(100_000))).is_err());
        assert!(rules(&"{\"policies\":".repeat(100_000)).is_err());
    }
}
