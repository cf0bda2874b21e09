//! Draws `docs/pictures/limits.svg` from real runs: the same bursty requests, put to one limit of each kind.
//!
//! `REWRITE=1 cargo test --test limits_table picture` writes it anew; look at it before you commit it. It is a test and not a
//! program of its own, so that the picture cannot get old. All arithmetic is in whole numbers, so it is the same everywhere.

use super::document::read;
use super::stage::{Rng, Stage, ms, sec};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

const PATH: &str = "docs/pictures/limits.svg";
const BYTES_MAX: usize = 60_000;

/// What is shown, and the `T` of "in the last T".
const LENGTH: u64 = sec(40);
const LAST: u64 = sec(5);
/// The most that the curve shows: twice what a window grants.
const CURVE_MAX: u64 = 10;

/// In pixels.
const WIDTH: u64 = 960;
const LEFT: u64 = 196;
const RIGHT: u64 = 940;
const TOP: u64 = 92;
const LANE: u64 = 132;
/// From the top of a lane to the line that grants stand on, and to the zero of the curve.
const STAND: u64 = 42;
const ZERO: u64 = 124;
const MARK: u64 = 6;

const STYLE: &str = "\
.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.rule{stroke:#d1d9e0;fill:none}\
.tick{stroke:#59636e;stroke-width:1.2;fill:none}.grant{stroke:#0969da;stroke-width:5;stroke-linecap:round;fill:none}\
.denial{stroke:#bc4c00;stroke-width:1.1;fill:none}.curve{stroke:#1a7f37;stroke-width:1.4;fill:#1a7f37;fill-opacity:.13}\
.five{stroke:#1a7f37;stroke-width:.8;stroke-dasharray:3 3;fill:none}\
text{font:12px system-ui,sans-serif}.name{font-weight:600;font-size:14px}.code{font:10px ui-monospace,monospace}\
@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.rule{stroke:#30363d}\
.tick{stroke:#9198a1}.grant{stroke:#58a6ff}.denial{stroke:#f0883e}.curve{stroke:#3fb950;fill:#3fb950}.five{stroke:#3fb950}}";

/// One limit, and what became of all requests.
struct Lane {
    name: &'static str,
    limit: Value,
    slots: Vec<u64>,
    denials: Vec<u64>,
}

/// Bursts with pauses, and a few requests in between: the same every time.
fn arrivals() -> Vec<u64> {
    let mut rng = Rng::new(5);
    let mut all = Vec::new();
    for (begin, count) in [(800, 8), (8_900, 7), (10_050, 9), (18_600, 5), (24_500, 12), (33_000, 6)] {
        all.extend((0..count).map(|_| ms(begin + rng.below(900))));
    }
    all.extend((0..10).map(|_| rng.below(LENGTH - sec(2))));
    all.sort_unstable();
    all
}

fn lanes() -> Vec<Lane> {
    let limits = [
        ("spacing", json!({"rate": "1/s", "max_reserved": 5})),
        ("bucket", json!({"kind": "bucket", "rate": "1/s", "burst": 5})),
        ("sliding window", json!({"kind": "window", "rate": "5/5s", "resolution": "500ms"})),
        ("aligned window", json!({"kind": "window", "rate": "5/5s", "aligned": true})),
        ("ramp", json!({"rate": "1/s", "max_reserved": 5, "ramp": {"from": "1/4s", "over": "20s"}})),
    ];
    let run = |(name, limit): (&'static str, Value)| {
        let mut stage = Stage::new(&[read(&limit)]);
        let (mut slots, mut denials) = (Vec::new(), Vec::new());
        for at in arrivals() {
            match stage.at(at).ask() {
                Ok(slot) => slots.push(slot),
                Err(_) => denials.push(at),
            }
        }
        Lane { name, limit, slots, denials }
    };
    limits.into_iter().map(run).collect()
}

/// Tenths of a pixel.
struct Tenths(u64);

impl std::fmt::Display for Tenths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{}", self.0 / 10),
            tenth => write!(f, "{}.{tenth}", self.0 / 10),
        }
    }
}

