//! Scripts for the state machine with their whole expected output: `tests/golden/*.txt`.
//!
//! `REWRITE=1 cargo test --test golden` writes what is found in place of what was expected. Read the diff before you commit
//! it: a script that changes is a promise or a format that changes. Every script starts with a fresh machine.
//!
//! ```text
//! batch at=6s leader=T1-N1 [appended_by=T2-N1] [keys_max=3]     one entry; its commands follow, one a line:
//! acquire key=a limit=1/6s [window=250ms] [max_reserved=2] [cost=3] [lead=1s] [max_wait=5s] [now_only] [id=x]
//! tick at=6s                                                    an entry without commands
//! view key=a [at=6s]                                            a look at one key
//! keys                                                          how much is held
//! digest                                                        of the whole state
//! snapshot-roundtrip                                            goes on with what was written and read back
//! matches file=snapshot-v1.bin                                  compares the state with stored bytes
//! read file=snapshot-v1.bin                                     goes on with stored bytes
//! limit                                                         limits as they are understood, one a line:
//! 1/6s [window=250ms] [max_reserved=2]
//! ```

use datadriven::TestCase;
use quorate::limiter::{Ask, Key, Limit, LimitError, Rate, Spacing, Span, Time, parse_duration};
use quorate::limits::{KEYS_DEFAULT, MAX_RESERVED_DEFAULT};
use quorate::state::{Acquire, Applied, Batch, Command, Grant, Identity, LeaderId, Machine, Outcome, Stamp};
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[test]
fn scripts() {
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    let mut run = 0;
    for script in &scripts {
        datadriven::walk(script.to_str().unwrap(), |file| {
            let mut stage = Stage::default();
            file.run(|case| stage.run(case));
            run += 1;
        });
    }
    assert!(run == scripts.len() && run >= 11, "{run} of {} scripts were run", scripts.len());
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Where a script plays.
#[derive(Default)]
struct Stage {
    machine: Machine,
}

/// Whatever is wrong with a script: shown with the line it stands on.
type Trouble = Box<dyn std::error::Error>;

impl Stage {
    fn run(&mut self, case: &mut TestCase) -> Result<String, String> {
        self.command(case).map_err(|trouble| trouble.to_string())
    }

    fn command(&mut self, case: &mut TestCase) -> Result<String, Trouble> {
        let found = match case.directive.as_str() {
            "batch" | "tick" => self.batch(case)?,
            "view" => self.view(case)?,
            "keys" => self.keys(),
            "digest" => self.digest(),
            "snapshot-roundtrip" => self.roundtrip()?,
            "matches" => self.matches(&case.take_arg::<String>("file")?)?,
            "read" => self.read(&case.take_arg::<String>("file")?)?,
            "limit" => limits(&case.input)?,
            other => return Err(format!("there is no command {other:?}").into()),
        };
        case.expect_empty()?;
        Ok(found)
    }

    fn batch(&mut self, case: &mut TestCase) -> Result<String, Trouble> {
        let stamper =
            case.try_take_arg::<String>("leader")?.map_or(Ok(LeaderId { term: 1, node: 1 }), |id| leader(&id))?;
        let appender = case.try_take_arg::<String>("appended_by")?.map_or(Ok(stamper), |id| leader(&id))?;
        let stamp = Stamp { leader: stamper, time: time(&case.take_arg::<String>("at")?)? };
        let keys_max = case.try_take_arg("keys_max")?.unwrap_or(KEYS_DEFAULT);
        let commands = case.input.lines().map(acquire).collect::<Result<_, _>>()?;
        let mut text = String::new();
        match self.machine.apply(appender, &Batch { stamp, keys_max, commands }) {
            Applied::Decided { now, outcomes } => {
                writeln!(text, "now {now}")?;
                for outcome in &outcomes {
                    writeln!(text, "{}", describe(outcome))?;
                }
            }
            other => writeln!(text, "{other}")?,
        }
        Ok(text)
    }

    fn view(&self, case: &mut TestCase) -> Result<String, Trouble> {
        let key = Key::new(&case.take_arg::<String>("key")?)?;
        let at = case.try_take_arg::<String>("at")?.map_or(Ok(self.machine.now()), |text| time(&text))?;
        Ok(match self.machine.view(&key, at) {
            None => "fresh\n".to_owned(),
            Some(view) => format!(
                "next={} reserved={} permit={} limit={}\n",
                view.next,
                view.reserved,
                view.permit,
                canonical(&view.limit)
            ),
        })
    }

    fn keys(&self) -> String {
        let (machine, now) = (&self.machine, self.machine.now());
        format!(
            "keys={} request_ids={} permits={} now={now}\n",
            machine.keys(),
            machine.request_ids(),
            machine.permits()
        )
    }

    fn digest(&self) -> String {
        format!("{}\n", blake3::Hash::from_bytes(self.machine.freeze().digest()).to_hex())
    }

    fn bytes(&self) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        self.machine.freeze().write(&mut bytes)?;
        Ok(bytes)
    }

    fn roundtrip(&mut self) -> Result<String, Trouble> {
        let (written, digest) = (self.bytes()?, self.digest());
        self.machine = Machine::read(&mut written.as_slice())?;
        let same = if self.digest() == digest && self.bytes()? == written { "the same state" } else { "another state" };
        Ok(format!("{same}, {} bytes\n", written.len()))
    }

    fn matches(&self, file: &str) -> Result<String, Trouble> {
        let (path, written) = (folder().join(file), self.bytes()?);
        // A fixture is written once and for ever: only one that is missing is made, and only when asked for.
        if !path.exists() && std::env::var_os("REWRITE").is_some() {
            std::fs::write(&path, &written)?;
        }
        let same = if std::fs::read(&path)? == written { "the same bytes" } else { "other bytes" };
        Ok(format!("{same}\n"))
    }

    fn read(&mut self, file: &str) -> Result<String, Trouble> {
        let stored = std::fs::read(folder().join(file))?;
        self.machine = Machine::read(&mut stored.as_slice())?;
        Ok(self.keys())
    }
}

