//! The desk with hand-made instants: who gets which slot, what is asked for, and every bound.

use super::*;

const MS: Ns = 1_000_000;

fn desk(change: impl FnOnce(&mut Options)) -> Desk {
    let mut options = Options::new(Vec::new());
    change(&mut options);
    Desk::new(options, Meters::new())
}

fn lease(key: &str, id: Option<&str>) -> Lease {
    Lease {
        which: Arc::new(Which { key: key.to_owned(), limit: None }),
        limit: None,
        terms: Terms::default(),
        id: id.map(str::to_owned),
    }
}

/// A slot `wait` ms after its receipt, which was at `received` ms, of a limit written like this.
#[expect(clippy::unnecessary_wraps, reason = "what the cluster says of one request of a block")]
fn slot(permit: u64, received: Ns, wait: Ns, limit: &str) -> Outcome {
    let slot_ms = (received + wait) * MS;
    let text = format!(
        r#"{{"granted":true,"key":"k","permit":{permit},"slot_ms":{},"wait_ms":{wait},"reserved":1,"limit":{limit}}}"#,
        Millis::up_from_ns(slot_ms)
    );
    let grant: AcquireResponse = serde_json::from_str(&text).unwrap();
    Ok(Slot::new(Arc::new(grant), ((received - 1) * MS, received * MS), wait * MS, None))
}

fn granted(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted(slot, ..) => slot.grant.permit,
        other => panic!("{other:?}"),
    }
}

