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
        worker: None,
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
    for (reply, before) in [(first.try_recv().unwrap(), false), (again.try_recv().unwrap(), true)] {
        let Reply::Granted(slot, seen, replayed) = reply else { panic!("{reply:?}") };
        assert_eq!((slot.grant.permit, replayed), (7, before), "only the first attempt knows it to be its own");
        assert_eq!(seen, 5 * MS, "whose first send was the second attempt, nobody knows");
    }
    let (late, _) = desk.acquire(&lease("k", Some("id")), 90 * MS);
    assert!(matches!(late, Step::Now(Reply::Granted(slot, seen, true)) if slot.grant.permit == 7 && seen == 5 * MS));
    let (other, _) = desk.acquire(&lease("other", Some("id")), 90 * MS);
    assert_eq!(code(&other), Code::RequestIdReused);
    assert!(desk.release("k", 7), "it was handed out");
    assert!(desk.acquire(&lease("k", Some("id")), 91 * MS).1.is_some(), "given back: a new request");
}

/// P2, and why `f` may not outlive its request: a minute later the deadline would be a minute too late.
#[test]
fn a_request_after_a_refusal_or_a_release_counts_from_its_own_arrival() {
    const LATER: Ns = 60_000 * MS;
    let windowed = |permit, received: Ns| {
        let mut slot = slot(permit, received, 0, "{\"rate\":\"1/s\",\"start_window\":\"1s\"}").unwrap();
        slot.until = Some(slot.sent + 1_000 * MS);
        Ok(slot)
    };
    let told = |desk: &mut Desk, at: Ns, permit| {
        let (step, block) = desk.acquire(&lease("k", Some("id")), at);
        let received = at + 80 * MS;
        desk.settle(&block.expect("a block"), Ok(vec![windowed(permit, received / MS)]), received);
        let reply = waits(step).try_recv().unwrap();
        let Reply::Granted(slot, first, false) = reply else { panic!("{reply:?}") };
        assert_eq!(first, at);
        slot.told(first, received).before.unwrap()
    };
    let mut desk = desk(|_| {});
    let (refused, block) = desk.acquire(&lease("k", Some("id")), 0);
    let problem = Box::new(Problem::new(Code::NoQuorum, "nobody"));
    desk.settle(&block.expect("a block"), Err(problem), 80 * MS);
    assert!(matches!(waits(refused).try_recv().unwrap(), Reply::Problem(_)));
    assert!(told(&mut desk, LATER, 7) <= 1_080 * MS, "no more than the window and the way");
    assert!(desk.release("k", 7));
    assert!(told(&mut desk, 2 * LATER, 8) <= 1_080 * MS);
}

/// A window that is shorter than the way: every slot is dead when it comes. It is not asked for without end.
#[test]
fn slots_that_are_dead_on_arrival_are_told() {
    let mut desk = desk(|_| {});
    let asked = Lease { terms: Terms { max_wait: Some(1_000 * MS), ..Terms::default() }, ..lease("k", Some("id")) };
    let (step, mut block) = desk.acquire(&asked, 0);
    let mut receiver = waits(step);
    for round in 1..=3 {
        assert!(receiver.try_recv().is_err());
        let asked_for = block.expect("a block");
        let left = (1_000 - (round - 1) * 80) * MS;
        assert_eq!(asked_for.waiting[0].terms.max_wait, Some(left), "what has passed is taken off");
        let mut dead = slot(7 + round, round * 80, 0, "\"10/s\"").unwrap();
        dead.until = Some(dead.start - MS);
        block = desk.settle(&asked_for, Ok(vec![Ok(dead)]), round * 80 * MS).1;
    }
    assert!(block.is_none());
    assert!(matches!(receiver.try_recv().unwrap(), Reply::Problem(problem) if problem.code == Code::Expired));
    assert_eq!((desk.waiting, desk.held), (0, 0));
}

/// A lead counts from the arrival: the slot that was chosen for it is taken, once.
#[test]
fn a_lead_gets_the_slot_that_was_asked_for_it() {
    let mut desk = desk(|_| {});
    let asked = Lease { terms: Terms { lead: 100 * MS, ..Terms::default() }, ..lease("k", None) };
    let (step, block) = desk.acquire(&asked, 0);
    let (_, next) = desk.settle(&block.expect("a block"), Ok(vec![slot(7, 80, 20, "\"10/s\"")]), 80 * MS);
    assert_eq!(granted(&waits(step).try_recv().unwrap()), 7);
    assert!(next.is_none(), "nothing else is asked for");
}

