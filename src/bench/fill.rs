//! Asks once for every key, so that a measurement begins with all of them in memory.

use super::dialect::{Answer, Dialect};
use super::plan::Plan;
use super::wire::Wire;
use crate::clock::Stopwatch;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Keys in one request: as many as a batch may have.
const TOGETHER: u64 = 1_000;
/// More at a time would only wait for one another: each asks for a thousand keys.
const CONNECTIONS_MAX: usize = 16;

/// How long a thousand keys are asked for again when nobody could decide: a leader may change under a full load, and an election
/// takes a second or two.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Asks for a permit of every key of the plan, of some more than once if the cluster was without a leader meanwhile. `tell` hears now and then how many there are.
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
        let since = Stopwatch::start();
        let mut refused = String::new();
        loop {
            // A node that refuses may hang up as well, and then what it said is the reason.
            let response = wire.ask(&request).await.map_err(|error| match refused.as_str() {
                "" => error,
                said => io::Error::other(format!("{error}, after it had said {said}")),
            })?;
            if dialect.judge(&response) == Answer::Granted(count) {
                break;
            }
            refused = String::from_utf8_lossy(&response.body[..response.body.len().min(400)]).into_owned();
            if !matches!(response.status, 503 | 504) || since.elapsed() >= PATIENCE {
                return Err(io::Error::other(format!("not every key was granted: {refused}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
        done.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::thread::{self, JoinHandle};

    /// One connection on which these statuses are answered one after the other. What it was asked.
    fn answers(statuses: &'static [u16], body: String) -> (SocketAddr, JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let answer = |status: &u16| {
                let (mut request, mut bytes) = (Vec::new(), [0; 4_096]);
                while !request.ends_with(b"}") {
                    let read = socket.read(&mut bytes).unwrap();
                    assert!(read > 0, "hung up before {status}");
                    request.extend_from_slice(&bytes[..read]);
                }
                let head = format!("HTTP/1.1 {status} So\r\ncontent-length: {}\r\n\r\n", body.len());
                socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
                request
            };
            statuses.iter().map(answer).collect()
        });
        (address, asked)
    }

    fn plan(address: SocketAddr, keys: u64) -> Plan {
        Plan {
            addresses: vec![address],
            dialect: Dialect::Batch(1),
            connections: 1,
            threads: 1,
            rate: None,
            keys,
            hot_percent: 0,
            limit: r#""1/1h""#.to_owned(),
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn what_nobody_could_decide_is_asked_again() {
        let (address, asked) = answers(&[503, 504, 200], r#"{"granted":true}"#.repeat(3));
        fill(&plan(address, 3), &mut |_| {}).unwrap();
        let asked = asked.join().unwrap();
        assert!(asked.len() == 3 && asked.iter().all(|request| *request == asked[0]), "{asked:?}");
    }

    #[test]
    fn who_hangs_up_has_said_why() {
        let (address, asked) = answers(&[503], r#"{"detail":"on purpose"}"#.to_owned());
        let error = fill(&plan(address, 3), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
        assert_eq!(asked.join().unwrap().len(), 1);
    }

    #[test]
    fn what_is_refused_ends_it() {
        let (address, asked) = answers(&[400], r#"{"detail":"on purpose"}"#.to_owned());
        let error = fill(&plan(address, 3), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
        let (partly, two) = answers(&[200], r#"{"granted":true}"#.repeat(2));
        assert!(fill(&plan(partly, 3), &mut |_| {}).is_err(), "two of three");
        assert_eq!((asked.join().unwrap().len(), two.join().unwrap().len()), (1, 1));
    }
}
