//! `quorate policy`: one rule at a time, and a whole file of them against a node that keeps the contract.

use super::fake::{Act, Fake, problem};
use super::rules::{Fault, Rules};
use super::{Ran, quorate, run};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::Stdio;

const FILE: &str = "
policies:
  github:
    match: \"github:*\"
    limit: 1/6s
  search:
    match: search
    limit: {rate: 100/s, max_reserved: 50}
    override: [max_reserved]
";

fn policy(rules: &Rules, arguments: &[&str]) -> Ran {
    run(quorate(&["policy"]).args(arguments).args(["--nodes", &rules.fake.url]))
}

/// Applies this text as a file.
fn apply(rules: &Rules, text: &str, flags: &[&str]) -> Ran {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml").display().to_string();
    fs::write(&file, text).unwrap();
    let mut ran = policy(rules, &[&["apply", &file], flags].concat());
    ran.err = ran.err.replace(&file, "FILE");
    ran
}

/// `name: {match: …}` for each, all with one limit.
fn file(policies: &[(&str, &str)]) -> String {
    let entry = |(name, pattern): &(&str, &str)| format!("  {name}: {{match: {pattern:?}, limit: 1/s}}\n");
    std::iter::once("policies:\n".to_owned()).chain(policies.iter().map(entry)).collect()
}

// ------------------------------------------------------------------------------------------------------ one at a time

#[test]
fn a_policy_is_set_shown_and_deleted() {
    let rules = Rules::new(&[("old", "old", "1/6s")]);
    let limit = r#"{"rate":"1/6s","max_reserved":3}"#;
    let ran = policy(&rules, &["set", "github", "--match", "github:*", "--limit", limit, "--override", "rate,burst"]);
    let shown = "policy    github\nmatch     github:*\nlimit     {\"rate\":\"1/6s\",\"max_reserved\":3}\n\
                 override  rate,burst\nrevision  2\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, shown), "{}", ran.err);
    assert_eq!(
        rules.fake.requests()[0].body,
        r#"{"match":"github:*","limit":{"rate":"1/6s","max_reserved":3},"override":["rate","burst"]}"#
    );
    assert_eq!(policy(&rules, &["get", "github"]).out, shown);
    let all = policy(&rules, &["get"]).out;
    assert!(all.starts_with("NAME    MATCH     LIMIT") && all.contains("\nold     old       1/6s"), "{all}");
    let json: Value = serde_json::from_str(&policy(&rules, &["get", "--json"]).out).unwrap();
    assert_eq!((json["policies"][0]["name"].as_str(), json["revision"].as_u64()), (Some("github"), Some(2)));
    let ran = policy(&rules, &["rm", "github", "--if-match", "2"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "policy github: deleted\n"), "{}", ran.err);
    let ran = policy(&rules, &["rm", "old", "--json"]);
    assert_eq!(ran.out, "{\"deleted\":true,\"name\":\"old\",\"revision\":4}\n");
    assert_eq!(policy(&rules, &["get"]).out, "no policies are stored\n");
}

#[test]
fn refusals_say_what_to_do() {
    let rules = Rules::new(&[("a", "a", "1/6s"), ("b", "b", "1/6s")]);
    let a = ["set", "a", "--match", "a", "--limit", "1/s"];
    for (arguments, code, condition) in [
        ([&a[..], &["--if-match", "9"]].concat(), "revision_mismatch", " if \"9\""),
        ([&a[..], &["--create"]].concat(), "revision_mismatch", " if absent"),
        (vec!["set", "c", "--match", "a", "--limit", "1/s"], "policy_conflict", ""),
        (vec!["rm", "c"], "no_policy", ""),
        (vec!["rm", "a", "--if-match", "9"], "revision_mismatch", " if \"9\""),
    ] {
        let ran = policy(&rules, &[&arguments[..], &["--json"]].concat());
        assert_eq!(ran.code, 1, "{arguments:?}: {}", ran.err);
        assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap()["code"], code, "{arguments:?}");
        assert!(rules.changes().last().unwrap().ends_with(condition), "{:?}", rules.changes());
        assert_eq!(ran.err.contains("quorate policy get a shows how it stands"), code == "revision_mismatch");
    }
    assert_eq!(policy(&rules, &["get", "c"]).code, 1);
    assert_eq!(rules.stored(), ["a a 1/6s", "b b 1/6s"]);
}

