//! A node that says what a test tells it to: a listener, a script of replies, and a record of what was asked.

use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What the fake does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Answers with this status, these extra headers and this body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Reads the request and closes the connection: the outcome is unknown.
    HangUp,
    /// Reads the request and never answers.
    Silence,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    first_line: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// What decides how to react.
type Mind = dyn Fn(&Request) -> Act + Send + Sync;

/// A fake node.
pub(crate) struct Fake {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Fake {
    /// One that follows a script, whatever it is asked. It goes on with its last act for ever.
    pub(crate) fn new(acts: Vec<Act>) -> Self {
        let script = Mutex::new(acts);
        Self::with(move |_| {
            let mut script = script.lock().expect("no panic in the fake");
            if script.len() > 1 { script.remove(0) } else { script[0].clone() }
        })
    }

    /// One that looks at what it is asked.
    pub(crate) fn with(mind: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mind: Arc<Mind> = Arc::new(mind);
        let seen = Arc::clone(&requests);
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mind, seen) = (Arc::clone(&mind), Arc::clone(&seen));
                thread::spawn(move || serve(stream, &*mind, &seen));
            }
        });
        Self { url, requests }
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic in the fake").clone()
    }

    /// First line and body of every request so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.requests().iter().map(|request| format!("{}\n{}", request.first_line, request.body)).collect()
    }

    /// The request ids of all that was asked.
    pub(crate) fn request_ids(&self) -> Vec<String> {
        let id = |body: &String| {
            let json = body.split_once('\n').map(|(_, json)| json).unwrap_or_default();
            let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            value["request_id"].as_str().unwrap_or_default().to_owned()
        };
        self.asked().iter().map(id).collect()
    }
}

fn serve(stream: TcpStream, mind: &Mind, seen: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader) {
        seen.lock().expect("no panic in the fake").push(request.clone());
        let act = mind(&request);
        match act {
            Act::HangUp => return,
            Act::Silence => loop {
                thread::park();
            },
            Act::Answer(status, headers, body) => {
                let mut answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    answer += &[name, ": ", &value, "\r\n"].concat();
                }
                answer += &["\r\n", &body].concat();
                if writer.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(Some(0), |(_, value)| value.parse().ok())?];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split_whitespace().map(str::to_owned);
    Some(Request {
        method: words.next()?,
        path: words.next()?,
        first_line: first.trim_end().to_owned(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// A grant of permit 7, in this many milliseconds.
pub(crate) fn granted(wait_ms: &str) -> Act {
    Act::Answer(200, Vec::new(), grant(wait_ms, ""))
}

/// The body of a grant, with more members if wanted.
pub(crate) fn grant(wait_ms: &str, more: &str) -> String {
    format!(r#"{{"granted":true,"key":"k","permit":7,"slot_ms":1,"wait_ms":{wait_ms},"reserved":0{more}}}"#)
}

/// A problem of ours.
pub(crate) fn problem(status: u16, code: &str) -> Act {
    let body = format!(
        r#"{{"type":"urn:quorate:error:{code}","title":"t","status":{status},"detail":"said {code}","code":"{code}"}}"#
    );
    Act::Answer(status, vec![("content-type", "application/problem+json".to_owned())], body)
}

/// The URL of a port where nobody listens, and nobody else can: it stays bound until the test process ends.
pub(crate) fn nobody() -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    let address = socket.local_addr().expect("an address").as_socket().expect("of the Internet");
    std::mem::forget(socket);
    format!("http://{address}")
}
