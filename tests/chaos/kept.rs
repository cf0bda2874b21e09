//! The directory of a run: gone when its test passes, kept with everything in it when its test fails.

use std::path::Path;
use tempfile::TempDir;

/// Histories, logs of the nodes and the report live here.
pub(crate) struct Kept(Option<TempDir>);

impl Kept {
    pub(crate) fn new() -> Self {
        Self(Some(tempfile::Builder::new().prefix("quorate-chaos-").tempdir().expect("a directory")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().expect("there until it is dropped").path()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A failing test unwinds through here.
        if let Some(dir) = self.0.take().filter(|_| std::thread::panicking()) {
            let path = dir.keep();
            println!("KEPT histories, logs and report: {}", path.display());
            eprintln!("KEPT histories, logs and report: {}", path.display());
        }
    }
}

#[test]
fn only_what_failed_is_kept() {
    let mut paths = Vec::new();
    for fails in [false, true] {
        let dir = Kept::new();
        let path = dir.path().to_owned();
        std::fs::write(path.join("node1.log"), "the last words").unwrap();
        let ended = std::thread::spawn(move || {
            let _dir = dir;
            assert!(!fails, "this failure is part of a test");
        });
        assert_eq!(ended.join().is_err(), fails);
        paths.push(path);
    }
    assert!(!paths[0].exists(), "what passed leaves nothing behind");
    assert_eq!(std::fs::read_to_string(paths[1].join("node1.log")).unwrap(), "the last words");
    std::fs::remove_dir_all(&paths[1]).unwrap();
}
