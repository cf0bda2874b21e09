//! Asks once for every key, so that a measurement begins with all of them in memory.

use super::dialect::{Answer, Dialect};
use super::plan::Plan;
use super::wire::Wire;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Keys in one request: as many as a batch may have.
const TOGETHER: u64 = 1_000;
/// More at a time would only wait for one another: each asks for a thousand keys.
const CONNECTIONS_MAX: usize = 16;

/// Asks for a permit of every key of the plan. `tell` hears now and then how many there are.
pub fn fill(plan: &Plan, tell: &mut dyn FnMut(u64)) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let connections =
        (0..plan.connections.min(CONNECTIONS_MAX)).map(|connection| one(connection, plan, (&next, &done)));
    let all = futures::future::try_join_all(connections);
    runtime.block_on(async {
        tokio::pin!(all);
        loop {
            tokio::select! {
                ended = &mut all => return ended.map(drop),
                () = tokio::time::sleep(TELL_EVERY) => tell(done.load(Ordering::Relaxed)),
            }
        }
    })
}

async fn one(connection: usize, plan: &Plan, (next, done): (&AtomicU64, &AtomicU64)) -> io::Result<()> {
    let mut wire = Wire::connect(plan.addresses[connection % plan.addresses.len()], true).await?;
    let mut request = Vec::new();
    loop {
        let mut key = next.fetch_add(TOGETHER, Ordering::Relaxed);
        let count = plan.keys.saturating_sub(key).min(TOGETHER);
        if count == 0 {
            return Ok(());
        }
        let dialect = Dialect::Batch(usize::try_from(count).map_err(io::Error::other)?);
        request.clear();
        let keys = &mut || {
            key += 1;
            key - 1
        };
        dialect.write(&mut request, keys, 0, &plan.limit);
        let response = wire.ask(&request).await?;
        if dialect.judge(&response) != Answer::Granted(count) {
            let said = String::from_utf8_lossy(&response.body[..response.body.len().min(400)]).into_owned();
            return Err(io::Error::other(format!("not every key was granted: {said}")));
        }
        done.fetch_add(count, Ordering::Relaxed);
    }
}
