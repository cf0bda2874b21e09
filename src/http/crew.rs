//! Threads that serve connections, each with a runtime of its own.
//!
//! A connection stays where it was put: its reads, its timers and its answers happen on one thread, and nothing is taken from
//! another's queue. The listener
//! hands connections out in turn, rather than one listener a thread on a shared port: so a second node on the same port is still
//! told that the port is taken.

use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The threads. Dropping it ends them, and whatever still runs there.
#[derive(Debug)]
pub struct Crew {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    handle: Handle,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    /// Starts `count` threads beside the one that this is called on.
    pub fn start(count: usize) -> io::Result<Self> {
        let members = (0..count).map(|number| Member::start(number + 1)).collect::<io::Result<_>>()?;
        Ok(Self { members })
    }

    /// Where connections can be put, beside the runtime of the listener.
    pub fn handles(&self) -> Vec<Handle> {
        self.members.iter().map(|member| member.handle.clone()).collect()
    }
}

impl Member {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(format!("http-{number}")).spawn(move || {
            // A sender that is gone means the same as one that sent.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_thread_of_its_own_and_ends_with_the_crew() {
        let crew = Crew::start(2).unwrap();
        let names = crew.handles().into_iter().map(|handle| {
            let (tell, told) = std::sync::mpsc::channel();
            handle.spawn(async move { tell.send(std::thread::current().name().map(str::to_owned)) });
            told.recv().unwrap()
        });
        assert_eq!(names.collect::<Vec<_>>(), [Some("http-1".to_owned()), Some("http-2".to_owned())]);
        let ended = crew.handles()[0].spawn(std::future::pending::<()>());
        drop(crew);
        let runtime = Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(ended).unwrap_err().is_cancelled());
    }
}
