//! A scenario for every line of the table "What you had" in `docs/LIMITS.md`: what the old tool did is what happens here.
//!
//! The limits are those of the document. Tests stand in the order of its lines.

use super::document::{limits, read, rows};
use super::over_http;
use super::stage::{Stage, ms, now_only, sec, within};
use quorate::limiter::{Key, Reason, Span, Terms};
use quorate::state::{Acquire, Command, Condition, Outcome, Pattern, Policy, policy_name};
use serde_json::json;

fn stage(test: &str) -> Stage {
    Stage::new(&limits(test))
}

#[test]
fn redis_lua_register() {
    let mut stage = stage("redis_lua_register");
    assert_eq!(stage.at(sec(100)).slots(3), [sec(100), sec(106), sec(112)], "each asks the last one's permit");
    assert_eq!(stage.at(sec(113)).ask(), Ok(sec(118)));
    assert_eq!(stage.at(sec(500)).slots(2), [sec(500), sec(506)], "time that nobody used is not saved up");
    assert_eq!(stage.slots(9).len(), 9);
    assert_eq!(stage.ask(), Err((Reason::ReservationsFull, sec(6))), "the script knew no end; here ten lie ahead");
}

#[test]
fn redis_set_nx_px() {
    let mut stage = stage("redis_set_nx_px");
    assert_eq!(stage.at(sec(1)).ask(), Ok(sec(1)));
    assert_eq!(stage.at(sec(3)).ask(), Err((Reason::ReservationsFull, sec(4))), "PTTL");
    assert!(stage.at(sec(7) - 1).ask().is_err());
    assert_eq!(stage.at(sec(7)).ask(), Ok(sec(7)));
}

#[test]
fn redis_incr_expire() {
    let mut stage = stage("redis_incr_expire");
    assert_eq!(stage.at(sec(59)).at_once(101), 100);
    assert_eq!(stage.ask(), Err((Reason::WindowFull, sec(1))), "when the next minute begins");
    assert_eq!(stage.at(sec(60)).at_once(101), 100, "two hundred within a second: that is the price of a counter");
}

#[test]
fn redis_sorted_set() {
    let mut stage = stage("redis_sorted_set");
    let burst = ms(10_500);
    assert_eq!(stage.at(burst).at_once(101), 100);
    let Err((Reason::WindowFull, wait)) = stage.ask() else { panic!("the window is full") };
    let free = burst + wait;
    assert!(free >= burst + sec(59) && free <= burst + sec(61), "a log would say 60 s; a cell is 1 s: {wait}");
    assert!(stage.at(free - 1).ask().is_err());
    assert_eq!(stage.at(free).ask(), Ok(free));
}

#[test]
fn redis_cell() {
    // CL.THROTTLE key 15 30 60: allowed, limit, remaining, retry after, reset after.
    let mut stage = stage("redis_cell");
    stage.at(sec(10));
    for remaining in (0..16).rev() {
        let first = stage.grant(1, Terms::default()).unwrap().first;
        assert_eq!(first.remaining, remaining);
        assert_eq!(first.reset_after, Span::from_secs(2 * (16 - remaining)));
    }
    assert_eq!(stage.ask(), Err((Reason::ReservationsFull, sec(2))), "one every two seconds from here on");
    assert_eq!(stage.asks(5, Terms::default()), Err((Reason::ReservationsFull, sec(10))), "the quantity is the cost");
    assert!(matches!(stage.outcome(17, Terms::default()), Outcome::Never { .. }), "more than the burst, ever");
    assert_eq!(stage.at(sec(12)).ask(), Ok(sec(12)));
}

#[test]
fn guava_create() {
    let mut stage = stage("guava_create");
    assert_eq!(stage.at(sec(1)).slots(3), [sec(1), ms(1_200), ms(1_400)]);
    // acquire(10) goes at once, and the next one pays for it.
    assert_eq!(stage.at(sec(5)).asks(10, Terms::default()), Ok(sec(5)));
    assert_eq!(stage.ask(), Ok(sec(7)));
    assert_eq!(stage.within(ms(100)), Err((Reason::WouldWaitTooLong, ms(2_100))), "tryAcquire with a timeout");
    assert_eq!(stage.at(sec(60)).at_once(10), 1, "the second that Guava saves up is the next line");
}