/// The node gives limits back in words of its own: what was lost is found all the same.
#[test]
fn a_lost_answer_is_found_out_in_other_words() {
    let rules = Rules::new(&[("a", "a", "100/m")]).fault(0, Fault::RequestLost).fault(1, Fault::Intruder("a", "b"));
    let ran = policy(&rules, &["set", "a", "--match", "b", "--limit", "9/1s", "--if-match", "1"]);
    assert_eq!(ran.code, 0, "somebody stored the same, as 9/s: {}", ran.err);
    let rules = Rules::new(&[("a", "a", "100/m")]).fault(0, Fault::RequestLost).fault(1, Fault::Intruder("a", "b"));
    let ran = policy(&rules, &["set", "a", "--match", "b", "--limit", "8/s", "--if-match", "1"]);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("quorate policy get a shows how it stands"), "{}", ran.err);
}

#[test]
fn exit_codes_tell_unavailable_from_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml").display().to_string();
    fs::write(&file, FILE).unwrap();
    for (act, read, write) in [(problem(503, "no_leader"), 4, 4), (Act::HangUp, 4, 5)] {
        let fake = Fake::new(vec![act]);
        let code = |arguments: &[&str]| {
            run(quorate(&["policy"]).args(arguments).args(["--timeout", "2s", "--nodes", &fake.url])).code
        };
        assert_eq!((code(&["get"]), code(&["get", "a"]), code(&["apply", &file])), (read, read, read));
        assert_eq!((code(&["rm", "a"]), code(&["set", "a", "--match", "a", "--limit", "1/s"])), (write, write));
    }
}

// ------------------------------------------------------------------------------------------------------- a whole file

#[test]
fn a_file_is_compared_applied_and_then_nothing_is_left_to_do() {
    let rules = Rules::new(&[("search", "search", "1/6s"), ("old", "old:*", "1/s")]);
    let diff = "+ github  github:*  1/6s\n\
                ~ search  limit: 1/6s -> {\"rate\":\"100/s\",\"max_reserved\":50}, override: none -> max_reserved\n\
                = 1 not in the file, kept (--prune deletes them)\n";
    let ran = apply(&rules, FILE, &["--dry-run"]);
    let summary = "dry run: 1 to create, 1 to change, 0 to delete, 0 unchanged\n";
    assert_eq!((ran.code, ran.out, ran.err.as_str()), (0, format!("{diff}{summary}"), ""));
    assert_eq!(rules.changes(), [""; 0], "a dry run writes nothing");

    let ran = apply(&rules, FILE, &[]);
    assert_eq!(ran.out, format!("{diff}1 created, 1 changed, 0 deleted, 0 unchanged\n"));
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (0, "quorate: github created, revision 3 (1 of 2)\nquorate: search changed, revision 4 (2 of 2)\n")
    );
    assert_eq!(rules.changes(), ["PUT /policies/github if absent", "PUT /policies/search if \"1\""]);

    let ran = apply(&rules, FILE, &[]);
    let nothing = "nothing to change: 2 unchanged, 1 not in the file\n";
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, nothing, ""));
    assert_eq!(rules.changes().len(), 2);
}

