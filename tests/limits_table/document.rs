//! Reads the document: its table, its examples, and the tests that it names.

use quorate::api;
use quorate::http::limit_of;
use quorate::limiter::{Limit, Span};
use quorate::limits;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENT: &str = include_str!("../../docs/LIMITS.md");
const TABLE: &str = include_str!("table.rs");

/// One line of the table "What you had".
pub(crate) struct Row {
    /// The test that shows it.
    pub(crate) test: String,
    /// The limit in JSON; several where the line is a list.
    pub(crate) limits: Vec<Value>,
}

/// All lines of the table, in order.
pub(crate) fn rows() -> Vec<Row> {
    let (_, section) = DOCUMENT.split_once("\n## What you had\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    lines.map(row).collect()
}

fn row(line: &str) -> Row {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [_, _, test, limit] = cells[..] else { panic!("a line has four cells: {line}") };
    let code = |cell: &str| cell.trim_matches('`').to_owned();
    let limits = match serde_json::from_str(&code(limit)).expect(line) {
        Value::Array(limits) => limits,
        limit => vec![limit],
    };
    Row { test: code(test), limits }
}

/// What a limit in JSON means to a node.
pub(crate) fn read(limit: &Value) -> Limit {
    let said: api::Limit = serde_json::from_value(limit.clone()).expect("the shape of a limit");
    limit_of(&said).unwrap_or_else(|problem| panic!("{limit}: {}", problem.detail))
}

/// The limits of the line that this test shows.
pub(crate) fn limits(test: &str) -> Vec<Limit> {
    let row = rows().into_iter().find(|row| row.test == test).unwrap_or_else(|| panic!("no line names {test}"));
    row.limits.iter().map(read).collect()
}

/// Every limit that stands anywhere in the document: in the table, and in the examples that are JSON.
pub(crate) fn all_limits() -> Vec<Value> {
    let mut all: Vec<_> = rows().into_iter().flat_map(|row| row.limits).collect();
    for (index, block) in DOCUMENT.split("```").enumerate() {
        let Some(json) = block.strip_prefix("json\n").filter(|_| index % 2 == 1) else { continue };
        for value in serde_json::Deserializer::from_str(json).into_iter::<Value>() {
            find(&value.unwrap_or_else(|error| panic!("{error} in {json}")), &mut all);
        }
    }
    all
}

/// An example is a limit, or has one somewhere as `limit`.
fn find(value: &Value, all: &mut Vec<Value>) {
    match value {
        Value::Object(members) if members.contains_key("kind") || members.contains_key("rate") => {
            all.push(value.clone());
        }
        Value::Object(members) => {
            for (name, member) in members {
                if name == "limit" { all.push(member.clone()) } else { find(member, all) }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| find(value, all)),
        _ => {}
    }
}

#[test]
fn every_line_of_the_table_has_its_test_and_every_test_its_line() {
    let named: Vec<_> = rows().into_iter().map(|row| row.test).collect();
    let is_test = |line: &&str| *line == "#[test]" || line.starts_with("#[tokio::test");
    let lines: Vec<_> = TABLE.lines().collect();
    let tests: Vec<_> = lines
        .windows(2)
        .filter(|pair| is_test(&pair[0]))
        .filter_map(|pair| pair[1].trim_start_matches("async ").strip_prefix("fn ")?.split('(').next())
        .collect();
    assert_eq!(named, tests, "the lines of docs/LIMITS.md and the tests of table.rs, in order");
    assert!(named.len() > 20, "the table was not found");
}

#[test]
fn every_example_is_a_limit() {
    let all = all_limits();
    assert!(all.len() > rows().len() + 5, "the examples were not found");
    for limit in all {
        read(&limit);
    }
}

/// Every bound that the document tells is the one in `src/limits.rs`.
#[test]
fn the_bounds_are_those_of_the_code() {
    let counts = [
        ("`N` is at most {}", limits::RATE_COUNT_MAX),
        ("`cost` (1 to {})", limits::COST_MAX),
        ("| `max_reserved` | 10 | 0 to {};", limits::MAX_RESERVED_MAX.into()),
        ("| `max_reserved` | 0 | 0 to {};", limits::MAX_RESERVED_MAX.into()),
        ("| `max_reserved` | {} | 0 to", limits::MAX_RESERVED_DEFAULT.into()),
        ("| `burst` | needed | 1 to {};", limits::BURST_MAX),
        ("divides `T` into at most {} ", limits::WINDOW_CELLS_MAX),
        ("| `max` | needed | 1 to {};", limits::IN_FLIGHT_MAX),
        ("up to {} such holes", limits::HOLES_MAX as u64),
        ("tries the first {} of them", limits::HOLES_TRIED_MAX as u64),
        ("drifts by up to {} ppm", limits::DRIFT_PPM),
        ("At most {} wait over all keys", limits::WAITERS_MAX as u64),
        ("2 to {} distinct keys", limits::ALL_OF_MAX as u64),
        ("up to {} requests (and", limits::BATCH_REQUESTS_MAX as u64),
        ("(and {} keys)", limits::BATCH_KEYS_MAX as u64),
    ];
    for (phrase, bound) in counts {
        let phrase = phrase.replace("{}", &grouped(bound));
        assert!(DOCUMENT.contains(&phrase), "the document should say: {phrase}");
    }
    for (bound, said) in [
        (limits::INTERVAL_NS_MAX, "366d"),
        (limits::INTERVAL_NS_MIN, "1us"),
        (limits::HORIZON_NS_MAX, "3660d"),
        (limits::LEASE_NS_DEFAULT, "30s"),
        (limits::LEASE_NS_MAX, "1d"),
        (limits::WAIT_NS_MAX, "366d"),
        (limits::LEAD_NS_MAX, "1m"),
    ] {
        assert_eq!(Span(bound).to_string(), said, "docs/LIMITS.md tells this length in words: change them too");
    }
}

/// `1,000,000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.char_indices();
    places.fold(String::new(), |text, (at, digit)| {
        let comma = if at > 0 && (digits.len() - at).is_multiple_of(3) { "," } else { "" };
        text + comma + &digit.to_string()
    })
}

/// "Every claim has the test beside it": whatever stands in backticks on a line "Shown by" is a test that exists.
#[test]
fn every_test_that_is_named_exists() {
    let mut source = String::new();
    for folder in ["src", "tests"] {
        gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut source);
    }
    let binaries = |name: &str| {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        tests.join(format!("{name}.rs")).exists() || tests.join(name).join("main.rs").exists()
    };
    let mut count = 0;
    for line in DOCUMENT.lines().filter(|line| line.starts_with("Shown by")) {
        for name in line.split('`').skip(1).step_by(2) {
            let exists = binaries(name) || source.contains(&format!("fn {name}("));
            assert!(exists || Path::new(env!("CARGO_MANIFEST_DIR")).join(name).exists(), "there is no test {name}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} names were found");
}

fn gather(folder: &PathBuf, source: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            gather(&entry, source);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            *source += &fs::read_to_string(&entry).expect("a source file");
        }
    }
}
