//! `quorate release`, `renew` and `key --reset`: what they ask, what they say, how they end.

use super::fake::{Act, Fake, problem};
use super::{quorate, run};

fn answer(body: &str) -> Act {
    Act::Answer(200, Vec::new(), body.to_owned())
}

#[test]
fn a_permit_is_given_back() {
    let fake = Fake::new(vec![answer(r#"{"released":true,"key":"k","permit":7}"#)]);
    let ran = run(&mut quorate(&["release", "k", "7", "--nodes", &fake.url]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "permit 7 of k: given back\n"), "{}", ran.err);
    assert_eq!(fake.asked(), ["POST /release HTTP/1.1\n{\"key\":\"k\",\"permit\":7}"]);
    let ran = run(&mut quorate(&["release", "k", "7", "--json", "--nodes", &fake.url]));
    assert_eq!(ran.out, "{\"released\":true,\"key\":\"k\",\"permit\":7}\n");
}

/// Cleaning up twice, or late, is no failure.
#[test]
fn a_permit_that_cannot_be_given_back_any_more_is_said_and_no_error() {
    let body = r#"{"released":false,"key":"k","permit":7,"detail":"its slot has come"}"#;
    let fake = Fake::new(vec![answer(body)]);
    let ran = run(&mut quorate(&["release", "k", "7", "--nodes", &fake.url]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "permit 7 of k: not given back, its slot has come\n"), "{}", ran.err);
}

#[test]
fn a_lease_is_renewed() {
    let body = r#"{"renewed":true,"key":"k","permit":7,"lease_ms":30000,"start_before_ms":29970.9995}"#;
    let fake = Fake::new(vec![answer(body)]);
    let ran = run(&mut quorate(&["renew", "k", "7", "--nodes", &fake.url]));
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "permit 7 of k: renewed, within 29.971 s of asking renew again or be done\n"),
        "{}",
        ran.err
    );
}

#[test]
fn a_key_is_reset() {
    for (body, said) in [
        (r#"{"reset":true,"key":"a/b"}"#, "key a/b: reset\n"),
        (r#"{"reset":false,"key":"a/b"}"#, "key a/b: nothing to reset\n"),
    ] {
        let fake = Fake::new(vec![answer(body)]);
        let ran = run(&mut quorate(&["key", "a/b", "--reset", "--nodes", &fake.url]));
        assert_eq!((ran.code, ran.out.as_str()), (0, said), "{}", ran.err);
        assert_eq!(fake.asked(), ["DELETE /keys/a%2Fb HTTP/1.1\n"]);
    }
}

#[test]
fn exit_codes_tell_refused_from_unavailable_from_unknown() {
    for arguments in [&["release", "k", "7"][..], &["renew", "k", "7"], &["key", "k", "--reset"]] {
        for (act, code, word) in [
            (problem(404, "no_permit"), 1, "no_permit"),
            (problem(503, "no_quorum"), 4, "no_quorum"),
            (Act::HangUp, 5, "outcome_unknown"),
        ] {
            let fake = Fake::new(vec![act]);
            let ran = run(quorate(arguments).args(["--json", "--timeout", "2s", "--nodes", &fake.url]));
            assert_eq!(ran.code, code, "{arguments:?}: {}", ran.err);
            let json: serde_json::Value = serde_json::from_str(&ran.out).expect("one JSON object");
            assert_eq!(json["code"], word, "{arguments:?}");
            assert!(!ran.err.contains("--request-id"), "only an acquire has one: {}", ran.err);
        }
    }
}