#[test]
fn guava_saved_second() {
    let mut stage = stage("guava_saved_second");
    // A second's worth is saved, and the sixth is the one whose price the next one pays.
    assert_eq!(stage.at(sec(10)).slots(8)[4..], [sec(10), sec(10), ms(10_200), ms(10_400)]);
    assert_eq!(stage.at(sec(60)).at_once(10), 6);
}

#[test]
fn guava_warmup() {
    let mut stage = stage("guava_warmup");
    let slots = stage.at(sec(1)).slots(40);
    let gaps: Vec<_> = slots.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (cold, stable) = (ms(500), 166_666_667);
    assert_eq!(gaps[0], cold, "three times the stable interval: the cold factor");
    assert!(gaps.is_sorted_by(|earlier, later| earlier >= later), "it only gets faster");
    let warm = slots.iter().position(|slot| *slot >= sec(4)).unwrap();
    assert!(gaps[warm..].iter().all(|gap| *gap == stable) && gaps[warm - 1] > stable, "after three seconds");
    let last = slots[slots.len() - 1];
    assert_eq!(stage.at(last + sec(4)).slots(2)[1], last + sec(4) + cold, "a limiter that rested is cold again");
}

#[test]
fn go_rate_allow() {
    let mut stage = stage("go_rate_allow");
    assert_eq!(stage.at(sec(1)).at_once(10), 5, "a full bucket");
    assert_eq!(stage.ask(), Err((Reason::ReservationsFull, ms(100))), "Allow has no wait");
    assert_eq!(stage.at(ms(1_100)).at_once(10), 1);
    assert_eq!(stage.at(sec(60)).at_once(10), 5);
}

#[test]
fn go_rate_reserve() {
    let mut stage = stage("go_rate_reserve");
    stage.at(sec(1));
    assert_eq!(stage.slots(5), [sec(1); 5]);
    assert_eq!(stage.slots(3), [ms(1_100), ms(1_200), ms(1_300)], "Reserve, and Delay is what is left until there");
    assert_eq!(stage.now_only(), Err((Reason::NotFreeNow, ms(400))), "Allow on the same limiter");
    assert_eq!(stage.within(ms(300)), Err((Reason::WouldWaitTooLong, ms(100))), "Wait under a deadline");
    let second = stage.permit() - 1;
    assert!(stage.release(second), "Cancel");
    assert_eq!(stage.slots(2), [ms(1_200), ms(1_400)], "what was cancelled in the middle is used, not lost");
    assert!(!stage.release(1), "what has started cannot be taken back");
    assert!(matches!(stage.outcome(6, Terms::default()), Outcome::Never { .. }), "ReserveN over the burst is not OK");
}

#[test]
fn bucket4j_greedy() {
    let mut stage = stage("bucket4j_greedy");
    assert_eq!(stage.at(sec(1)).at_once(60), 50);
    assert_eq!(stage.at(ms(1_099)).at_once(5), 0);
    assert_eq!(stage.at(ms(1_100)).at_once(5), 1, "greedy: ten a second are one every 100 ms");
    assert_eq!(stage.at(ms(1_600)).asks(5, now_only()), Ok(ms(1_600)), "tryConsume(5)");
    assert_eq!(stage.asks(5, now_only()), Err((Reason::NotFreeNow, ms(500))), "nanosToWaitForRefill");
}

#[test]
fn bucket4j_intervally() {
    let mut stage = stage("bucket4j_intervally");
    assert_eq!(stage.at(sec(10)).at_once(120), 100);
    assert_eq!(stage.at(sec(60) - 1).at_once(1), 0, "nothing trickles in");
    assert_eq!(stage.at(sec(60)).at_once(120), 100, "all of it at once");
}