#[test]
fn json_says_all_of_it_in_one_object() {
    let rules = Rules::new(&[("a", "a", "1/s"), ("b", "b", "1/s"), ("old", "old", "1/s")]);
    let text = file(&[("a", "a"), ("b", "b2"), ("c", "c")]);
    let json = |flags: &[&str]| {
        let ran = apply(&rules, &text, &[&["--json", "--prune"], flags].concat());
        assert_eq!((ran.code, ran.out.lines().count()), (0, 1), "{}", ran.err);
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    let states = |json: &Value| {
        let state = |change: &Value| {
            format!("{} {} {} {}", change["name"], change["change"], change["state"], change["revision"])
                .replace('"', "")
        };
        json["changes"].as_array().unwrap().iter().map(state).collect::<Vec<_>>()
    };
    let dry = json(&["--dry-run"]);
    assert_eq!(states(&dry), ["b update planned null", "c create planned null", "old delete planned null"]);
    assert_eq!((&dry["dry_run"], &dry["unchanged"], &dry["kept"]), (&true.into(), &1.into(), &0.into()));
    assert_eq!(dry["changes"][0]["before"]["match"], "b");
    assert_eq!(dry["changes"][0]["after"]["match"], "b2");
    let done = json(&[]);
    assert_eq!(states(&done), ["b update applied 4", "c create applied 5", "old delete applied 6"]);
    assert_eq!(done["dry_run"], false);
    assert_eq!(states(&json(&[])), [""; 0]);
}

#[test]
fn json_files_and_stdin_are_read_as_well() {
    let rules = Rules::new(&[]);
    let mut child = quorate(&["policy", "apply", "-", "--nodes", &rules.fake.url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let text = br#" {"policies": {"a": {"match": "a", "limit": "1/s"}}}"#;
    child.stdin.take().expect("a pipe").write_all(text).expect("it reads");
    let output = child.wait_with_output().expect("it exits");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rules.stored(), ["a a 1/s"]);
}

#[test]
fn only_prune_deletes() {
    let rules = Rules::new(&[("a", "a", "1/s"), ("b", "b", "1/s")]);
    let ran = apply(&rules, "policies: {}", &[]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "nothing to change: 0 unchanged, 2 not in the file\n"));
    let ran = apply(&rules, &file(&[("b", "b")]), &["--prune"]);
    assert_eq!(ran.out, "- a  a  1/s\n= 1 unchanged\n0 created, 0 changed, 1 deleted, 1 unchanged\n");
    assert_eq!(
        (rules.stored(), rules.changes()),
        (vec!["b b 1/s".to_owned()], vec!["DELETE /policies/a if \"1\"".to_owned()])
    );
}

#[test]
fn patterns_change_hands() {
    // A new name for an old rule.
    let rules = Rules::new(&[("z", "p", "1/s")]);
    let renamed = file(&[("a", "p")]);
    let ran = apply(&rules, &renamed, &[]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("a: its match \"p\" belongs to z") && ran.err.contains("--prune"), "{}", ran.err);
    assert_eq!(apply(&rules, &renamed, &["--dry-run"]).code, 1, "what cannot be applied is no plan");
    assert_eq!(rules.changes(), [""; 0]);
    let ran = apply(&rules, &renamed, &["--prune"]);
    assert_eq!((ran.code, rules.stored()), (0, vec!["a p 1/s".to_owned()]), "{}", ran.err);

    // Two that swap: one is deleted for a moment.
    let rules = Rules::new(&[("a", "1", "1/s"), ("b", "2", "1/s"), ("c", "3", "1/s")]);
    let ran = apply(&rules, &file(&[("a", "2"), ("b", "1"), ("c", "4")]), &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("~ a  match: 1 -> 2  (deleted for a moment)\n"), "{}", ran.out);
    assert_eq!(rules.stored(), ["a 2 1/s", "b 1 1/s", "c 4 1/s"]);
    assert_eq!(
        rules.changes(),
        [
            "DELETE /policies/a if \"1\"",
            "PUT /policies/b if \"2\"",
            "PUT /policies/a if absent",
            "PUT /policies/c if \"3\""
        ]
    );
}

#[test]
fn somebody_elses_change_in_the_middle_ends_it_and_all_is_said() {
    let there = [("a", "a", "1/6s"), ("b", "b", "1/6s"), ("c", "c", "1/6s")];
    let text = file(&[("a", "a"), ("b", "b"), ("c", "c")]);
    let rules = Rules::new(&there).fault(1, Fault::Intruder("b", "b"));
    let ran = apply(&rules, &text, &[]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for said in [
        "b: refused: said revision_mismatch",
        "\nquorate: applied: a\n",
        "\nquorate: not applied: b, c\n",
        "apply the file again",
    ] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    assert!(!ran.out.contains("created"), "no summary of what was not done: {}", ran.out);
    assert_eq!(rules.stored(), ["a a 1/s", "b b 9/s", "c c 1/6s"], "nobody was run over, and nothing came after it");
    // The same again does the rest.
    let ran = apply(&rules, &text, &[]);
    assert_eq!((ran.code, rules.stored()), (0, ["a a 1/s", "b b 1/s", "c c 1/s"].map(str::to_owned).to_vec()));

    let rules = Rules::new(&there).fault(1, Fault::Intruder("b", "b"));
    let ran = apply(&rules, &text, &["--json"]);
    let json: Value = serde_json::from_str(&ran.out).expect("one JSON object");
    assert_eq!((ran.code, json["code"].as_str()), (1, Some("revision_mismatch")));
    let states: Vec<_> = json["changes"].as_array().unwrap().iter().map(|change| change["state"].clone()).collect();
    assert_eq!(states, ["applied", "failed", "not_applied"]);
}

#[test]
fn a_swap_that_is_cut_short_says_what_is_missing() {
    let rules = Rules::new(&[("a", "1", "1/s"), ("b", "2", "1/s")]).fault(1, Fault::Intruder("b", "3"));
    let swap = file(&[("a", "2"), ("b", "1")]);
    let ran = apply(&rules, &swap, &[]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("not applied: b\n"), "{}", ran.err);
    assert!(ran.err.contains("deleted to make room, and not stored again: a\n"), "{}", ran.err);
    assert_eq!(apply(&rules, &swap, &[]).code, 0);
    assert_eq!(rules.stored(), ["a 2 1/s", "b 1 1/s"]);
}

#[test]
fn lost_answers_do_not_stop_it() {
    let rules = Rules::new(&[("a", "a", "1/6s"), ("old", "old", "1/s")])
        .fault(0, Fault::AnswerLost)
        .fault(2, Fault::AnswerLost)
        .fault(4, Fault::AnswerLost);
    let ran = apply(&rules, &file(&[("a", "a"), ("b", "b")]), &["--prune"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.ends_with("1 created, 1 changed, 1 deleted, 0 unchanged\n"), "{}", ran.out);
    assert_eq!(rules.stored(), ["a a 1/s", "b b 1/s"]);
    assert_eq!(rules.changes().len(), 6, "each was asked for twice");
}

#[test]
fn nobody_deciding_is_certain_and_no_answer_is_not() {
    let there = [("a", "a", "1/6s"), ("b", "b", "1/6s")];
    let text = file(&[("a", "a"), ("b", "b")]);
    let after = |fault: &Fault| (1..100).fold(Rules::new(&there), |rules, change| rules.fault(change, fault.clone()));
    for (fault, code, said) in [
        (Fault::NoQuorum, 4, "\nquorate: not applied: b\n"),
        (Fault::RequestLost, 5, "\nquorate: may or may not be applied: b\n"),
    ] {
        let ran = apply(&after(&fault), &text, &["--timeout", "2s"]);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains("\nquorate: applied: a\n") && ran.err.contains(said), "{}", ran.err);
    }
}

#[test]
fn other_words_for_the_same_are_no_change() {
    let rules = Rules::new(&[("a", "a", "100/m")]);
    let ran = apply(&rules, "policies: {a: {match: a, limit: {kind: spacing, rate: 100/60s}}}", &[]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "nothing to change: 1 unchanged\n"), "{}", ran.err);
    assert_eq!(rules.changes(), [""; 0]);
}

/// Nobody reads the plan: it is carried out all the same, and what fails still fails.
#[test]
fn a_closed_pipe_changes_nothing_about_what_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml").display().to_string();
    fs::write(&path, file(&[("a", "a")])).unwrap();
    for (rules, flag, code, stored) in [
        (Rules::new(&[]), "--prune", 0, vec!["a a 1/s".to_owned()]),
        (Rules::new(&[]), "--json", 0, vec!["a a 1/s".to_owned()]),
        (Rules::new(&[]), "--dry-run", 0, vec![]),
        (Rules::new(&[]).fault(0, Fault::Intruder("b", "a")), "--prune", 1, vec!["b a 9/s".to_owned()]),
        (Rules::new(&[]).fault(0, Fault::Intruder("b", "a")), "--json", 1, vec!["b a 9/s".to_owned()]),
    ] {
        let mut child = quorate(&["policy", "apply", &path, flag, "--nodes", &rules.fake.url])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program runs");
        drop(child.stdout.take());
        assert_eq!(child.wait().expect("it exits").code(), Some(code), "{flag}");
        assert_eq!(rules.stored(), stored, "{flag}");
    }
}

