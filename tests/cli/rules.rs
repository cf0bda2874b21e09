//! A fake node that stores policies as the contract has it: revisions, preconditions, one policy a pattern.

use super::fake::{Act, Fake, Request, problem};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What happens to one change that reaches the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is applied, and the answer is lost.
    AnswerLost,
    /// It is lost before it is applied.
    RequestLost,
    /// Somebody else's policy `name` with this `match` is put just before it.
    Intruder(&'static str, &'static str),
    /// Nobody is there to decide.
    NoQuorum,
}

#[derive(Default)]
struct Stored {
    policies: BTreeMap<String, Value>,
    revision: u64,
    /// How many changes have arrived.
    changes: usize,
    faults: Vec<(usize, Fault)>,
}

/// The node and what it stores.
pub(crate) struct Rules {
    pub(crate) fake: Fake,
    stored: Arc<Mutex<Stored>>,
}

impl Rules {
    /// A node with these policies: name, pattern, limit. The first has revision 1.
    pub(crate) fn new(policies: &[(&str, &str, &str)]) -> Self {
        let mut stored = Stored::default();
        for (name, pattern, limit) in policies {
            stored.put(name, &json!({ "match": pattern, "limit": limit }));
        }
        let stored = Arc::new(Mutex::new(stored));
        let shared = Arc::clone(&stored);
        let fake = Fake::with(move |request| shared.lock().expect("no panic in the fake").answer(request));
        Self { fake, stored }
    }

    /// The same, with a fault at the change of this number, counted from 0.
    pub(crate) fn fault(self, change: usize, fault: Fault) -> Self {
        self.stored.lock().expect("no panic in the fake").faults.push((change, fault));
        self
    }

    /// Name, pattern and limit of all policies.
    pub(crate) fn stored(&self) -> Vec<String> {
        let stored = self.stored.lock().expect("no panic in the fake");
        let one = |(name, policy): (&String, &Value)| {
            format!("{name} {} {}", policy["match"], policy["limit"]).replace('"', "")
        };
        stored.policies.iter().map(one).collect()
    }

    /// Method, path and precondition of every change that arrived.
    pub(crate) fn changes(&self) -> Vec<String> {
        let changes = self.fake.requests().into_iter().filter(|request| request.method != "GET");
        let line = |request: Request| {
            let condition = match (request.header("if-match"), request.header("if-none-match")) {
                (Some(revision), _) => format!(" if {revision}"),
                (None, Some(_)) => " if absent".to_owned(),
                (None, None) => String::new(),
            };
            format!("{} {}{condition}", request.method, request.path)
        };
        changes.map(line).collect()
    }
}

impl Stored {
    fn put(&mut self, name: &str, body: &Value) -> Value {
        let overrides = body.get("override").cloned().unwrap_or_else(|| json!([]));
        let same = self.policies.get(name).is_some_and(|old| {
            old["match"] == body["match"] && old["limit"] == body["limit"] && old["override"] == overrides
        });
        if !same {
            self.revision += 1;
            let policy = json!({ "name": name, "match": body["match"], "limit": body["limit"],
                "override": overrides, "revision": self.revision });
            self.policies.insert(name.to_owned(), policy);
        }
        self.policies[name].clone()
    }

    fn answer(&mut self, request: &Request) -> Act {
        if request.method == "GET" {
            return self.look(&request.path);
        }
        let fault = self.faults.iter().find(|(change, _)| *change == self.changes).map(|(_, fault)| fault.clone());
        self.changes += 1;
        match fault {
            None => self.change(request),
            Some(Fault::RequestLost) => Act::HangUp,
            Some(Fault::AnswerLost) => {
                self.change(request);
                Act::HangUp
            }
            Some(Fault::Intruder(name, pattern)) => {
                self.put(name, &json!({ "match": pattern, "limit": "9/s" }));
                self.change(request)
            }
            Some(Fault::NoQuorum) => problem(503, "no_quorum"),
        }
    }

    fn look(&self, path: &str) -> Act {
        if path == "/policies" {
            let policies: Vec<_> = self.policies.values().collect();
            return ok(&json!({ "policies": policies, "revision": self.revision }));
        }
        match path.strip_prefix("/policies/").and_then(|name| self.policies.get(name)) {
            Some(policy) => ok(policy),
            None => problem(404, "no_policy"),
        }
    }

    fn change(&mut self, request: &Request) -> Act {
        let name = request.path.strip_prefix("/policies/").expect("a change of a policy").to_owned();
        let old = self.policies.get(&name);
        let revision = old.map(|old| format!("\"{}\"", old["revision"]));
        let wrong = match (request.header("if-match"), request.header("if-none-match")) {
            (Some("*"), _) => old.is_none(),
            (Some(wanted), _) => revision.as_deref() != Some(wanted),
            (None, Some(_)) => old.is_some(),
            (None, None) => false,
        };
        match request.method.as_str() {
            "DELETE" if old.is_none() => problem(404, "no_policy"),
            _ if wrong => problem(412, "revision_mismatch"),
            "DELETE" => {
                self.policies.remove(&name);
                self.revision += 1;
                ok(&json!({ "deleted": true, "name": name, "revision": self.revision }))
            }
            "PUT" => {
                let body: Value = serde_json::from_str(&request.body).expect("JSON");
                let taken = self.policies.iter().any(|(other, old)| *other != name && old["match"] == body["match"]);
                if taken { problem(409, "policy_conflict") } else { ok(&self.put(&name, &body)) }
            }
            other => panic!("no such method: {other}"),
        }
    }
}

fn ok(body: &Value) -> Act {
    let etag = body.get("revision").map(|revision| ("etag", format!("\"{revision}\"")));
    Act::Answer(200, etag.into_iter().collect(), body.to_string())
}