#[test]
fn bucket4j_two_bandwidths() {
    // 1,000 an hour, and 50 of them in any second: both or nothing.
    let mut stage = stage("bucket4j_two_bandwidths");
    let mut granted = 0;
    for second in 1..=30 {
        granted += stage.at(sec(second)).at_once(60);
        if second <= 20 {
            assert_eq!(granted, 50 * usize::try_from(second).unwrap(), "the second's bandwidth");
        }
    }
    assert!((1_000..=1_010).contains(&granted), "the hour's bandwidth: {granted}");
    let permits = stage.permit();
    assert!(stage.now_only().is_err());
    assert_eq!(stage.permit(), permits, "a denial takes nothing of either");
}

#[test]
fn envoy_units() {
    let limit = &rows().into_iter().find(|row| row.test == "envoy_units").unwrap().limits[0];
    for (unit, length) in [("s", sec(1)), ("m", sec(60)), ("h", sec(3_600)), ("d", sec(86_400))] {
        let mut limit = limit.clone();
        limit["rate"] = json!(limit["rate"].as_str().unwrap().replace("/m", &format!("/{unit}")));
        let mut stage = Stage::new(&[read(&limit)]);
        let late = 3 * length - ms(10);
        assert_eq!(stage.at(late).at_once(110), 100, "requests_per_unit");
        assert_eq!(stage.ask(), Err((Reason::WindowFull, ms(10))), "duration_until_reset");
        assert_eq!(stage.at(3 * length).asks(40, now_only()), Ok(3 * length), "hits_addend");
        assert_eq!(stage.at_once(110), 60);
    }
}

#[test]
fn envoy_local_token_bucket() {
    let mut stage = stage("envoy_local_token_bucket");
    assert_eq!(stage.at(sec(1)).at_once(600), 500, "max_tokens");
    assert_eq!(stage.at(sec(2)).at_once(600), 100, "tokens_per_fill in every fill_interval");
}

#[test]
fn numaflow_ramp_up() {
    let mut stage = stage("numaflow_ramp_up");
    let slots = stage.slots(4_000);
    let in_second = |second: u64| slots.iter().filter(|slot| **slot / sec(1) == second).count();
    assert!((10..=12).contains(&in_second(0)), "min: {}", in_second(0));
    assert!((54..=57).contains(&in_second(30)), "half way: {}", in_second(30));
    assert!((99..=100).contains(&in_second(61)), "max: {}", in_second(61));
    assert!((0..60).all(|second| in_second(second) <= in_second(second + 1) + 1), "it only grows");
}

#[test]
fn semaphore_per_path() {
    let limit = limits("semaphore_per_path")[0];
    let mut stage = Stage::new(&[limit]);
    let pattern = Pattern::new("path:*").unwrap();
    let policy = Policy { pattern, limit, overrides: quorate::limiter::Overrides::NONE };
    let put = Command::PutPolicy { name: policy_name("paths").unwrap(), policy, condition: Condition::Always };
    assert!(matches!(stage.command(put), Outcome::PolicyPut { .. }));
    let mut ask = |path: &str| {
        let acquire = Acquire::one(Key::new(path).unwrap(), None, 1, Terms::default());
        matches!(stage.command(Command::Acquire(acquire)), Outcome::Granted(_))
    };
    assert_eq!((0..8).filter(|_| ask("path:/search")).count(), 5);
    assert!(ask("path:/login"), "every path has its own");
}

#[test]
fn semaphore_that_survives_its_holders() {
    let mut stage = stage("semaphore_that_survives_its_holders");
    assert_eq!(stage.at(sec(1)).at_once(8), 5);
    assert_eq!(stage.ask(), Err((Reason::InFlightFull, sec(30))), "when the first lease ends by itself");
    assert!(stage.at(sec(2)).release(3), "done");
    assert_eq!(stage.at_once(8), 1);
    assert_eq!(stage.at(sec(25)).renew(1), Some(sec(30)), "a long job says that it lives");
    assert_eq!(stage.at(sec(31)).at_once(8), 3, "2, 4 and 5 died without a word; 1 was renewed, 6 came later");
    assert_eq!(stage.renew(2), None, "a lease that has ended is over");
    assert!(!stage.release(2));
}

