//! What is measured side by side: clusters of this very program, the ceiling, and what else is installed on this machine.
//!
//! Each is started for its turn, on loopback, with a directory of its own, and ended after it.

use super::dialect::{Dialect, REDIS_SCRIPT};
use crate::clock::Deadline;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// For a process to be there, and to be gone.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A system that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) addresses: Vec<SocketAddr>,
    /// Which of them leads, where that matters.
    pub(super) leader: usize,
    pub(super) dialect: Option<Dialect>,
    _processes: Vec<Process>,
}

/// A child process that ends when this does.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Deadline::after(ENDS_WITHIN);
        while !until.passed() {
            if self.0.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cluster of this program, each node a process.
pub(super) fn cluster(program: &Path, dir: &Path, nodes: usize) -> io::Result<Running> {
    let data = dir.join(format!("cluster-of-{nodes}"));
    let _ = std::fs::remove_dir_all(&data);
    let mut command = Command::new(program);
    command.args(["--json", "up", "--port", "0", "--nodes", &nodes.to_string(), "--data"]).arg(&data);
    let mut process = spawn(command.stdout(Stdio::piped()), dir, "cluster")?;
    let stdout = process.0.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let mut addresses = Vec::new();
    let mut lines = BufReader::new(stdout).lines();
    for line in lines.by_ref() {
        let event: Value = serde_json::from_str(&line?)?;
        match event["event"].as_str() {
            Some("starting") => {
                let urls = event["nodes"].as_array().into_iter().flatten().filter_map(|node| node["client"].as_str());
                addresses = urls.filter_map(|url| url.strip_prefix("http://")?.parse().ok()).collect();
            }
            Some("ready") => {
                let id = event["leader"].as_u64().and_then(|id| usize::try_from(id).ok()).unwrap_or(1);
                // Whatever it says later is of no interest, but somebody has to read it.
                thread::spawn(move || lines.for_each(drop));
                return Ok(Running { addresses, leader: id - 1, dialect: None, _processes: vec![process] });
            }
            _ => {}
        }
    }
    Err(io::Error::other(format!("a cluster of {nodes} did not become ready; see {}", dir.display())))
}

/// The program's own HTTP server, which grants everything without asking anybody.
pub(super) fn ceiling(program: &Path, dir: &Path) -> io::Result<Running> {
    let mut command = Command::new(program);
    let mut process = spawn(command.arg("bench-ceiling").stdout(Stdio::piped()).stdin(Stdio::piped()), dir, "ceiling")?;
    let stdout = process.0.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.trim().parse().map_err(|_| io::Error::other(format!("the ceiling said {line:?}")))?;
    Ok(Running { addresses: vec![address], leader: 0, dialect: None, _processes: vec![process] })
}

/// Redis with the register as a script; `durable` syncs every write before it is answered.
pub(super) fn redis(dir: &Path, durable: bool) -> io::Result<Option<Running>> {
    if !installed("redis-server") {
        return Ok(None);
    }
    let data = fresh(dir, "redis")?;
    let address = free()?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", "", "--dir"]).arg(&data);
    command.args(["--appendonly", if durable { "yes" } else { "no" }, "--appendfsync", "always"]);
    let process = spawn(&mut command, dir, "redis")?;
    listens(address)?;
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(STARTS_WITHIN))?;
    let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{REDIS_SCRIPT}\r\n", REDIS_SCRIPT.len());
    socket.write_all(load.as_bytes())?;
    let mut reply = [0; 47];
    socket.read_exact(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply);
    let digest = reply.strip_prefix("$40\r\n").and_then(|rest| rest.strip_suffix("\r\n"));
    let digest = digest.ok_or_else(|| io::Error::other(format!("redis said {reply:?}")))?.to_owned();
    let dialect = Some(Dialect::RedisScript(digest));
    Ok(Some(Running { addresses: vec![address], leader: 0, dialect, _processes: vec![process] }))
}

