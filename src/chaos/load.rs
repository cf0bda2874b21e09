//! What the workers ask for: which keys there are and what each of them promises.
//!
//! Intervals are short, so that a minute holds thousands of starts, and start windows are wide enough for an answer to
//! arrive within them on a busy machine.

use crate::api::{Kind, Limit, LimitMembers};

/// What a key promises to those who start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// Starts are never closer than the interval.
    Spacing {
        /// Between two starts.
        interval_us: u64,
        /// How late a start may be.
        window_us: u64,
        /// Most permits ahead.
        max_reserved: u64,
    },
    /// Never more than `burst + rate · (t + window)` starts in any `t`.
    Bucket {
        /// Between two tokens.
        interval_us: u64,
        /// Tokens at most.
        burst: u64,
        /// How late a start may be.
        window_us: u64,
    },
    /// Never more than so many at once.
    Concurrency {
        /// At once.
        max: u64,
        /// How long one lasts if nobody ends it.
        lease_us: u64,
    },
    /// Never more than so many slots in so many cells in a row, in cluster time. It says nothing of starts.
    Window {
        /// In all of these cells.
        count: u64,
        /// The length of one.
        cell_us: u64,
        /// In a row: one if the window is aligned.
        cells: u64,
    },
}

/// One key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    /// Its name.
    pub name: String,
    /// What it promises.
    pub promise: Promise,
}

/// Keys of each kind: most are spaced, because that is what the model knows best.
const SPACED: u16 = 64;
const BUCKETS: u16 = 8;
const LEASED: u16 = 4;
const WINDOWS: u16 = 8;

/// How many keys there are.
pub(super) const KEYS: u16 = SPACED + BUCKETS + LEASED + WINDOWS;

/// All keys; a key is known by its place in this list.
pub(super) fn keys() -> Vec<Key> {
    let spaced = (0..SPACED).map(|n| {
        let interval_us = [20_000, 40_000, 80_000, 160_000][usize::from(n % 4)];
        let window_us = [60_000, 100_000][usize::from(n / 4 % 2)];
        let promise = Promise::Spacing { interval_us, window_us, max_reserved: 4 + u64::from(n % 3) };
        Key { name: format!("spaced-{n}"), promise }
    });
    let buckets = (0..BUCKETS).map(|n| {
        let promise = Promise::Bucket { interval_us: 50_000, burst: 2 + u64::from(n % 4), window_us: 100_000 };
        Key { name: format!("bucket-{n}"), promise }
    });
    let leased = (0..LEASED).map(|n| {
        let promise = Promise::Concurrency { max: 2 + u64::from(n % 2), lease_us: 2_000_000 };
        Key { name: format!("leased-{n}"), promise }
    });
    let windows = (0..WINDOWS).map(|n| {
        // Sliding and aligned, and few enough that they are full most of the time.
        let (cell_us, cells) = if n % 2 == 0 { (250_000, 4) } else { (800_000, 1) };
        Key {
            name: format!("window-{n}"),
            promise: Promise::Window { count: 2 + u64::from(n / 2 % 2), cell_us, cells },
        }
    });
    spaced.chain(buckets).chain(leased).chain(windows).collect()
}

impl Key {
    /// The limit as a request carries it.
    pub(super) fn limit(&self) -> Limit {
        let millis = |us: u64| format!("{}ms", us / 1_000);
        let members = match self.promise {
            Promise::Spacing { interval_us, window_us, max_reserved } => LimitMembers {
                rate: Some(format!("1/{}", millis(interval_us))),
                start_window: Some(millis(window_us)),
                max_reserved: Some(max_reserved),
                ..LimitMembers::default()
            },
            Promise::Bucket { interval_us, burst, window_us } => LimitMembers {
                kind: Some(Kind::Bucket),
                rate: Some(format!("1/{}", millis(interval_us))),
                burst: Some(burst),
                start_window: Some(millis(window_us)),
                max_reserved: Some(4),
                ..LimitMembers::default()
            },
            Promise::Concurrency { max, lease_us } => LimitMembers {
                kind: Some(Kind::Concurrency),
                max: Some(max),
                lease: Some(millis(lease_us)),
                ..LimitMembers::default()
            },
            Promise::Window { count, cell_us, cells } => LimitMembers {
                kind: Some(Kind::Window),
                rate: Some(format!("{count}/{}", millis(cell_us * cells))),
                resolution: (cells > 1).then(|| millis(cell_us)),
                aligned: (cells == 1).then_some(true),
                ..LimitMembers::default()
            },
        };
        Limit::Members(Box::new(members))
    }

    /// The distance of two slots; nothing where slots are not spaced.
    pub(super) const fn unit_us(&self) -> u64 {
        match self.promise {
            Promise::Spacing { interval_us, window_us, .. } => interval_us + window_us,
            Promise::Bucket { .. } | Promise::Concurrency { .. } | Promise::Window { .. } => 0,
        }
    }
}
