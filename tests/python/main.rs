//! The Python client: its own suite, run against the binary of this build, one test a part so that a failure says where.
//!
//! Needs `python3` of version 3.9 or newer. Where there is none, that is said in a visible line; where nothing may be skipped
//! (`NO_SKIP=1`, as in CI), it is a failure.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The scenarios bring twenty processes each: one at a time, or they would measure each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says in a visible line why a test does nothing here. `eprintln` would be captured, as all else of a test that passes.
fn skip(test: &str, missing: &str) {
    writeln!(std::io::stderr(), "SKIPPED {test}: {missing}").expect("a line on stderr");
    assert!(std::env::var_os("NO_SKIP").is_none(), "{test} must not be skipped: {missing}");
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join("python")
}

/// Python, if there is one that is new enough.
fn python(test: &str) -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let probe = "import sys; sys.exit(sys.version_info < (3, 9))";
    match Command::new(&python).args(["-c", probe]).status() {
        Ok(status) if status.success() => Some(python),
        Ok(_) => {
            skip(test, &format!("{python} is older than 3.9"));
            None
        }
        Err(error) => {
            skip(test, &format!("{python}: {error}"));
            None
        }
    }
}

/// Looks at a program that runs, 20 a second: fifteen minutes in all, which only bound one that hangs.
const LOOKS_MAX: u32 = 15 * 60 * 20;

/// Runs a program, shows what it said, and insists that it went well and came to an end. It says it to a file: a pipe would stay
/// open as long as any of its children.
fn shown(what: &str, command: &mut Command) -> String {
    let said = tempfile::NamedTempFile::new().expect("a temporary file");
    let appended = std::fs::OpenOptions::new().append(true).open(said.path()).expect("the temporary file");
    let errors = appended.try_clone().expect("the temporary file");
    let mut child = command.stdin(Stdio::null()).stdout(appended).stderr(errors).spawn().expect("it starts");
    let mut looks = 0;
    let status = loop {
        if let Some(status) = child.try_wait().expect("its status") {
            break Some(status);
        }
        looks += 1;
        if looks > LOOKS_MAX {
            child.kill().expect("its end");
            child.wait().expect("its end");
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = String::from_utf8_lossy(&std::fs::read(said.path()).expect("what it said")).into_owned();
    println!("{text}");
    let status = status.unwrap_or_else(|| panic!("{what} hangs"));
    assert!(status.success(), "{what}: {status}");
    text
}

/// Runs some modules of the suite.
fn suite(test: &str, modules: &[&str]) {
    let Some(python) = python(test) else { return };
    let _alone = alone();
    let mut command = Command::new(python);
    command
        .args(["-m", "unittest", "--verbose"])
        .args(modules)
        .current_dir(home())
        .env("QUORATE_BIN", env!("CARGO_BIN_EXE_quorate"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1")
        .env_remove("QUORATE_NODES");
    shown(test, &mut command);
}

#[test]
fn units_and_misbehaving_nodes() {
    let modules = [
        "tests.test_core",
        "tests.test_http1",
        "tests.test_clients",
        "tests.test_threads",
        "tests.test_cancellation",
        "tests.test_throttle",
        "tests.test_outages",
        "tests.test_interruptions",
        "tests.test_together",
    ];
    suite("units_and_misbehaving_nodes", &modules);
}

#[test]
fn twenty_processes_use_the_limit_and_never_come_too_close() {
    suite("twenty_processes_use_the_limit_and_never_come_too_close", &["tests.test_twenty_processes"]);
}

#[test]
fn cancelling_most_of_five_thousand_tasks_gives_their_permits_back() {
    suite("cancelling_most_of_five_thousand_tasks_gives_their_permits_back", &["tests.test_asyncio_many"]);
}

#[test]
fn without_the_cluster_each_way_does_what_it_says() {
    suite("without_the_cluster_each_way_does_what_it_says", &["tests.test_unavailable"]);
}

#[test]
fn every_call_and_the_readme_against_a_cluster() {
    suite("every_call_and_the_readme_against_a_cluster", &["tests.test_surface"]);
}

#[test]
fn the_examples_run() {
    suite("the_examples_run", &["tests.test_examples"]);
}

#[test]
fn every_part_of_the_suite_is_run_from_here() {
    let source = include_str!("main.rs");
    for entry in std::fs::read_dir(home().join("tests")).expect("the suite") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if let Some(module) = name.strip_suffix(".py").filter(|module| module.starts_with("test_")) {
            assert!(source.contains(&format!("\"tests.{module}\"")), "{name} is not run");
        }
    }
}

/// `pip install ./clients/python`, as the README says it. The package is built by a backend of its own from the standard
/// library, so no network is needed; `--no-index` makes sure of that.
#[test]
fn pip_installs_it_without_a_network() {
    let test = "pip_installs_it_without_a_network";
    let Some(python) = python(test) else { return };
    if !Command::new(&python).args(["-m", "pip", "--version"]).output().is_ok_and(|output| output.status.success()) {
        return skip(test, "pip is not installed");
    }
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--no-index", "--disable-pip-version-check", "--target"])
        .arg(dir.path())
        .arg("./clients/python")
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    shown("pip install", &mut install);
    for file in ["quorate/py.typed", "quorate/__init__.py", "quorate-0.1.0.dist-info/METADATA"] {
        assert!(dir.path().join(file).is_file(), "{file} is missing");
    }
    let script =
        "import quorate, os; print(quorate.__file__, quorate.__version__); quorate.Client('http://127.0.0.1:1')";
    let mut import = Command::new(&python);
    import.args(["-c", script]).current_dir(dir.path()).env("PYTHONPATH", dir.path());
    let imported = shown("import quorate", &mut import);
    assert!(imported.contains(&*dir.path().to_string_lossy()), "another package was imported: {imported}");
}