/// Three nodes of etcd.
pub(super) fn etcd(dir: &Path) -> io::Result<Option<Running>> {
    if !installed("etcd") {
        return Ok(None);
    }
    let data = fresh(dir, "etcd")?;
    let places = (1..=3).map(|id| Ok((id, free()?, free()?))).collect::<io::Result<Vec<_>>>()?;
    let members: Vec<_> = places.iter().map(|(id, _, peer)| format!("n{id}=http://{peer}")).collect();
    let mut processes = Vec::new();
    for (id, client, peer) in &places {
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("n{id}"), "--data-dir"]).arg(data.join(format!("n{id}")));
        for (flag, url) in [("client-urls", client), ("peer-urls", peer)] {
            let advertise =
                if flag == "client-urls" { "--advertise-client-urls" } else { "--initial-advertise-peer-urls" };
            command.args([&format!("--listen-{flag}"), &format!("http://{url}")]);
            command.args([advertise, &format!("http://{url}")]);
        }
        command.args(["--initial-cluster", &members.join(","), "--initial-cluster-state", "new"]);
        processes.push(spawn(&mut command, dir, "etcd")?);
    }
    for (_, client, _) in &places {
        listens(*client)?;
    }
    let addresses: Vec<_> = places.iter().map(|(_, client, _)| *client).collect();
    let leader = etcd_leader(&addresses)?;
    Ok(Some(Running { addresses, leader, dialect: Some(Dialect::EtcdPut), _processes: processes }))
}

/// The one whose own id is the leader's.
fn etcd_leader(addresses: &[SocketAddr]) -> io::Result<usize> {
    let until = Deadline::after(STARTS_WITHIN);
    while !until.passed() {
        for (at, address) in addresses.iter().enumerate() {
            let status = post(*address, "/v3/maintenance/status", "{}").unwrap_or_default();
            let value: Value = serde_json::from_str(&status).unwrap_or_default();
            let leader = value["leader"].as_str();
            if leader.is_some() && leader == value["header"]["member_id"].as_str() {
                return Ok(at);
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    Err(io::Error::other("etcd has no leader"))
}

/// throttlecrab, which keeps everything in memory.
pub(super) fn throttlecrab(dir: &Path) -> io::Result<Option<Running>> {
    if !installed("throttlecrab-server") {
        return Ok(None);
    }
    let address = free()?;
    let mut command = Command::new("throttlecrab-server");
    command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &address.port().to_string()]);
    let process = spawn(&mut command, dir, "throttlecrab")?;
    listens(address)?;
    let dialect = Some(Dialect::Throttle);
    Ok(Some(Running { addresses: vec![address], leader: 0, dialect, _processes: vec![process] }))
}

/// The body of an answer over a connection of its own.
pub(super) fn post(address: SocketAddr, path: &str, body: &str) -> io::Result<String> {
    ask(address, "POST", path, body)
}

/// The same for a look.
pub(super) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    ask(address, "GET", path, "")
}

fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(program).is_file())
}

fn spawn(command: &mut Command, dir: &Path, name: &str) -> io::Result<Process> {
    let log = File::options().create(true).append(true).open(dir.join(format!("{name}.log")))?;
    let piped = name == "cluster" || name == "ceiling";
    let command = if piped { command } else { command.stdin(Stdio::null()).stdout(log.try_clone()?) };
    command.stderr(log).spawn().map(Process)
}

fn fresh(dir: &Path, name: &str) -> io::Result<std::path::PathBuf> {
    let data = dir.join(name);
    let _ = std::fs::remove_dir_all(&data);
    std::fs::create_dir_all(&data)?;
    Ok(data)
}

/// An address that nobody listens on.
fn free() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn listens(address: SocketAddr) -> io::Result<()> {
    let until = Deadline::after(STARTS_WITHIN);
    while TcpStream::connect(address).is_err() {
        if until.passed() {
            return Err(io::Error::other(format!("nobody listens on {address}")));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