#[test]
fn nginx_limit_req() {
    let mut stage = stage("nginx_limit_req");
    assert_eq!(stage.at(sec(1)).at_once(30), 1, "the rest gets 429 (nginx: 503)");
    assert_eq!(stage.at(ms(1_099)).at_once(30), 0);
    assert_eq!(stage.at(ms(1_100)).at_once(30), 1);
}

#[test]
fn nginx_limit_req_burst() {
    let mut stage = stage("nginx_limit_req_burst");
    let slots = stage.at(sec(1)).slots(21);
    assert!(slots.iter().enumerate().all(|(index, slot)| *slot == sec(1) + ms(100) * index as u64), "delayed");
    assert_eq!(stage.ask(), Err((Reason::ReservationsFull, ms(100))), "and twenty-one are enough");
}

#[test]
fn nginx_limit_req_nodelay() {
    let mut stage = stage("nginx_limit_req_nodelay");
    assert_eq!(stage.at(sec(1)).at_once(30), 21, "one and the burst of twenty");
    assert_eq!(stage.at(ms(1_500)).at_once(30), 5, "and then ten a second");
}

#[test]
fn nginx_limit_conn() {
    let mut stage = stage("nginx_limit_conn");
    assert_eq!(stage.at(sec(1)).at_once(9), 5);
    let last = stage.permit();
    assert!(stage.release(last), "the connection is closed");
    assert_eq!(stage.at_once(9), 1);
}

#[test]
fn resilience4j() {
    let mut stage = stage("resilience4j");
    stage.at(ms(1_300));
    let timeout = sec(5);
    let slots: Vec<_> = (0..20).map(|_| stage.within(timeout).unwrap()).collect();
    assert_eq!((slots[9], slots[10], slots[19]), (ms(1_300), sec(2), sec(2)), "limitForPeriod, then the next period");
    assert_eq!(stage.within(timeout), Err((Reason::WindowFull, ms(700))), "no more than a window's worth waits");
    assert!(stage.at(ms(1_400)).asks(1, within(ms(100))).is_err(), "timeoutDuration");
}

#[test]
fn aws_api_gateway() {
    let mut stage = stage("aws_api_gateway");
    assert_eq!(stage.at(sec(1)).at_once(300), 200, "the burst");
    assert_eq!(stage.at(sec(2)).at_once(300), 100, "the rate");
}

#[tokio::test(flavor = "multi_thread")]
async fn github_headers() {
    let limit = &rows().into_iter().find(|row| row.test == "github_headers").unwrap().limits[0];
    let server = over_http::Server::start().await;
    let (status, headers, _) = server.acquire(&json!({"key": "k", "limit": limit})).await;
    assert_eq!((status, headers["ratelimit-policy"].as_str()), (200, "\"window\";q=5000;w=3600"));
    let left = headers["ratelimit"].strip_prefix("\"window\";r=4999;t=").expect("what is left");
    assert!((1..=3_600).contains(&left.parse::<u64>().unwrap()), "until the hour is over: {left}");
    let (status, ..) = server.acquire(&json!({"key": "k", "limit": limit, "cost": 4_999})).await;
    assert_eq!(status, 200);
    let (status, headers, body) = server.acquire(&json!({"key": "k", "limit": limit})).await;
    assert_eq!((status, body["reason"].as_str()), (429, Some("window_full")));
    let secs: u32 = headers["retry-after"].parse().unwrap();
    assert_eq!(headers["ratelimit"], format!("\"window\";r=0;t={secs}"));
    let exact = body["retry_after_ms"].as_f64().unwrap() / 1_000.0;
    assert!(exact.ceil() - f64::from(secs) == 0.0 && secs <= 3_600, "{exact} s, rounded up");
    server.stop().await;
}

#[test]
fn celery_rate_limit() {
    let mut stage = stage("celery_rate_limit");
    assert_eq!(stage.at(sec(1)).slots(3), [sec(1), sec(7), sec(13)], "ten a minute is one every six seconds");
}
