//! Power cuts: each node's directory is a file system of its own on a loop device, and its power can be cut.
//!
//! The shutdown of a file system drops everything that was not synced, as a power cut does; mounting it again replays the
//! journal. Needs root.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BYTES: u64 = 512 * 1024 * 1024;
/// Says which process a run is.
const RUNNING: &str = "running";

/// One file system.
#[derive(Debug)]
pub(super) struct Volume {
    image: PathBuf,
    dir: PathBuf,
    mounted: bool,
}

impl Volume {
    /// Makes and mounts one below `dir`. Ext4 and xfs take turns where there are both.
    pub(super) fn create(dir: &Path, number: u64) -> io::Result<Self> {
        let (image, mount) = (dir.join(format!("disk{number}.img")), dir.join(format!("disk{number}")));
        File::create(&image)?.set_len(BYTES)?;
        let ext4 = ["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
        let made = if number.is_multiple_of(3) {
            run("mkfs.xfs", &["-q", "-f"], &image)
        } else {
            run("mkfs.ext4", &ext4, &image)
        };
        made.or_else(|_| run("mkfs.ext4", &ext4, &image))?;
        std::fs::create_dir_all(&mount)?;
        let mut volume = Self { image, dir: mount, mounted: false };
        volume.mount()?;
        Ok(volume)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Cuts the power: from now on every write fails, and what was not synced is gone.
    pub(super) fn cut(&self) -> io::Result<()> {
        run("xfs_io", &["-x", "-c", "shutdown"], &self.dir)
    }

    /// Power is back. Whoever had files open must be gone.
    ///
    /// The loop device has to be gone as well before the next one is made: what it had cached did not survive the cut.
    pub(super) fn restore(&mut self) -> io::Result<()> {
        self.unmount()?;
        for _ in 0..500 {
            let attached = Command::new("losetup").arg("-j").arg(&self.image).stdin(Stdio::null()).output()?;
            if attached.stdout.is_empty() {
                return self.mount();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err(io::Error::other("the loop device does not go away"))
    }

    fn mount(&mut self) -> io::Result<()> {
        let status =
            Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.dir).stdin(Stdio::null()).output()?;
        self.mounted = status.status.success();
        if self.mounted { Ok(()) } else { Err(said("mount", &status.stderr)) }
    }

    fn unmount(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mounted) {
            // A process that was just killed may hold the file system for a moment longer.
            let mut last = Ok(());
            for _ in 0..100 {
                last = run("umount", &[], &self.dir);
                if last.is_ok() {
                    return Ok(());
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            self.mounted = true;
            return last;
        }
        Ok(())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.unmount().is_ok() {
            let _ = std::fs::remove_file(&self.image);
        }
    }
}

/// A note in the directory of a run that it is under way, for the next one.
#[derive(Debug)]
pub(super) struct Running(PathBuf);

impl Running {
    pub(super) fn note(dir: &Path) -> io::Result<Self> {
        let note = dir.join(RUNNING);
        std::fs::write(&note, std::process::id().to_string())?;
        Ok(Self(note))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Unmounts and removes what runs below this directory left behind that were killed themselves.
pub(super) fn remove_left_behind(dir: &Path) {
    let Ok(runs) = std::fs::read_dir(dir) else { return };
    for run in runs.flatten().map(|entry| entry.path()) {
        let Ok(note) = std::fs::read_to_string(run.join(RUNNING)) else { continue };
        let Ok(process) = note.trim().parse::<u32>() else { continue };
        if Path::new("/proc").join(process.to_string()).exists() {
            continue;
        }
        let files = std::fs::read_dir(&run).into_iter().flatten().flatten().map(|entry| entry.path());
        for image in files.filter(|path| path.extension().is_some_and(|extension| extension == "img")) {
            let dir = image.with_extension("");
            let mounted = is_mounted(&dir);
            drop(Volume { image, dir, mounted });
        }
        let _ = std::fs::remove_file(run.join(RUNNING));
    }
}

/// A mounted directory is on another device than the one it is in.
fn is_mounted(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    device(dir).is_some_and(|own| dir.parent().and_then(device) != Some(own))
}

fn run(program: &str, args: &[&str], last: &Path) -> io::Result<()> {
    let output = Command::new(program).args(args).arg(last).stdin(Stdio::null()).output()?;
    if output.status.success() { Ok(()) } else { Err(said(program, &output.stderr)) }
}

fn said(program: &str, stderr: &[u8]) -> io::Error {
    io::Error::other(format!("{program}: {}", String::from_utf8_lossy(stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_run_left_behind_is_removed() {
        let dir = std::env::temp_dir().join(format!("quorate-left-behind-{}", std::process::id()));
        let image = |run: &str| dir.join(run).join("disk1.img");
        // No process has this number.
        for (run, note) in [("dead", "4294967295".to_owned()), ("alive", std::process::id().to_string())] {
            std::fs::create_dir_all(image(run).with_extension("")).unwrap();
            std::fs::write(image(run), "").unwrap();
            std::fs::write(dir.join(run).join(RUNNING), note).unwrap();
        }
        remove_left_behind(&dir);
        assert_eq!((image("dead").exists(), image("alive").exists()), (false, true));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
