//! What `quorate up` says, as text or as one JSON object a line.

use super::layout::Layout;
use crate::cli::exit::Failure;
use crate::cli::output::{self, Colour, Output, paint};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Something worth saying.
#[derive(Debug)]
pub(super) enum Event<'a> {
    Starting { layout: &'a Layout, data: &'a Path },
    Started { id: u64, pid: u32 },
    Ready { leader: u64, after: Duration },
    Leader { leader: Option<u64> },
    Died { id: u64, how: &'a str, last_lines: &'a [String], again_in: Duration },
    Stopping,
    Stopped { in_order: bool },
}

/// Says it.
#[derive(Debug)]
pub(super) struct Report {
    output: Output,
    /// Where the example goes to.
    try_url: String,
    /// Starts after the first are news.
    started: Vec<u64>,
}

impl Report {
    pub(super) fn new(output: Output) -> Self {
        Self { output, try_url: String::new(), started: Vec::new() }
    }

    pub(super) fn event(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        if let Event::Starting { layout, .. } = event {
            self.try_url = layout.nodes.first().map(super::layout::Place::url).unwrap_or_default();
        }
        let again = match event {
            Event::Started { id, .. } if self.started.contains(id) => true,
            Event::Started { id, .. } => {
                self.started.push(*id);
                false
            }
            _ => false,
        };
        if self.output.is_json() {
            return output::line(&object(event).to_string());
        }
        match self.text(event, again) {
            Some(text) => output::line(&text),
            None => Ok(()),
        }
    }

    fn text(&self, event: &Event<'_>, again: bool) -> Option<String> {
        Some(match event {
            Event::Starting { layout, data } => starting(layout, data),
            Event::Started { id, pid } if again => format!("node {id} runs again (pid {pid})"),
            Event::Started { .. } => return None,
            Event::Ready { leader, after } => format!(
                "\n{} after {:.1} s: node {leader} leads. Try it, as often as you like:\n\n  \
                 curl -s {}/acquire -d '{{\"key\":\"demo\",\"limit\":\"1/6s\"}}'\n\n\
                 Ctrl-C stops the cluster; the data stays.\n",
                paint("Ready", Colour::Green),
                after.as_secs_f32(),
                self.try_url
            ),
            Event::Leader { leader: Some(leader) } => format!("node {leader} leads now"),
            Event::Leader { leader: None } => "nobody leads: no majority of the nodes reach each other".to_owned(),
            Event::Died { id, how, last_lines, again_in } => {
                let mut text = paint(format!("node {id} {how}"), Colour::Red);
                let _ = write!(text, "; starting it again in {:.1} s. The end of its log:", again_in.as_secs_f32());
                for line in *last_lines {
                    let _ = write!(text, "\n  node {id} | {line}");
                }
                text
            }
            Event::Stopping => "\nstopping".to_owned(),
            Event::Stopped { in_order: true } => "stopped".to_owned(),
            Event::Stopped { in_order: false } => "stopped, but not all nodes in good order: see their logs".to_owned(),
        })
    }
}

/// A warning from the log of a node.
pub(super) fn warning(id: u64, line: &str) {
    let _ = writeln!(std::io::stderr(), "node {id} | {line}");
}

fn starting(layout: &Layout, data: &Path) -> String {
    let mut text = format!(
        "{}, data in {}\n",
        paint(format!("A cluster of {} nodes", layout.nodes.len()), Colour::Bold),
        std::path::absolute(data).unwrap_or_else(|_| data.to_owned()).display()
    );
    for node in &layout.nodes {
        let _ = write!(text, "\n  node {}  {}  (log: {})", node.id, node.url(), node.log(data).display());
    }
    text
}

fn object(event: &Event<'_>) -> Value {
    match event {
        Event::Starting { layout, data } => {
            let node = |node: &super::layout::Place| json!({ "id": node.id, "client": node.url(), "peer": node.peer, "log": node.log(data) });
            json!({ "event": "starting", "data": data, "nodes": layout.nodes.iter().map(node).collect::<Vec<_>>() })
        }
        Event::Started { id, pid } => json!({ "event": "started", "node": id, "pid": pid }),
        Event::Ready { leader, after } => json!({ "event": "ready", "leader": leader, "after_ms": millis(*after) }),
        Event::Leader { leader } => json!({ "event": "leader", "leader": leader }),
        Event::Died { id, how, last_lines, again_in } => {
            json!({ "event": "died", "node": id, "how": how, "log": last_lines, "again_in_ms": millis(*again_in) })
        }
        Event::Stopping => json!({ "event": "stopping" }),
        Event::Stopped { in_order } => json!({ "event": "stopped", "in_order": in_order }),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
