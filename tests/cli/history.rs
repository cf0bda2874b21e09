//! `quorate history` and `quorate audit`: what is asked, what is shown, how it ends.

use super::fake::{Act, Fake, problem};
use super::{quorate, run};
use serde_json::{Value, json};

const HISTORY: &str = r#"{"key":"a/b","until_ms":64000,"permits":[{"permit":7,"slot_ms":65500,"at_ms":64000,"cost":1,"worker":"w",
    "outcome":"granted","recorded":"2026-11-16T04:59:37.123Z","of_tomorrow":1}],"denied":[],
    "seconds":[{"at_ms":64000,"granted":1,"cost":1,"denied":3}],"minutes":[{"at_ms":60000,"granted":1,"cost":1,"denied":3}]}"#;

fn answer(body: &str) -> Act {
    Act::Answer(200, Vec::new(), body.to_owned())
}

#[test]
fn a_history_is_a_chart_and_a_table() {
    let fake = Fake::new(vec![answer(HISTORY)]);
    let ran = run(quorate(&["history", "a/b", "--limit", "5", "--nodes", &fake.url]).env("NO_COLOR", "1"));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(fake.asked(), ["GET /keys/a%2Fb/history?limit=5 HTTP/1.1\n"]);
    assert!(ran.out.contains("grants per second, the last 60: 1 granted, 3 denied, at most 1\n│"), "{}", ran.out);
    assert!(ran.out.contains("█│\n"), "{}", ran.out);
    assert!(ran.out.contains("7       65500  1.500 s  1     granted  w       -       2026-11-16T04:59"), "{}", ran.out);
    assert!(!ran.out.contains('\x1b'), "no colours where nobody looks");
}

#[test]
fn json_is_what_the_node_said() {
    let fake = Fake::new(vec![answer(HISTORY)]);
    let ran = run(&mut quorate(&["history", "a/b", "--json", "--nodes", &fake.url]));
    let json: Value = serde_json::from_str(&ran.out).expect("one JSON object");
    assert_eq!((&json["permits"][0]["permit"], &json["seconds"][0]["denied"]), (&json!(7), &json!(3)));
    let events = r#"{"events":[{"number":4,"kind":"leader","recorded":"r","node":2,"term":3}]}"#;
    let fake = Fake::new(vec![answer(events)]);
    let ran = run(&mut quorate(&["audit", "--json", "--nodes", &fake.url]));
    let json: Value = serde_json::from_str(&ran.out).expect("one JSON object");
    assert_eq!(json, serde_json::from_str::<Value>(events).unwrap());
    assert_eq!(fake.asked(), ["GET /audit?limit=50 HTTP/1.1\n"]);
    let ran = run(&mut quorate(&["audit", "--nodes", &fake.url]));
    assert_eq!(ran.out, "RECORDED  INDEX  KIND    WHAT\nr         -      leader  node 2, term 3\n");
}

#[test]
fn a_node_without_a_history_is_not_asked_for_ever() {
    let fake = Fake::new(vec![problem(503, "history_unavailable")]);
    for arguments in [&["history", "k"][..], &["audit"]] {
        let ran = run(quorate(arguments).args(["--json", "--timeout", "60s", "--nodes", &fake.url]));
        let json: Value = serde_json::from_str(&ran.out).expect("one JSON object");
        assert_eq!((ran.code, &json["code"]), (4, &json!("history_unavailable")), "{}", ran.err);
    }
    assert_eq!(fake.asked().len(), 2);
}