fn x(at: u64) -> Tenths {
    Tenths(10 * LEFT + at / ms(1) * 10 * (RIGHT - LEFT) / (LENGTH / ms(1)))
}

/// Where each mark stands, and how many stand below it because they would cover each other.
fn stacked(instants: &[u64]) -> Vec<(Tenths, u64)> {
    let mut placed: Vec<(u64, u64)> = Vec::new();
    for at in instants.iter().filter(|at| **at <= LENGTH) {
        let at = x(*at).0;
        let beside = placed.iter().filter(|(other, _)| at - other < 10 * MARK).map(|(_, level)| *level);
        let taken: Vec<_> = beside.collect();
        let level = (0..instants.len() as u64).find(|level| !taken.contains(level)).unwrap_or(0);
        placed.push((at, level));
    }
    placed.into_iter().map(|(at, level)| (Tenths(at), level)).collect()
}

/// How many slots lie in the last [`LAST`], as a line of steps.
fn curve(slots: &[u64], zero: u64) -> String {
    let mut changes: Vec<_> = slots.iter().flat_map(|slot| [(*slot, 1), (slot + LAST, -1)]).collect();
    changes.retain(|(at, _)| *at <= LENGTH);
    changes.sort_unstable();
    let height = |count: i64| 4 * u64::try_from(count).expect("a count");
    let (mut path, mut count) = (format!("M{LEFT} {zero}"), 0);
    for (index, (at, change)) in changes.iter().enumerate() {
        count += change;
        if changes.get(index + 1).is_none_or(|(next, _)| next != at) {
            write!(path, "H{}V{}", x(*at), zero - height(count)).expect("text");
        }
    }
    path + &format!("H{RIGHT}V{zero}Z")
}

fn draw() -> String {
    let lanes = lanes();
    let height = TOP + LANE * lanes.len() as u64 + 30;
    let mut svg = String::new();
    let mut line = |text: String| svg += &(text + "\n");
    line(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">"
    ));
    line("<title>The same requests under five limits</title>".to_owned());
    line(
        "<desc>Made from real runs by tests/limits_table/picture.rs. One lane a limit: grants at their slots, \
         denials when they were asked, and the number of grants in the last five seconds.</desc>"
            .to_owned(),
    );
    line(format!("<style>{STYLE}</style><rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>"));
    line(format!("<text class=\"ink name\" x=\"16\" y=\"28\">{} requests</text>", arrivals().len()));
    line("<text class=\"soft\" x=\"16\" y=\"46\">under five limits, each 1/s</text>".to_owned());
    // The legend.
    line(format!(
        "<path class=\"tick\" d=\"M{LEFT} 16v10\"/><text class=\"soft\" x=\"{}\" y=\"26\">asked</text>\
         <path class=\"grant\" d=\"M{} 21h.1\"/><text class=\"soft\" x=\"{}\" y=\"26\">granted, at its slot</text>\
         <path class=\"denial\" d=\"{}\"/><text class=\"soft\" x=\"{}\" y=\"26\">denied</text>\
         <path class=\"curve\" d=\"M{} 25v-8h18v8z\"/><text class=\"soft\" x=\"{}\" y=\"26\">granted in the last 5 s; the dashed line is 5</text>",
        LEFT + 6,
        LEFT + 64,
        LEFT + 72,
        hollow(&Tenths(10 * (LEFT + 208)), 21),
        LEFT + 216,
        LEFT + 282,
        LEFT + 306,
    ));
    let bottom = TOP + LANE * lanes.len() as u64;
    for second in (0..=LENGTH / sec(1)).step_by(5) {
        let x = x(sec(second));
        line(format!(
            "<path class=\"rule\" d=\"M{x} 60V{bottom}\"/><text class=\"soft\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{second} s</text>",
            bottom + 18
        ));
    }
    let ticks: Vec<_> = arrivals().iter().map(|at| format!("M{} 64v18", x(*at))).collect();
    line(format!("<path class=\"tick\" d=\"{}\"/>", ticks.concat()));
    for (index, lane) in lanes.iter().enumerate() {
        line(one(lane, TOP + LANE * index as u64));
    }
    svg + "</svg>\n"
}

