//! What this machine has for injecting faults. What is missing is said, never silently left out.

use super::fault::Kind;
use crate::failpoint;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The tools that were found.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The library that fakes clocks.
    pub faketime: Option<PathBuf>,
    /// A tracer that may trace.
    pub strace: bool,
    /// Loop file systems and the right to cut their power.
    pub power: Result<(), String>,
}

impl Tools {
    /// Looks for all of them.
    pub fn find() -> Self {
        Self { faketime: libfaketime(), strace: runs("strace", &["-qq", "-o", "/dev/null", "true"]), power: power() }
    }

    /// Why faults of this kind cannot be injected here.
    pub fn missing(&self, kind: Kind) -> Option<String> {
        match kind {
            Kind::Clock | Kind::ClockFast | Kind::Wall => {
                self.faketime.is_none().then(|| "libfaketime is not installed (package faketime)".to_owned())
            }
            Kind::SlowDisk | Kind::DiskError => {
                (!self.strace).then(|| "strace is not installed or may not trace".to_owned())
            }
            Kind::Power => self.power.clone().err(),
            Kind::Failpoint => (!failpoint::BUILT_IN).then(|| "this build has no failpoints".to_owned()),
            _ => None,
        }
    }
}

fn libfaketime() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    libraries.map(|dir| dir.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn power() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("cutting the power of a file system needs root".to_owned());
    }
    for (program, args, package) in
        [("mkfs.ext4", ["-V"], "e2fsprogs"), ("xfs_io", ["-V"], "xfsprogs"), ("losetup", ["-V"], "mount")]
    {
        if !runs(program, &args) {
            return Err(format!("{program} is not installed (package {package})"));
        }
    }
    if runs("losetup", &["-f"]) { Ok(()) } else { Err("there are no loop devices here".to_owned()) }
}
