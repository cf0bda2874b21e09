//! Usage, help, completions, closed pipes.

use super::{quorate, run};
use std::io::Read;
use std::process::Stdio;

#[test]
fn wrong_usage_exits_with_2_and_says_so_on_stderr() {
    for arguments in [
        &[][..],
        &["wat"],
        &["acquire"],
        &["acquire", "k", "--limit", "1/6"],
        &["acquire", "k", "--cost", "0"],
        &["acquire", "k", "--max-wait", "soon"],
        &["key", "k", "--nodes", "ftp://x"],
        &["key", "k", "--timeout", "0s"],
        &["key", ".."],
        &["release", "k"],
        &["release", "k", "seven"],
        &["renew", "k", "-1"],
        &["policy"],
        &["policy", "set", "p", "--match", "p"],
        &["policy", "set", "p q", "--match", "p", "--limit", "1/s"],
        &["policy", "set", "..", "--match", "p", "--limit", "1/s"],
        &["policy", "set", "p", "--match", "", "--limit", "1/s"],
        &["policy", "set", "p", "--match", "p", "--limit", "1/6"],
        &["policy", "set", "p", "--match", "p", "--limit", "1/s", "--override", "rate,cost"],
        &["policy", "set", "p", "--match", "p", "--limit", "1/s", "--create", "--if-match", "7"],
        &["policy", "rm", "p", "--if-match", "latest"],
        &["policy", "apply"],
        &["history", "k", "--limit", "0"],
        &["audit", "--limit", "1001"],
        &["up", "--nodes", "0", "--data", "/nonexistent/x"],
        &["node", "--id", "1", "--heartbeat", "5ms"],
        &["completions", "cobol"],
        &["proxy"],
    ] {
        let ran = run(&mut quorate(arguments));
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.err);
        assert!(!ran.err.is_empty(), "{arguments:?}");
        assert_eq!(ran.out, "", "{arguments:?}");
    }
}

#[test]
fn every_command_is_in_the_help() {
    let help = run(&mut quorate(&["--help"])).out;
    let known = [
        "up",
        "node",
        "acquire",
        "release",
        "renew",
        "key",
        "policy",
        "history",
        "audit",
        "status",
        "cluster",
        "bench",
        "chaos",
        "proxy",
        "agent",
        "config",
        "completions",
    ];
    for command in known {
        assert!(help.contains(&format!("\n  {command} ")), "{command}");
    }
}

#[test]
fn every_setting_is_a_flag_with_its_default_and_variable_in_the_help() {
    let help = run(&mut quorate(&["node", "--help"])).out.split_whitespace().collect::<Vec<_>>().join(" ");
    for key in quorate::config::KEYS {
        assert!(help.contains(&format!("--{} ", key.flag())), "{}", key.name);
        let default =
            if key.name == "id" { "[required]".to_owned() } else { format!("[default: {}]", key.default.described()) };
        assert!(help.contains(&default), "{}", key.name);
        assert!(help.contains(&format!("[env: {}]", key.variable())), "{}", key.name);
    }
    assert!(!help.contains("stop-with-stdin"), "that one is between us");
}

#[test]
fn completions_are_generated_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&mut quorate(&["completions", shell]));
        assert_eq!(ran.code, 0, "{shell}: {}", ran.err);
        assert!(ran.out.contains("acquire") && ran.out.contains("peer-listen"), "{shell}");
        assert!(ran.out.contains("apply") && ran.out.contains("if-match"), "{shell}");
    }
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    for arguments in
        [&["completions", "bash"][..], &["config", "print", "--id", "1"], &["config", "print", "--json", "--id", "1"]]
    {
        let mut child =
            quorate(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
        drop(child.stdout.take());
        let status = child.wait().expect("it exits");
        let mut err = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("UTF-8");
        assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{arguments:?}");
    }
}