/// P5 across the two ways: what was put to the cluster is put to it again, also when its key is leased by then.
#[test]
fn a_retry_of_what_was_passed_on_is_passed_on() {
    let mut desk = desk(|_| {});
    let now_only = Lease { terms: Terms { now_only: true, ..Terms::default() }, ..lease("k", Some("id")) };
    assert!(matches!(desk.acquire(&now_only, 0), (Step::Now(Reply::Pass), None)));
    let (_gone, block) = desk.acquire(&lease("k", None), MS);
    let outcomes = vec![slot(7, 80, 0, "\"10/s\""), slot(8, 80, 100, "\"10/s\"")];
    let mut block = block.expect("a block");
    block.extra = 1;
    desk.settle(&block, Ok(outcomes), 80 * MS);
    assert_eq!(desk.held, 1);
    assert!(matches!(desk.acquire(&now_only, 90 * MS).0, Step::Now(Reply::Pass)));
    desk.passed_in_vain("id");
    assert_eq!(code(&desk.acquire(&now_only, 91 * MS).0), Code::Denied, "certainly nothing: a new request");
}

/// The clock stood still while the machine slept: nothing from before is handed out.
#[test]
fn after_a_sleep_nothing_is_left_of_what_was_held() {
    let mut desk = desk(|_| {});
    let (_first, block) = desk.acquire(&lease("k", None), 0);
    let mut block = block.expect("a block");
    block.extra = 1;
    desk.settle(&block, Ok(vec![slot(7, 80, 0, "\"10/s\""), slot(8, 80, 100, "\"10/s\"")]), 80 * MS);
    let back = desk.woke_up();
    assert_eq!((back.len(), &back[0].permits[..], desk.held), (1, &[8][..], 0));
    // A block that was on its way meanwhile.
    let (step, block) = desk.acquire(&lease("k", None), 90 * MS);
    let mut receiver = waits(step);
    assert!(desk.woke_up().is_empty());
    let (back, next) = desk.settle(&block.expect("a block"), Ok(vec![slot(9, 170, 0, "\"10/s\"")]), 170 * MS);
    assert_eq!(back.expect("given back").permits, [9]);
    assert!(receiver.try_recv().is_err());
    desk.settle(&next.expect("another one"), Ok(vec![slot(10, 250, 0, "\"10/s\"")]), 250 * MS);
    assert_eq!(granted(&receiver.try_recv().unwrap()), 10);
}

/// Slots far ahead do not keep their keys in memory.
#[test]
fn a_key_is_forgotten_a_minute_after_its_last_request() {
    let mut desk = desk(|_| {});
    let (step, block) = desk.acquire(&lease("k", None), 0);
    desk.settle(&block.expect("a block"), Ok(vec![slot(7, 80, 86_400_000, "\"1/d\"")]), 80 * MS);
    assert_eq!(granted(&waits(step).try_recv().unwrap()), 7);
    desk.tick(FORGET_AFTER_NS);
    assert_eq!(desk.shelves.len(), 1);
    desk.tick(FORGET_AFTER_NS + 1);
    assert!(desk.shelves.is_empty());
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

/// A place in flight that nobody is there for is given back at once: it would be taken until its lease is over.
#[test]
fn a_lease_that_nobody_waits_for_is_given_back() {
    let mut desk = desk(|_| {});
    let (gone, block) = desk.acquire(&lease("k", None), 0);
    drop(gone);
    let concurrency = r#"{"kind":"concurrency","max":5}"#;
    let (back, _) = desk.settle(&block.expect("a block"), Ok(vec![slot(7, 80, 0, concurrency)]), 80 * MS);
    assert_eq!(back.expect("given back").permits, [7]);
    let late = slot(8, 80, 0, concurrency).unwrap();
    let back = desk.take_back(&lease("k", None).which, late);
    assert_eq!(back.expect("given back as well").permits, [8]);
    assert_eq!(desk.held, 0);
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
    assert_eq!(code(&desk.acquire(&lease("c", Some("id")), 0).0), Code::TooManyKeys);
    assert_eq!(
        code(&desk.acquire(&lease("b", Some("id")), 0).0),
        Code::Overloaded,
        "no id is kept of what was refused"
    );
}

/// A block has room for those who wait, however many are to be held.
#[test]
fn a_batch_is_never_all_extra() {
    let mut desk = desk(|options| (options.block_max, options.slots_max) = (u32::MAX, usize::MAX));
    let (_step, block) = desk.acquire(&lease("k", None), 0);
    let block = block.expect("a block");
    let (_waits, _) = desk.acquire(&lease("k", None), MS);
    let row = desk.shelves.get_mut(&block.which).unwrap();
    row.distance = Some(1);
    for _ in 0..14 {
        row.pace.used();
        row.pace.round(true, u32::MAX);
    }
    row.pace.used();
    let (_, next) = desk.settle(&block, Ok(vec![slot(7, 80, 0, "\"1000000/s\"")]), 80 * MS);
    let next = next.expect("a block");
    assert_eq!((next.waiting.len(), next.extra), (1, BATCH_REQUESTS_MAX - 1));
}
