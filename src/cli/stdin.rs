//! The end of stdin, by which a child process learns that whoever started it is gone, however that ended.

use std::io::Read;
use tokio::sync::oneshot;

/// Resolves when stdin ends, also if that is with an error.
///
/// A thread of its own: a blocking read cannot be cancelled, and the runtime would wait for it at the end.
pub(super) fn ends() -> oneshot::Receiver<()> {
    let (ended, ends) = oneshot::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        loop {
            match std::io::stdin().read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        let _ = ended.send(());
    });
    ends
}
