//! The grammar of rates, durations and limits.

use super::bytes::{cases, harm, harmed};
use super::json::{changed, changes};
use super::memory::bounded;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use quorate::api;
use quorate::http::limit_of;
use quorate::limiter::{Rate, parse_duration};
use std::cell::Cell;

const RATES: [&str; 8] = ["1/6s", "100/1m", "5000/s", "1/10us", "7/3d", "1000000/h", "1/1ms", "30/90s"];

#[test]
fn no_rate_is_too_strange() {
    bounded(|| {
        let mut runner = TestRunner::new(cases(20_000));
        let texts =
            prop_oneof!["\\PC{0,40}", "[0-9]{0,25}/?[0-9]{0,25}[a-zµ]{0,3}", "[0-9]{1,3}/[0-9]{0,3}(us|ms|s|m|h|d)"];
        runner.run(&texts, |text| understood(&text)).unwrap();
        let mut runner = TestRunner::new(cases(10_000));
        runner
            .run(&(prop::sample::select(&RATES[..]), harm()), |(good, harms)| {
                understood(&String::from_utf8_lossy(&harmed(good.as_bytes(), &harms)))
            })
            .unwrap();
    });
}

/// What is understood is written so that it is understood again, and alike.
fn understood(text: &str) -> Result<(), TestCaseError> {
    let _ = parse_duration(text);
    if let Ok(rate) = text.parse::<Rate>() {
        let again: Result<Rate, _> = rate.to_string().parse();
        prop_assert_eq!(again.ok(), Some(rate), "{} was written as {}", text, rate);
    }
    Ok(())
}

#[test]
fn no_limit_is_too_strange() {
    const GOODS: [&str; 6] = [
        r#""1/6s""#,
        r#"{"rate":"100/1m","max_reserved":5,"start_window":"500ms"}"#,
        r#"{"kind":"bucket","rate":"10/s","burst":40,"max_reserved":3}"#,
        r#"{"kind":"window","rate":"5/1h","resolution":"1m","aligned":true}"#,
        r#"{"kind":"concurrency","max":3,"lease":"30s"}"#,
        r#"{"kind":"spacing","rate":"1/s","ramp":{"from":"1/10s","over":"1m"}}"#,
    ];
    let understood = Cell::new(0);
    bounded(|| {
        let read = |bytes: &[u8]| {
            if let Ok(limit) = serde_json::from_slice::<api::Limit>(bytes) {
                match limit_of(&limit) {
                    Ok(_) => understood.set(understood.get() + 1),
                    Err(problem) => prop_assert!((400..500).contains(&problem.status), "{problem:?}"),
                }
            }
            Ok(())
        };
        let good = || prop::sample::select(&GOODS[..]);
        TestRunner::new(cases(10_000))
            .run(&(good(), harm()), |(good, harms)| read(&harmed(good.as_bytes(), &harms)))
            .unwrap();
        TestRunner::new(cases(20_000))
            .run(&(good(), changes()), |(good, changes)| {
                let good = serde_json::from_str(good).unwrap();
                read(changed(&good, &changes).to_string().as_bytes())
            })
            .unwrap();
    });
    assert!(understood.get() > 1_000, "only {} were limits: nothing was tried", understood.get());
}
