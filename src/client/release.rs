//! After the grant: giving a permit back, extending its lease, and forgetting a key.

use super::error::Error;
use super::exchange::Exchange;
use super::{Client, Effect, path};
use crate::api::{ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse, ResetResponse};

impl Client {
    /// Gives a permit back: a slot that has not come yet, or a lease. A permit is given back once, however often this is
    /// asked; where an attempt was lost and the next one finds nothing to give back, the detail says so.
    pub async fn release(&self, key: &str, permit: u64) -> Result<ReleaseResponse, Error> {
        let request = ReleaseRequest { key: key.to_owned(), permit };
        let settled = self.ask::<ReleaseResponse>(&Exchange::post("/release", &request)?, Effect::Repeatable).await?;
        let mut answer = settled.answer;
        self.shared.denials.forget(key);
        if !answer.released
            && let Some(doubt) = settled.doubt
        {
            let detail = answer.detail.unwrap_or_default();
            answer.detail = Some(format!("{detail} (perhaps by an attempt whose answer was lost: {doubt})"));
        }
        Ok(answer)
    }

    /// Extends the lease of a permit. `start_before_ms` counts from the first send, so count from before this call.
    pub async fn renew(&self, key: &str, permit: u64) -> Result<RenewResponse, Error> {
        let request = RenewRequest { key: key.to_owned(), permit };
        Ok(self.ask(&Exchange::post("/renew", &request)?, Effect::Repeatable).await?.answer)
    }

    /// Makes a key as if it had never been used: its next permit is free at once, whatever was granted before.
    ///
    /// Not repeated once it may have been applied: a second reset would forget what was granted after the first.
    pub async fn reset_key(&self, key: &str) -> Result<ResetResponse, Error> {
        let settled = self.ask(&Exchange::delete(path("keys", key)?), Effect::Once).await;
        self.shared.denials.forget(key);
        Ok(settled?.answer)
    }
}
