//! Calls that are dropped halfway: whatever they were granted goes back.

use super::cluster::Cluster;
use super::fake::{Act, Fake, granted, problem};
use super::until;
use quorate::api::{Code, LimitMembers};
use quorate::client::{Ask, Client, Error, Options};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A node that does as it is told with every acquire, when it is told.
struct Told {
    fake: Fake,
    tell: Sender<Act>,
}

fn told() -> Told {
    let (tell, hear): (Sender<Act>, Receiver<Act>) = channel();
    let hear = Mutex::new(hear);
    let fake = Fake::with(move |request| {
        if request.path == "/release" {
            return Act::Answer(200, Vec::new(), r#"{"released":true,"key":"k","permit":7}"#.to_owned());
        }
        hear.lock().unwrap().recv().unwrap_or(Act::HangUp)
    });
    Told { fake, tell }
}

fn paths(fake: &Fake) -> Vec<String> {
    fake.requests().into_iter().map(|request| request.path).collect()
}

/// Asks for a permit, and goes away as soon as the node has been asked.
async fn ask_and_go_away(client: &Client, fake: &Fake) {
    let asking = client.clone();
    let task = tokio::spawn(async move { asking.acquire(Ask::new("k").limit("1/6s")).await });
    until("the node is asked", async || !fake.requests().is_empty()).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

fn client(fake: &Fake) -> Client {
    Client::with(&Options { timeout: Duration::from_secs(30), ..Options::new([&fake.url]) }).unwrap()
}

#[tokio::test]
async fn a_grant_that_nobody_waits_for_is_given_back() {
    let Told { fake, tell } = told();
    let client = client(&fake);
    ask_and_go_away(&client, &fake).await;
    tell.send(granted("60000")).unwrap();
    client.quiet().await;
    assert_eq!(paths(&fake), ["/acquire", "/release"]);
    assert_eq!(client.counters().given_back, 1);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_to_learn_what_to_give_back() {
    let Told { fake, tell } = told();
    let client = client(&fake);
    ask_and_go_away(&client, &fake).await;
    tell.send(Act::HangUp).unwrap();
    tell.send(granted("60000")).unwrap();
    client.quiet().await;
    assert_eq!(paths(&fake), ["/acquire", "/acquire", "/release"]);
    let ids = fake.request_ids();
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn what_certainly_was_not_granted_is_not_asked_for_again() {
    let Told { fake, tell } = told();
    let client = client(&fake);
    ask_and_go_away(&client, &fake).await;
    tell.send(problem(503, "no_leader")).unwrap();
    client.quiet().await;
    assert_eq!(paths(&fake), ["/acquire"]);
}

/// Two hundred wait for a slot a minute, and most of them lose interest.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waits_give_their_permits_back() {
    const TASKS: u64 = 200;
    let cluster = Cluster::start(3).await;
    let client = Client::new(cluster.urls()).unwrap();
    let limit = LimitMembers { rate: Some("1/1m".to_owned()), max_reserved: Some(TASKS), ..LimitMembers::default() };
    let ask = Ask::new("many").limit(limit);
    let reserved = async || match client.peek("many").await {
        Ok(key) => key.reserved,
        Err(Error::Refused(problem)) if problem.code == Code::NoLimit => 0, // nobody was granted anything yet
        Err(error) => panic!("{error}"),
    };
    let acquire = || {
        let (client, ask) = (client.clone(), ask.clone());
        tokio::spawn(async move { client.acquire(ask).await })
    };
    let mut waiting: Vec<_> = (0..TASKS).map(|_| acquire()).collect();
    until("one has started, the others have slots", async || reserved().await == TASKS - 1).await;
    waiting.retain(|task| !task.is_finished());
    until("one has started", async || {
        waiting.retain(|task| !task.is_finished());
        waiting.len() as u64 == TASKS - 1
    })
    .await;
    for task in waiting.drain(..150) {
        task.abort();
    }
    until("what was cancelled went back", async || reserved().await == TASKS - 1 - 150).await;
    client.quiet().await;
    let counters = client.counters();
    assert_eq!((counters.given_back, counters.not_given_back), (150, 0), "{counters:?}");
    drop(client.reserve(ask.clone()).await.unwrap());
    for task in waiting {
        task.abort();
    }
    until("and all of it", async || reserved().await == 0).await;
}
