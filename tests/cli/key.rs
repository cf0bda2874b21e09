//! `quorate key`: every kind of limit as a person reads it, and the whole answer as JSON.

use super::fake::{Act, Fake};
use super::{quorate, run};

fn shown(body: &str) -> String {
    let fake = Fake::new(vec![Act::Answer(200, Vec::new(), body.to_owned())]);
    let ran = run(&mut quorate(&["key", "k", "--nodes", &fake.url]));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(fake.asked(), ["GET /keys/k HTTP/1.1\n"]);
    let json = run(&mut quorate(&["key", "k", "--json", "--nodes", &fake.url]));
    assert_eq!(json.out.trim_end(), body, "JSON is the whole answer, as it was given");
    ran.out
}

#[test]
fn slots_that_lie_ahead() {
    let out = shown(concat!(
        r#"{"key":"k","limit":"1/6s","now_ms":1000,"next_ms":6210.417,"reserved":2,"remaining":8,"in_flight":0,"#,
        r#""waiting":0,"permit":7,"retry_after_ms":0}"#
    ));
    assert_eq!(
        out,
        "key          k\nlimit        1/6s\nnext slot    in 5.211 s\nreserved     2\nremaining    8\nwaiting      0\n\
         free         now\nlast permit  7\n"
    );
}

#[test]
fn leases_in_flight_under_a_policy() {
    let out = shown(concat!(
        r#"{"key":"k","limit":{"kind":"concurrency","max":5,"lease":"30s"},"policy":"builds","policy_revision":12,"#,
        r#""now_ms":1000,"next_ms":3500,"reserved":0,"remaining":0,"in_flight":5,"waiting":3,"permit":9,"#,
        r#""retry_after_ms":2500}"#
    ));
    assert_eq!(
        out,
        "key          k\nlimit        {\"kind\":\"concurrency\",\"max\":5,\"lease\":\"30s\"}\n\
         policy       builds, revision 12\nnext slot    in 2.500 s\nin flight    5 of 5\nremaining    0\n\
         waiting      3\nfree         in 2.500 s\nlast permit  9\n"
    );
}

#[test]
fn a_window_has_neither() {
    let out = shown(concat!(
        r#"{"key":"k","limit":{"kind":"window","rate":"100/m"},"now_ms":1000,"next_ms":1000,"reserved":0,"#,
        r#""remaining":40,"in_flight":0,"waiting":0,"permit":60,"retry_after_ms":0}"#
    ));
    assert!(!out.contains("reserved") && !out.contains("in flight"), "{out}");
    assert!(out.contains("\nremaining    40\n") && out.contains("\nfree         now\n"), "{out}");
}