/// A small circle.
fn hollow(x: &Tenths, y: u64) -> String {
    format!("M{} {y}a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0-4.4 0", Tenths(x.0 - 22))
}

fn one(lane: &Lane, top: u64) -> String {
    let (stand, zero) = (top + STAND, top + ZERO);
    let dot = |(x, level): &(Tenths, u64)| format!("M{x} {}h.1", stand - 4 - level * MARK);
    let grants = stacked(&lane.slots).iter().map(dot).collect::<Vec<_>>().concat();
    let ring = |(x, level): &(Tenths, u64)| hollow(x, stand + 5 + level * MARK);
    let denials = stacked(&lane.denials).iter().map(ring).collect::<Vec<_>>().concat();
    let five = zero - 4 * CURVE_MAX / 2;
    let (kind, members) = split(&lane.limit);
    format!(
        "<path class=\"rule\" d=\"M16 {top}H{RIGHT}M{LEFT} {stand}H{RIGHT}\"/>\
         <text class=\"ink name\" x=\"16\" y=\"{}\">{}</text>\
         <text class=\"soft code\" x=\"16\" y=\"{}\">{kind}</text><text class=\"soft code\" x=\"16\" y=\"{}\">{members}</text>\
         <text class=\"soft\" x=\"16\" y=\"{}\">{} granted, {} denied</text>\
         <path class=\"curve\" d=\"{}\"/><path class=\"five\" d=\"M{LEFT} {five}H{RIGHT}\"/>\
         <path class=\"grant\" d=\"{grants}\"/><path class=\"denial\" d=\"{denials}\"/>",
        top + 24,
        lane.name,
        top + 44,
        top + 58,
        top + 80,
        lane.slots.len(),
        lane.denials.len(),
        curve(&lane.slots, zero),
    )
}

/// The limit in two lines that fit the margin.
fn split(limit: &Value) -> (String, String) {
    let members = limit.as_object().expect("members");
    let text = |name: &String| match &members[name] {
        Value::String(text) => format!("{name} {text}"),
        Value::Object(ramp) => format!("{name} from {} over {}", ramp["from"], ramp["over"]).replace('"', ""),
        other => format!("{name} {other}"),
    };
    let others = members.keys().filter(|name| !["kind", "rate"].contains(&name.as_str()));
    let mut lines: Vec<_> = others.map(text).collect();
    let last = lines.pop().unwrap_or_default();
    lines.insert(0, text(&"rate".to_owned()));
    (lines.join(", "), last)
}

/// What is committed is what the limits do today.
#[test]
fn the_picture_shows_what_runs_show() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PATH);
    let drawn = draw();
    assert!(drawn.len() < BYTES_MAX, "{} bytes", drawn.len());
    if std::env::var_os("REWRITE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        std::fs::write(&path, &drawn).expect("the picture");
    }
    let committed = std::fs::read_to_string(&path).expect("the picture");
    assert!(committed == drawn, "{PATH} is old: REWRITE=1 cargo test --test limits_table picture, and look at it");
}

/// What the picture is there to show.
#[test]
fn the_lanes_differ_in_what_they_are_known_for() {
    let lanes = lanes();
    let most = |lane: &Lane, per: u64| {
        let within = |from: &u64| lane.slots.iter().filter(|slot| (*from..*from + per).contains(slot)).count();
        lane.slots.iter().map(within).max().expect("grants")
    };
    let [spacing, bucket, sliding, aligned, ramp] = &lanes[..] else { panic!("five lanes") };
    assert_eq!((most(spacing, sec(1)), most(ramp, sec(1))), (1, 1), "one a second, always");
    assert_eq!(most(bucket, sec(1)), 5, "a burst");
    assert!(most(sliding, LAST) <= 6 && most(sliding, LAST - ms(500)) == 5, "five in the last five seconds, nearly");
    assert!(most(aligned, LAST) > 8, "twice as many around an edge");
    assert!(ramp.slots.len() < spacing.slots.len(), "and the ramp holds back");
}
