//! Settings: which layer wins, what is refused and how it is said; and the example files against the table.

use super::{cluster, quorate, run};
use quorate::config::{Fallback, KEYS};
use std::fs;

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f.toml").display().to_string();
    fs::write(&file, "id = 1\nheartbeat = \"50ms\"\ndrain = \"1s\"\ncluster = \"from-file\"\n").unwrap();
    let ran = run(quorate(&["config", "print", "--config", &file, "--heartbeat", "70ms"])
        .env("QUORATE_HEARTBEAT", "60ms")
        .env("QUORATE_DRAIN", "2s"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let line = |name: &str| {
        let found = ran.out.lines().find(|line| line.starts_with(&format!("{name} =")));
        found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("heartbeat"), "heartbeat = \"70ms\" # flag --heartbeat");
    assert_eq!(line("drain"), "drain = \"2s\" # env QUORATE_DRAIN");
    assert_eq!(line("cluster"), format!("cluster = \"from-file\" # file {file}:4"));
    assert_eq!(line("election_min"), "election_min = \"200ms\" # default");
    assert_eq!(line("data"), "data = \"quorate-data/node1\" # default");
    assert_eq!(line("advertise"), "advertise = \"http://127.0.0.1:7001\" # default");

    // What was printed is a file that says the same.
    let printed = directory.path().join("printed.toml").display().to_string();
    fs::write(&printed, &ran.out).unwrap();
    let again = run(&mut quorate(&["config", "print", "--config", &printed]));
    let values =
        |text: &str| text.lines().map(|line| line.split(" # ").next().unwrap().trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(&again.out), values(&ran.out), "{}", again.err);
}

#[test]
fn print_as_json_names_values_and_origins() {
    let ran = run(quorate(&["config", "print", "--json", "--id", "7"]).env("QUORATE_LOG", "debug"));
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["settings"]["id"], serde_json::json!({ "value": "7", "origin": "flag --id" }));
    assert_eq!(json["settings"]["log"], serde_json::json!({ "value": "debug", "origin": "env QUORATE_LOG" }));
    assert_eq!(json["settings"].as_object().unwrap().len(), KEYS.len());
    assert_eq!(json["problems"], serde_json::json!([]));
}

#[test]
fn what_nobody_knows_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f.toml").display().to_string();
    fs::write(&file, "id = 1\n\npeer_listn = \"127.0.0.1:1\"\n").unwrap();
    let ran = run(&mut quorate(&["config", "check", &file]));
    assert_eq!(ran.code, 1);
    assert_eq!(ran.err, format!("quorate: {file}:3: unknown key \"peer_listn\": did you mean peer_listen?\n"));
    let ran = run(&mut quorate(&["node", "--config", &file]));
    assert_eq!(ran.code, 2, "{}", ran.err);

    let ran = run(quorate(&["node", "--id", "1"]).env("QUORATE_HEARTBEET", "1s").env("QUORATE_NODES", "http://x:1"));
    assert_eq!(ran.code, 2);
    assert_eq!(ran.err, "quorate: unknown variable QUORATE_HEARTBEET: did you mean QUORATE_HEARTBEAT?\n");
}

#[test]
fn everything_wrong_is_said_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f.toml").display().to_string();
    fs::write(&file, "id = 0\nkeys_max = \"many\"\nheartbeat = \"1h\"\n").unwrap();
    let ran = run(&mut quorate(&["config", "check", "--json", &file, "/nonexistent.toml"]));
    assert_eq!(ran.code, 1);
    let lines: Vec<serde_json::Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[0]["ok"].as_bool(), lines[1]["ok"].as_bool()), (2, Some(false), Some(false)));
    assert_eq!(
        lines[0]["problems"],
        serde_json::json!([
            format!("{file}:2: keys_max: has to be a number, found string"),
            format!("{file}:1: id: has to lie between 1 and 65535, this one is 0"),
            format!("{file}:3: heartbeat: has to lie between 10ms and 10s, this one is 1h"),
        ])
    );
}

#[test]
fn files_of_one_cluster_are_checked_against_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = ["a.toml", "b.toml"].map(|name| directory.path().join(name).display().to_string());
    fs::write(&a, "id = 1\nmembers = \"1=x:1,2=y:2\"\n").unwrap();
    fs::write(&b, "id = 1\nmembers = \"1=x:1,3=z:3\"\n").unwrap();
    let ran = run(&mut quorate(&["config", "check", &a, &b]));
    assert_eq!((ran.code, ran.out), (1, format!("{a}: ok\n")));
    assert!(ran.err.contains("has the same id as") && ran.err.contains("names other members than"), "{}", ran.err);
}

#[test]
fn the_example_files_are_right() {
    let files = ["node1.toml", "node2.toml", "node3.toml"].map(cluster);
    let ran = run(quorate(&["config", "check"]).args(&files));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out.lines().count(), 3);
}

/// "cluster/node1.toml documents every key": with the default it really has, its variable and its flag.
#[test]
fn the_first_example_documents_every_setting() {
    let text = fs::read_to_string(cluster("node1.toml")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    for key in KEYS {
        let default = match key.default.text() {
            Some(default) => key.in_toml(&default),
            None => key.default.described(),
        };
        let sentence = format!("# Default: {default}. Variable: {}. Flag: --{}.", key.variable(), key.flag());
        let at =
            lines.iter().position(|line| *line == sentence).unwrap_or_else(|| panic!("node1.toml lacks {sentence:?}"));
        let shown = lines[at + 1];
        if key.name == "members" {
            assert_eq!(shown, "[members]");
        } else if let Some(commented) = shown.strip_prefix("# ") {
            let value = if key.default == Fallback::Required { String::new() } else { default };
            let derived = matches!(key.default, Fallback::Derived(_));
            assert!(commented == format!("{} = {value}", key.name) || derived, "{shown:?} is not the default");
        } else {
            assert!(shown.starts_with(&format!("{} = ", key.name)), "{shown:?} comes after {sentence:?}");
        }
    }
}
