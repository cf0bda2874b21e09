//! One decision and its entry into the register, by kind of limit: `cargo bench --bench limiter`.

use divan::{Bencher, black_box};
use quorate::limiter::{
    Bucket, Concurrency, Decision, Entry, Limit, Part, Register, Spacing, Span, Terms, Time, Window, decide,
};

fn main() {
    divan::main();
}

const KINDS: [&str; 4] = ["spacing", "bucket", "window", "concurrency"];

fn limit(kind: &str) -> Limit {
    let rate = "1000/s".parse().expect("a rate");
    let made = match kind {
        "spacing" => Spacing::new(rate, Span::ZERO, 100).map(Limit::Spacing),
        "bucket" => Bucket::new(rate, 50, Span::ZERO, 0).map(Limit::Bucket),
        "window" => Window::sliding(rate, None).map(Limit::Window),
        _ => Concurrency::new(1_000, Span::from_millis(100)).map(Limit::Concurrency),
    };
    made.expect("a limit")
}

/// A key that is asked every two milliseconds, so that nearly every request is granted at once.
#[divan::bench(args = KINDS)]
fn granted(bencher: Bencher<'_, '_>, kind: &str) {
    let limit = limit(kind);
    let (mut register, mut now, mut permit) = (Register::default(), Time::ZERO, 0);
    bencher.bench_local(|| {
        now = now.after(Span::from_millis(2));
        permit += 1;
        let part = Part { register: &register, limit: &limit, cost: 1 };
        if let Decision::Granted { slot } = black_box(decide(&[part], now, &Terms::default())) {
            register.take(&limit, now, Span::ZERO, &Entry { permit, slot, cost: 1, request: None });
        }
    });
}

/// A key that has nothing more to give.
#[divan::bench(args = KINDS)]
fn denied(bencher: Bencher<'_, '_>, kind: &str) {
    let limit = limit(kind);
    let (mut register, now) = (Register::default(), Time(1_000_000_000));
    for permit in 1..=2_000 {
        let part = Part { register: &register, limit: &limit, cost: 1 };
        let Decision::Granted { slot } = decide(&[part], now, &Terms::default()) else { break };
        register.take(&limit, now, Span::ZERO, &Entry { permit, slot, cost: 1, request: None });
    }
    bencher.bench_local(|| {
        let part = Part { register: &register, limit: &limit, cost: 1 };
        black_box(decide(&[part], now, &Terms::default()))
    });
}
