//! What the workers and the target saw: one JSON line an event, times on the machine's monotonic clock.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// One thing that a worker did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    /// One attempt of a request for a permit.
    #[serde(rename = "a")]
    Acquire(Attempt),
    /// One attempt to give a permit back.
    #[serde(rename = "r")]
    Release(Release),
    /// One linearizable look at a key.
    #[serde(rename = "l")]
    Look(Look),
    /// A permit whose window had closed before it could be used.
    #[serde(rename = "d")]
    Discarded {
        /// The key.
        key: u16,
        /// The permit.
        permit: u64,
    },
}

/// Which request: attempts of one request share it.
pub(super) type RequestNumber = (u32, u64);

/// One attempt of a request for a permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    /// Worker and number; they are the request id.
    #[serde(rename = "n")]
    pub request: RequestNumber,
    /// The key's place in the list.
    #[serde(rename = "k")]
    pub key: u16,
    /// When it was sent.
    #[serde(rename = "s")]
    pub sent_ns: u64,
    /// When the answer, or the news that there is none, arrived.
    #[serde(rename = "b")]
    pub back_ns: u64,
    /// What came of it.
    #[serde(rename = "o")]
    pub outcome: Outcome,
}

/// What came of one attempt to acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// A permit.
    #[serde(rename = "g")]
    Granted(Grant),
    /// Over the limit, and nothing consumed: the slot was farther ahead than this. `None` where the answer does not tell.
    #[serde(rename = "d")]
    Denied(Option<u64>),
    /// Decided, but too late to be used: the slot is spent.
    #[serde(rename = "x")]
    Expired,
    /// Certainly not applied, and why.
    #[serde(rename = "n")]
    NotApplied(String),
    /// It may or may not have been applied, and why nobody knows.
    #[serde(rename = "u")]
    Unknown(String),
    /// An answer that no worker should ever get.
    #[serde(rename = "w")]
    Wrong(String),
}

/// A permit as it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    /// The fencing number.
    #[serde(rename = "p")]
    pub permit: u64,
    /// Cluster time of the slot.
    #[serde(rename = "s")]
    pub slot_us: u64,
    /// Start no earlier than this after the receipt.
    #[serde(rename = "w")]
    pub wait_us: u64,
    /// Start no later than this after the first send.
    #[serde(rename = "b")]
    pub before_us: Option<u64>,
    /// Remembered from an earlier attempt.
    #[serde(rename = "r")]
    pub replayed: bool,
    /// The node held the answer until the slot had come: its deadline counts the time in line as well.
    #[serde(rename = "h")]
    pub held: bool,
}

/// One attempt to give a permit back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Release {
    /// The key's place in the list.
    #[serde(rename = "k")]
    pub key: u16,
    /// The permit.
    #[serde(rename = "p")]
    pub permit: u64,
    /// When it was sent.
    #[serde(rename = "s")]
    pub sent_ns: u64,
    /// When the answer, or the news that there is none, arrived.
    #[serde(rename = "b")]
    pub back_ns: u64,
    /// Whether it was given back; `None` if nobody knows.
    #[serde(rename = "o")]
    pub released: Option<bool>,
}

/// A look that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Look {
    /// The key's place in the list.
    #[serde(rename = "k")]
    pub key: u16,
    /// When it was sent.
    #[serde(rename = "s")]
    pub sent_ns: u64,
    /// When it was answered.
    #[serde(rename = "b")]
    pub back_ns: u64,
    /// The last permit of the key; 0 if the key is idle.
    #[serde(rename = "p")]
    pub permit: u64,
    /// Cluster time of the look; 0 if the key is idle, which does not tell.
    #[serde(rename = "t")]
    pub now_us: u64,
}

/// What the target saw of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    /// When it arrived.
    #[serde(rename = "a")]
    pub at_ns: u64,
    /// The key's place in the list.
    #[serde(rename = "k")]
    pub key: u16,
    /// The permit.
    #[serde(rename = "p")]
    pub permit: u64,
    /// What the worker was told to be its last instant.
    #[serde(rename = "d")]
    pub deadline_ns: u64,
    /// Set on the end of what a lease allowed.
    #[serde(rename = "e")]
    pub end: bool,
}

/// Writes events as they happen. Threads share it.
#[derive(Debug)]
pub(super) struct Recorder(Mutex<BufWriter<File>>);

impl Recorder {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(BufWriter::with_capacity(1 << 16, File::create(path)?))))
    }

    pub(super) fn note(&self, event: &impl Serialize) {
        let mut line = serde_json::to_vec(event).expect("an event is plain data");
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("the history can be written");
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Reads what a [`Recorder`] wrote.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let lines = BufReader::new(File::open(path)?).lines();
    lines
        .map(|line| {
            serde_json::from_str(&line?)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
        })
        .collect()
}