fn code(step: &Step) -> Code {
    match step {
        Step::Now(Reply::Problem(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

fn waits(step: Step) -> oneshot::Receiver<Reply> {
    match step {
        Step::Wait(receiver) => receiver,
        Step::Now(reply) => panic!("{reply:?}"),
    }
}

/// Whoever waits first is served first; whoever comes while a block is on its way waits for the next.
#[test]
fn those_who_wait_are_served_in_order() {
    let mut desk = desk(|_| {});
    let (first, block) = desk.acquire(&lease("k", None), 0);
    let block = block.expect("a block");
    assert_eq!((block.waiting.len(), block.extra), (1, 0));
    let (second, none) = desk.acquire(&lease("k", None), MS);
    assert!(none.is_none(), "one block at a time");
    let (mut first, mut second) = (waits(first), waits(second));
    let (back, next) = desk.settle(&block, Ok(vec![slot(7, 80, 0, "\"100/s\"")]), 80 * MS);
    assert!(back.is_none());
    assert_eq!(granted(&first.try_recv().unwrap()), 7);
    assert!(second.try_recv().is_err());
    let next = next.expect("for the second");
    assert_eq!((next.waiting.len(), next.extra), (1, 1), "it came so soon that one is held from now on");
    desk.settle(&next, Ok(vec![slot(8, 160, 0, "\"100/s\""), slot(9, 160, 10, "\"100/s\"")]), 160 * MS);
    assert_eq!(granted(&second.try_recv().unwrap()), 8);
    let (third, block) = desk.acquire(&lease("k", None), 161 * MS);
    let Step::Now(third) = third else { panic!("it was held") };
    assert_eq!(granted(&third), 9);
    assert_eq!(block.expect("what was held was used").extra, 2);
}

/// P5: a retry gets the same permit, whether the first attempt still waits or has its answer.
#[test]
fn a_retry_gets_the_same() {
    let mut desk = desk(|_| {});
    let (first, block) = desk.acquire(&lease("k", Some("id")), 0);
    let (again, none) = desk.acquire(&lease("k", Some("id")), 5 * MS);
    assert!(none.is_none());
    let (mut first, mut again) = (waits(first), waits(again));
    let block = block.expect("a block");
    assert_eq!(block.waiting.len(), 1, "one request, sent twice");
    desk.settle(&block, Ok(vec![slot(7, 80, 20, "\"100/s\"")]), 80 * MS);
    for reply in [first.try_recv().unwrap(), again.try_recv().unwrap()] {
        let Reply::Granted(slot, seen, false) = reply else { panic!("{reply:?}") };
        assert_eq!((slot.grant.permit, seen), (7, 0), "first seen with the first attempt");
    }
    let (late, _) = desk.acquire(&lease("k", Some("id")), 90 * MS);
    assert!(matches!(late, Step::Now(Reply::Granted(slot, 0, true)) if slot.grant.permit == 7));
    let (other, _) = desk.acquire(&lease("other", Some("id")), 90 * MS);
    assert_eq!(code(&other), Code::RequestIdReused);
    assert!(desk.release("k", 7), "it was handed out");
    assert!(desk.acquire(&lease("k", Some("id")), 91 * MS).1.is_some(), "given back: a new request");
}

/// A worker that went away while it waited gets nothing, and its slot goes to the next.
#[test]
fn whoever_has_gone_is_passed_over() {
    let mut desk = desk(|_| {});
    let (gone, block) = desk.acquire(&lease("k", None), 0);
    let (there, _) = desk.acquire(&lease("k", None), 0);
    drop(waits(gone));
    let mut there = waits(there);
    desk.settle(&block.expect("a block"), Ok(vec![slot(7, 80, 0, "\"1/s\"")]), 80 * MS);
    assert_eq!(granted(&there.try_recv().unwrap()), 7);
}

/// "With the cluster out of reach it serves what it holds, then refuses."
#[test]
fn what_the_cluster_says_reaches_those_who_asked() {
    let mut desk = desk(|_| {});
    let (first, block) = desk.acquire(&lease("k", None), 0);
    let (later, _) = desk.acquire(&lease("k", None), 0);
    let (mut first, mut later) = (waits(first), waits(later));
    let problem = Box::new(Problem::new(Code::NoQuorum, "nobody"));
    let (_, next) = desk.settle(&block.expect("a block"), Err(problem), 80 * MS);
    assert!(matches!(first.try_recv().unwrap(), Reply::Problem(problem) if problem.code == Code::NoQuorum));
    assert!(later.try_recv().is_err(), "nobody asked for this one yet");
    assert_eq!(next.expect("its own block").waiting.len(), 1);
}

/// A limit without slots is not leased: what came is handed out once, and then the cluster is asked one to one.
#[test]
fn a_policy_without_slots_is_passed_on() {
    let mut desk = desk(|_| {});
    let (first, block) = desk.acquire(&lease("k", None), 0);
    let mut first = waits(first);
    let concurrency = r#"{"kind":"concurrency","max":5}"#;
    desk.settle(&block.expect("a block"), Ok(vec![slot(7, 80, 0, concurrency)]), 80 * MS);
    assert_eq!(granted(&first.try_recv().unwrap()), 7);
    assert!(matches!(desk.acquire(&lease("k", None), 81 * MS), (Step::Now(Reply::Pass), None)));
}

/// "Unused slots are given back when demand falls", the newest first; what is about to come is left.
#[test]
fn an_idle_site_gives_back() {
    let mut desk = desk(|_| {});
    let (gone, block) = desk.acquire(&lease("k", None), 0);
    drop(gone);
    let outcomes = (0..8).map(|number| slot(7 + number, 20, 100 * number, "\"10/s\"")).collect();
    let mut block = block.expect("a block");
    block.extra = 7;
    desk.settle(&block, Ok(outcomes), 20 * MS);
    assert!(desk.tick(400 * MS).is_empty(), "four slots long it is not idle");
    assert!(!desk.release("k", 12), "held, and nobody's to give");
    let back = desk.tick(401 * MS);
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].permits, [14, 13, 12], "the one at 420 ms would come before its release");
    let (gone, block) = desk.acquire(&lease("k", None), 1_000 * MS);
    drop(gone);
    let block = block.expect("a block");
    let outcomes = (0..3).map(|number| slot(17 + number, 1_020, 1_000 * number, "\"1/s\"")).collect();
    desk.settle(&block, Ok(outcomes), 1_020 * MS);
    let back = desk.close(1_030 * MS);
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].permits, [19, 18]);
    assert_eq!(code(&desk.acquire(&lease("k", None), 1_040 * MS).0), Code::ShuttingDown);
}

/// P7: "everything has a limit and a clear error past it".
#[test]
fn every_bound_has_its_error() {
    let mut desk = desk(|options| (options.keys_max, options.waiting_max) = (2, 2));
    let _one = desk.acquire(&lease("a", None), 0);
    let _other = desk.acquire(&lease("b", None), 0);
    assert_eq!(code(&desk.acquire(&lease("b", None), 0).0), Code::Overloaded);
    assert_eq!(code(&desk.acquire(&lease("c", None), 0).0), Code::TooManyKeys);
}
