//! A scraper that shares one limit with all others of its kind, on whatever machine they run.
//!
//! ```text
//! quorate up                                      # in another terminal
//! cargo run --example scraper -- --limit 1/2s --pages 20 http://localhost:8000/
//! ```
//!
//! The key is the host, so every site has a limit of its own. The client waits for the slot, drops permits that came too late,
//! and gives back what is not used; nothing of that is here.

use futures::stream::{FuturesUnordered, StreamExt};
use quorate::api::Limit;
use quorate::client::{Ask, Client, Error, throttled};
use reqwest::Url;
use std::collections::{BTreeSet, VecDeque};
use std::process::ExitCode;

/// What the command line says.
struct Settings {
    nodes: Vec<String>,
    limit: Limit,
    workers: usize,
    pages: usize,
    start: Url,
}

fn settings() -> Result<Settings, String> {
    let (mut nodes, mut limit, mut workers, mut pages, mut start) = (
        "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003".to_owned(),
        Limit::from("1/2s"),
        4,
        20,
        None,
    );
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse().map_err(|error| format!("{text:?}: {error}"));
        match word.as_str() {
            "--nodes" => nodes = value()?,
            // A rate such as 1/6s, or an object with all members of a limit.
            "--limit" => {
                let text = value()?;
                limit = serde_json::from_str(&text).unwrap_or(Limit::Text(text));
            }
            "--workers" => workers = number(value()?)?,
            "--pages" => pages = number(value()?)?,
            url => start = Some(Url::parse(url).map_err(|error| format!("{url:?}: {error}"))?),
        }
    }
    let start = start.ok_or("where to begin? scraper [--nodes URLS] [--limit 1/2s] [--workers N] [--pages N] URL")?;
    let nodes = nodes.split(',').map(str::to_owned).collect();
    Ok(Settings { nodes, limit, workers, pages, start })
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match settings() {
        Ok(settings) => scrape(settings).await.map_err(|error| error.to_string()),
        Err(usage) => Err(usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("scraper: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn scrape(Settings { nodes, limit, workers, pages, start }: Settings) -> Result<(), Error> {
    let client = Client::new(nodes)?;
    // A redirect is a request of its own: following it would make one without a permit.
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
    let http = http.map_err(|error| Error::Misuse(error.to_string()))?;

    // The one line that matters: a function that fetches becomes one that waits for its turn first.
    let fetch = throttled(
        &client,
        move |url: &Url| Ask::new(format!("scrape:{}", url.host_str().unwrap_or_default())).limit(limit.clone()),
        move |url: Url| {
            let http = http.clone();
            async move {
                let answer = http.get(url.clone()).send().await?;
                let status = answer.status().as_u16();
                Ok::<_, reqwest::Error>((url, status, answer.text().await?))
            }
        },
    );

    let (mut seen, mut ahead) = (BTreeSet::from([start.clone()]), VecDeque::from([start]));
    let (mut begun, mut fetching) = (0, FuturesUnordered::new());
    loop {
        while fetching.len() < workers
            && begun < pages
            && let Some(url) = ahead.pop_front()
        {
            begun += 1;
            fetching.push(fetch(url));
        }
        match fetching.next().await {
            None => break,
            Some(Ok(Ok((url, status, text)))) => {
                println!("{status} {:>7} {url}", text.len());
                let links = links(&url, &text);
                ahead.extend(links.into_iter().filter(|link| seen.insert(link.clone())));
            }
            Some(Ok(Err(error))) => eprintln!("scraper: {error}"),
            // Nobody says that it may start: then it does not.
            Some(Err(error)) => return Err(error),
        }
    }
    eprintln!("{begun} pages; {:?}", client.counters());
    client.quiet().await;
    Ok(())
}

/// The links of a page that stay on its site.
fn links(page: &Url, text: &str) -> Vec<Url> {
    let hrefs = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let absolute = hrefs.filter_map(|href| page.join(href).ok());
    absolute.filter(|link| link.origin() == page.origin()).collect()
}