// --------------------------------------------------------------------------------------------------- nonsense in files

#[test]
fn nonsense_is_named_before_anybody_is_asked() {
    for (text, wanted) in [
        ("", "FILE: empty"),
        ("policies:\n", "FILE:1:"),
        ("policies:\n  a:\n    match: a\n    limt: 1/s\n", "FILE:4:5: policies.a.limt: unknown field `limt`"),
        ("policies: {a: {match: a, limit: 1/6}}", "FILE: policies.a: limit: expected a unit"),
        (
            "policies: {a: {match: a, limit: 1/s}, b: {match: a, limit: 1/s}}",
            "FILE: policies.b: has the same match as a",
        ),
        ("policies: {a: {match: a, limit: 1/s}, a: {match: b, limit: 1/s}}", "FILE:1:"),
        ("policies: {a/b: {match: a, limit: 1/s}}", "FILE: policies.a/b: a name has letters"),
        ("{\"policies\": [", "FILE:1:"),
        ("\u{0}", "FILE:"),
    ] {
        let rules = Rules::new(&[]);
        let ran = apply(&rules, text, &["--prune"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{text:?}: {}", ran.err);
        assert!(ran.err.starts_with(&format!("quorate: {wanted}")), "{text:?}: {}", ran.err);
        assert_eq!(rules.fake.requests().len(), 0, "{text:?}");
    }
    let rules = Rules::new(&[]);
    let ran = policy(&rules, &["apply", "/nonexistent/rules.yaml"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("cannot read /nonexistent/rules.yaml"), "{}", ran.err);
    let ran = apply(&rules, &"x".repeat(4 * 1024 * 1024 + 1), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (2, "quorate: FILE: larger than 4 MiB\n"));
}
