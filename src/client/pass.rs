//! Leave to start now, and on whose word.

use super::Client;
use super::error::Error;
use super::lease::Lease;
use super::permit::Permit;
use super::request::runtime;
use std::future::Future;
use tokio::runtime::Handle;

/// Leave to start the work now.
#[derive(Debug, Clone)]
pub struct Pass {
    pub(super) key: String,
    pub(super) source: Source,
}

/// On whose word something starts.
#[derive(Debug, Clone)]
pub enum Source {
    /// The cluster's: a permit.
    Cluster(Box<Permit>),
    /// This process's own, at its own pace: the cluster was out of reach.
    Local,
    /// Nobody's: the cluster was out of reach.
    Open,
}

impl Pass {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// On whose word.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// The permit; `None` where the cluster was out of reach.
    pub fn permit(&self) -> Option<&Permit> {
        match &self.source {
            Source::Cluster(permit) => Some(permit),
            Source::Local | Source::Open => None,
        }
    }

    /// The number of the permit: strictly increasing over the whole cluster, for whatever fences by it.
    pub fn number(&self) -> Option<u64> {
        self.permit().map(|permit| permit.grant.permit)
    }
}

impl Client {
    /// Does the work under a pass. Where that is a lease, it is renewed while the work goes on and given back afterwards; a lease
    /// that is lost drops the work.
    pub async fn run<T>(&self, pass: &Pass, work: impl Future<Output = T>) -> Result<T, Error> {
        let Some(lease) = pass.permit().and_then(|permit| permit.lease(self)) else { return Ok(work.await) };
        let mut ends = GivenBack { client: self.clone(), runtime: runtime()?, lease };
        let done = {
            tokio::pin!(work);
            let keep = ends.lease.keep();
            tokio::pin!(keep);
            match futures::future::select(work, keep).await {
                futures::future::Either::Left((result, _)) => Ok(result),
                futures::future::Either::Right((lost, _)) => Err(lost),
            }
        };
        drop(ends);
        done.map_err(|lost| {
            self.shared.tally.leases_lost.one();
            Error::LeaseLost(lost)
        })
    }

    /// Gives a lease back after the work under it, and counts what came of it. It ends by itself where that fails.
    pub(super) async fn end(&self, lease: Lease) {
        match lease.release().await {
            Ok(answer) if answer.released => self.shared.tally.released.one(),
            Ok(_) | Err(_) => self.shared.tally.not_released.one(),
        }
    }
}

/// A lease that is given back however the work under it ended, also if it was dropped halfway, on whatever thread.
struct GivenBack {
    client: Client,
    runtime: Handle,
    /// As it was last renewed.
    lease: Lease,
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        let (client, lease) = (self.client.clone(), self.lease.clone());
        self.client.shared.background.spawn(&self.runtime, async move { client.end(lease).await });
    }
}
