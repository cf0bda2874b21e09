//! `quorate acquire`, `key` and `status`: exit codes, streams, commands.

use super::fake::{Act, Fake, grant, granted, nobody, problem};
use super::{quorate, run};

#[test]
fn with_nobody_listening_it_is_unavailable_and_quickly_so() {
    // The bound that matters is that it does not take the 60 s it is allowed: the test would be seen to hang.
    for arguments in [&["acquire", "k", "--limit", "1/6s"][..], &["key", "k"], &["status"]] {
        let ran = run(quorate(arguments).args(["--timeout", "60s", "--nodes", &nobody()]));
        assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{}", ran.err);
        assert!(ran.err.contains("unavailable: http://127.0.0.1:") && ran.err.contains("refused"), "{}", ran.err);
    }
}

#[test]
fn exit_codes_tell_denied_from_unavailable_from_unknown() {
    for (act, code, word) in [
        (granted("0"), 0, "granted"),
        (problem(422, "never"), 1, "never"),
        (problem(429, "denied"), 3, "denied"),
        (problem(503, "no_quorum"), 4, "no_quorum"),
        (problem(504, "outcome_unknown"), 5, "outcome_unknown"),
    ] {
        let fake = Fake::new(vec![act]);
        let ran = run(&mut quorate(&["acquire", "k", "--json", "--timeout", "2s", "--nodes", &fake.url]));
        assert_eq!(ran.code, code, "{}", ran.err);
        let json: serde_json::Value = serde_json::from_str(&ran.out).expect("one JSON object");
        if code == 0 {
            assert_eq!(json["granted"], true);
        } else {
            assert_eq!(json["code"], word);
            assert!(ran.err.starts_with("quorate: "), "{}", ran.err);
        }
    }
}

#[test]
fn an_unknown_outcome_names_the_id_to_ask_again_under() {
    let fake = Fake::new(vec![Act::HangUp]);
    let ran = run(&mut quorate(&["acquire", "k", "--timeout", "2s", "--nodes", &fake.url]));
    assert_eq!(ran.code, 5);
    assert!(ran.err.contains(&format!("--request-id {}", fake.request_ids()[0])), "{}", ran.err);
    let fake = Fake::new(vec![granted("0")]);
    run(&mut quorate(&["acquire", "k", "--request-id", "mine", "--nodes", &fake.url]));
    assert_eq!(fake.request_ids(), ["mine"]);
}

#[test]
fn the_request_says_what_the_flags_say() {
    let fake = Fake::new(vec![granted("1500.5")]);
    let limit = r#"{"rate":"1/6s","start_window":"250ms"}"#;
    let ran = run(quorate(&["acquire", "k", "--limit", limit, "--cost", "3", "--max-wait", "30s", "--lead", "5ms"])
        .args(["--request-id", "r", "--worker", "w"])
        .env("QUORATE_NODES", &fake.url));
    assert_eq!(ran.out, "permit 7 of k: start in 1.501 s\n", "{}", ran.err);
    assert_eq!(
        fake.asked(),
        [concat!(
            "POST /acquire HTTP/1.1\n",
            r#"{"key":"k","limit":{"rate":"1/6s","start_window":"250ms"},"cost":3,"max_wait_ms":30000,"lead_ms":5,"#,
            r#""request_id":"r","worker":"w"}"#
        )]
    );
}

#[test]
fn a_command_runs_at_its_slot_and_its_exit_code_is_passed_on() {
    let fake = Fake::new(vec![granted("30")]);
    let script = "echo $QUORATE_KEY $QUORATE_PERMIT; exit 42";
    let ran = run(&mut quorate(&["acquire", "k", "--nodes", &fake.url, "--", "sh", "-c", script]));
    assert_eq!((ran.code, ran.out.as_str()), (42, "k 7\n"), "{}", ran.err);
    assert_eq!(ran.err, "quorate: permit 7 in 0.030 s\n");
    let ran = run(&mut quorate(&["acquire", "k", "--nodes", &fake.url, "--", "/nonexistent/program"]));
    assert_eq!(ran.code, 127, "{}", ran.err);
    // Denied: it does not run.
    let fake = Fake::new(vec![problem(429, "denied")]);
    let ran = run(&mut quorate(&["acquire", "k", "--nodes", &fake.url, "--", "echo", "ran"]));
    assert_eq!((ran.code, ran.out.as_str()), (3, ""));
}

/// "discard the permit this long after you first sent the request": and then ask again, under another id.
#[test]
fn a_permit_that_came_too_late_is_discarded() {
    let late = Act::Answer(200, Vec::new(), grant("40", r#","start_before_ms":20"#));
    let fake = Fake::new(vec![problem(409, "expired"), late.clone(), granted("0")]);
    let ran = run(&mut quorate(&["acquire", "k", "--nodes", &fake.url, "--", "echo", "ran"]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    let ids = fake.request_ids();
    assert!(ids.len() == 3 && ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
    // With a fixed id the same permit would come again and again.
    let fake = Fake::new(vec![late]);
    let ran = run(&mut quorate(&["acquire", "k", "--request-id", "r", "--wait", "--nodes", &fake.url]));
    assert_eq!((ran.code, fake.asked().len()), (1, 1), "{}", ran.err);
}

#[test]
fn a_missing_limit_is_explained() {
    let fake = Fake::new(vec![problem(404, "no_limit")]);
    let ran = run(&mut quorate(&["acquire", "k", "--nodes", &fake.url]));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("--limit 1/6s"), "{}", ran.err);
}

#[test]
fn status_shows_the_nodes_and_fails_without_a_leader() {
    let body = |leader: &str| {
        let nodes = r#"[{"id":1,"client":"http://a:1","peer":"a:2","role":"leader","last_log":5,"applied":5,"reachable":true}]"#;
        format!(r#"{{"leader":{leader},"term":3,"clock_ms":1,"me":1,"cluster_id":"ab","nodes":{nodes}}}"#)
    };
    let fake = Fake::new(vec![Act::Answer(200, Vec::new(), body("1"))]);
    let ran = run(&mut quorate(&["status", "--nodes", &fake.url]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("node 1 leads in term 3\nID  ROLE"), "{}", ran.out);
    let fake = Fake::new(vec![Act::Answer(200, Vec::new(), body("null"))]);
    let ran = run(&mut quorate(&["status", "--json", "--nodes", &fake.url]));
    assert_eq!((ran.code, ran.out.lines().count()), (4, 1));
}
