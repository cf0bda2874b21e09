//! Places in the code where a test can make the process die or stall. Nothing of it is in a release build.
//!
//! Each has a name; `FAILPOINTS="append=20*off->return"` in the environment of a node kills it at the twenty-first append,
//! `…=sleep(500)` makes it stall there. The points are `append`, `sync`, `vote`, `snapshot`, `install`, `purge`, `apply`,
//! `propose` (between stamp and proposal) and `answer` (between commit and answer).

/// Whether this build has them.
pub const BUILT_IN: bool = cfg!(all(feature = "failpoints", debug_assertions));

/// Every point there is.
pub const POINTS: [&str; 9] = ["append", "sync", "vote", "snapshot", "install", "purge", "apply", "propose", "answer"];

/// Takes over what the environment asks for. To be called once, before anything else.
pub fn from_environment() {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    if std::env::var_os("FAILPOINTS").is_some() {
        // The scenario would switch everything off again at its end; it lasts as long as the process.
        std::mem::forget(fail::FailScenario::setup());
    }
}

/// The point of this name was reached.
#[inline]
pub(crate) fn reached(name: &str) {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    {
        // As a kill -9 would be: nothing is flushed, nobody is told.
        fail::fail_point!(name, |_| std::process::abort());
    }
    #[cfg(not(all(feature = "failpoints", debug_assertions)))]
    let _ = name;
}