/// One line of a batch.
fn acquire(line: &str) -> Result<Command, Trouble> {
    let mut words = line.split_whitespace();
    if words.next() != Some("acquire") {
        return Err(format!("a batch has lines of \"acquire …\", not {line:?}").into());
    }
    let (mut key, mut rate, mut id) = (None, None, None);
    let (mut window, mut max_reserved) = (Span::ZERO, MAX_RESERVED_DEFAULT);
    let mut ask = Ask::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("key", text) => key = Some(Key::new(text)?),
            ("limit", text) => rate = Some(text.parse::<Rate>()?),
            ("window", text) => window = span(text)?,
            ("max_reserved", text) => max_reserved = text.parse()?,
            ("cost", text) => ask.cost = text.parse()?,
            ("lead", text) => ask.lead = span(text)?,
            ("max_wait", text) => ask.max_wait = Some(span(text)?),
            ("now_only", "") => ask.free_now_only = true,
            ("id", text) => id = Some(text),
            _ => return Err(format!("an acquire has no {word:?}").into()),
        }
    }
    let key = key.ok_or("an acquire has a key")?;
    let limit = rate.map(|rate| Spacing::new(rate, window, max_reserved).map(Limit::Spacing)).transpose()?;
    let identity = id.map(|id| Identity::of(id, &key, limit.as_ref(), ask.cost));
    Ok(Command::Acquire(Acquire { key, limit, ask, identity }))
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(grant) => describe_grant(grant),
        Outcome::Denied(denial) => format!("denied {} retry_after={}", denial.reason.as_str(), denial.retry_after),
        Outcome::NoLimit => "no limit".to_owned(),
        Outcome::Never(why) => format!("never: {why}"),
        Outcome::RequestIdReused => "request id reused".to_owned(),
        Outcome::TooManyKeys { retry_after } => format!("too many keys retry_after={retry_after}"),
        Outcome::TooManyRequestIds { retry_after } => format!("too many request ids retry_after={retry_after}"),
    }
}

fn describe_grant(grant: &Grant) -> String {
    let start_before = grant.start_before.map(|span| format!(" start_before={span}")).unwrap_or_default();
    let expires_at = grant.expires_at.map(|time| format!(" expires_at={time}")).unwrap_or_default();
    let replayed = if grant.replayed { format!(" replayed stamp={}", grant.stamp) } else { String::new() };
    let Grant { permit, slot, reserved, .. } = grant;
    format!("granted permit={permit} slot={slot} reserved={reserved}{start_before}{expires_at}{replayed}")
}

/// The limits of a script, each with what is wrong with it or how it is understood.
fn limits(lines: &str) -> Result<String, Trouble> {
    let mut text = String::new();
    for line in lines.lines() {
        match limit(line)? {
            Ok(limit) => writeln!(text, "{}", canonical(&limit))?,
            Err(error) if error.is_syntax() => writeln!(text, "syntax: {error}")?,
            Err(error) => writeln!(text, "absurd: {error}")?,
        }
    }
    Ok(text)
}

fn limit(line: &str) -> Result<Result<Limit, LimitError>, Trouble> {
    let mut words = line.split(' ');
    let rate = words.next().unwrap_or_default().parse::<Rate>();
    let (mut window, mut max_reserved) = (Ok(Span::ZERO), MAX_RESERVED_DEFAULT);
    for word in words {
        match word.split_once('=') {
            Some(("window", text)) => window = parse_duration(text),
            Some(("max_reserved", text)) => max_reserved = text.parse()?,
            _ => return Err(format!("a limit has no {word:?}").into()),
        }
    }
    let named = |member| move |error| LimitError::Text { member, error };
    Ok(rate.map_err(named("rate")).and_then(|rate| {
        let window = window.map_err(named("start_window"))?;
        Spacing::new(rate, window, max_reserved).map(Limit::Spacing)
    }))
}

/// A limit with everything that it leaves unsaid.
fn canonical(limit: &Limit) -> String {
    let Limit::Spacing(spacing) = limit;
    let (rate, unit) = (spacing.rate(), spacing.unit());
    format!("{rate} window={} max_reserved={} (one every {unit})", spacing.start_window(), spacing.max_reserved())
}

/// `T1-N2`.
fn leader(text: &str) -> Result<LeaderId, Trouble> {
    let (term, node) = text.strip_prefix('T').and_then(|text| text.split_once("-N")).ok_or("a leader is T1-N2")?;
    Ok(LeaderId { term: term.parse()?, node: node.parse()? })
}

/// `12.5s`, as instants are printed.
fn time(text: &str) -> Result<Time, Trouble> {
    let seconds = text.strip_suffix('s').ok_or("an instant is 12.5s")?;
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let fraction_ns = format!("{fraction:0<9}").parse::<u64>()?;
    let time = Time(whole.parse::<u64>()? * 1_000_000_000 + fraction_ns);
    if time.to_string() == text { Ok(time) } else { Err(format!("write {time}, not {text}").into()) }
}

/// `250ms`, and `5ns` and `5us` too.
fn span(text: &str) -> Result<Span, Trouble> {
    if let Some(us) = text.strip_suffix("us") {
        return Ok(Span(us.parse::<u64>()? * 1_000));
    }
    if let Some(ns) = text.strip_suffix("ns") {
        return Ok(Span(ns.parse()?));
    }
    Ok(parse_duration(text)?)
}
