//! The thing that is protected: a server of its own that notes when each start arrives, on one clock.
//!
//! It believes nobody. A start that arrives after the deadline that its permit came with is turned away and noted as late:
//! its worker, or the way from it, froze between the check and the act, which no limiter can prevent. Everything else
//! counts, and spacing is judged by these arrivals alone.
//!
//! Protocol: a line `begin KEY PERMIT DEADLINE_NS` or `end KEY PERMIT DEADLINE_NS`, answered by `ok` or `late`.

use super::history::{Arrival, Recorder};
use super::ticks::now_ns;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// Serves until stdin ends. The first line on stdout is the address.
pub fn serve(out: &Path) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    let recorder = Arc::new(Recorder::create(out)?);
    let accepting = Arc::clone(&recorder);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let recorder = Arc::clone(&accepting);
            // A worker that goes away in the middle of a line has not started anything.
            std::thread::spawn(move || drop(attend(&stream, &recorder)));
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    recorder.flush()
}

fn attend(stream: &TcpStream, recorder: &Recorder) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let at_ns = now_ns();
        let arrival = read_line(&line, at_ns).ok_or_else(|| io::Error::other(format!("no start: {line:?}")))?;
        recorder.note(&arrival);
        let answer: &[u8] = if at_ns > arrival.deadline_ns { b"late\n" } else { b"ok\n" };
        (&*stream).write_all(answer)?;
    }
}

fn read_line(line: &str, at_ns: u64) -> Option<Arrival> {
    let mut words = line.split_ascii_whitespace();
    let end = match words.next()? {
        "begin" => false,
        "end" => true,
        _ => return None,
    };
    let key = words.next()?.parse().ok()?;
    let permit = words.next()?.parse().ok()?;
    let deadline_ns = words.next()?.parse().ok()?;
    Some(Arrival { at_ns, key, permit, deadline_ns, end })
}
