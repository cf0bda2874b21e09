//! Writing: data to stdout, messages to stderr, and no panic when nobody reads.

use super::exit::{Exit, Failure};
use crate::api::Millis;
use crate::telemetry;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Where a command writes and in which form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    json: bool,
}

impl Output {
    pub(super) const fn new(json: bool) -> Self {
        Self { json }
    }

    pub(super) const fn is_json(self) -> bool {
        self.json
    }

    /// One answer: the value as a line of JSON, or the text for people.
    pub(super) fn data(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { line(&json_text(value)?) } else { line(&text()) }
    }

    /// Says why a command ended early and with which code.
    pub(super) fn failed(self, failure: &Failure) -> Exit {
        if !failure.message.is_empty() {
            message(&failure.message);
            if self.json {
                // Whoever asked for JSON gets JSON, also for what failed. Nothing is left to do if that fails as well.
                let _ = line(&failed_json(failure));
            }
        }
        failure.exit
    }
}

/// A line on stdout.
pub(super) fn line(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::error(format!("cannot write to stdout: {error}")),
    })
}

/// A message on stderr, under the program's name. `eprintln!` would panic if stderr is closed.
pub(super) fn message(text: &str) {
    let mut stderr = io::stderr().lock();
    for text in text.lines() {
        let _ = writeln!(stderr, "quorate: {text}");
    }
}

pub(super) fn json_text(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::error(format!("no JSON comes of that: {error}")))
}

/// The problem as the node gave it, else an object with the same two members that programs go by.
fn failed_json(failure: &Failure) -> String {
    if let Some(text) = failure.problem.as_ref().and_then(|problem| serde_json::to_string(problem).ok()) {
        return text;
    }
    let mut object = serde_json::json!({ "code": failure.exit.word(), "detail": failure.message });
    if let Some(id) = &failure.request_id {
        object["request_id"] = id.as_str().into();
    }
    object.to_string()
}

/// Text in a colour, if stdout is a terminal and nobody minds.
pub(super) fn paint(text: impl Display, colour: Colour) -> String {
    if telemetry::colour(io::stdout().is_terminal()) {
        format!("\x1b[{}m{text}\x1b[0m", colour as u8)
    } else {
        text.to_string()
    }
}

/// The colours there are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Colour {
    Bold = 1,
    Red = 31,
    Green = 32,
}

/// Rows as lines whose columns stand under each other.
pub(super) fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Milliseconds as people read them: `5.211 s`, rounded up like every wait.
pub(super) fn seconds(millis: Millis) -> String {
    let ms = millis.micros().div_ceil(1_000);
    format!("{}.{:03} s", ms / 1_000, ms % 1_000)
}

/// The same, rounded down like every deadline.
pub(super) fn seconds_down(millis: Millis) -> String {
    seconds(Millis::down_from_ns(millis.ns() / 1_000_000 * 1_000_000))
}

/// Rows as lines, every column as wide as its widest cell.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_and_deadlines_down() {
        assert_eq!(seconds(Millis::up_from_ns(5_210_417_000)), "5.211 s");
        assert_eq!(seconds(Millis::ZERO), "0.000 s");
        assert_eq!(seconds_down(Millis::up_from_ns(29_970_999_000)), "29.970 s");
    }
}
