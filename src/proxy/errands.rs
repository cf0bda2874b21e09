//! Permits that nobody waits for any more, on their way back to the cluster.
//!
//! They outlive the request they were for, and a proxy that stops waits for them.

use crate::client::{Client, Error, Permit};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Gives permits back. Every clone may have errands of its own.
#[derive(Debug, Clone)]
pub(super) struct Errands {
    client: Client,
    /// Held by every errand: the receiver sees the end of the last one.
    underway: mpsc::Sender<()>,
}

/// A permit that is being asked for. Dropped, it lets the answer come and gives the permit back.
#[derive(Debug)]
pub(super) struct Asked {
    errands: Errands,
    key: String,
    answer: Option<JoinHandle<Result<Permit, Error>>>,
}

/// A permit that is there and not used yet. Dropped, it is given back.
#[derive(Debug)]
pub(super) struct Held {
    errands: Errands,
    key: String,
    permit: Option<Permit>,
}

impl Errands {
    /// The errands, and what tells when the last of them is done: after all clones are gone.
    pub(super) fn new(client: Client) -> (Self, mpsc::Receiver<()>) {
        let (underway, done) = mpsc::channel(1);
        (Self { client, underway }, done)
    }

    /// Asks for a permit, and sees to it that it does not get lost.
    pub(super) fn ask(&self, key: &str, request: crate::api::AcquireRequest) -> Asked {
        let client = self.client.clone();
        let answer = tokio::spawn(async move { client.request(request).await });
        Asked { errands: self.clone(), key: key.to_owned(), answer: Some(answer) }
    }

    fn release(&self, key: String, permit: u64) {
        let (client, underway) = (self.client.clone(), self.underway.clone());
        tokio::spawn(async move {
            if let Err(error) = client.release(&key, permit).await {
                tracing::debug!(%error, permit, "a permit could not be given back and is wasted");
            }
            drop(underway);
        });
    }
}

impl Asked {
    /// The answer.
    pub(super) async fn answer(mut self) -> Result<Held, Error> {
        let Some(answer) = &mut self.answer else { return Err(gone()) };
        let joined = answer.await;
        self.answer = None;
        let permit = joined.map_err(|error| Error::Misuse(format!("asking failed: {error}")))??;
        Ok(Held { errands: self.errands.clone(), key: self.key.clone(), permit: Some(permit) })
    }
}

fn gone() -> Error {
    Error::Misuse("asked twice for one answer".to_owned())
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let (errands, key) = (self.errands.clone(), std::mem::take(&mut self.key));
            tokio::spawn(async move {
                if let Ok(Ok(permit)) = answer.await {
                    errands.release(key, permit.grant.permit);
                }
            });
        }
    }
}

impl Held {
    /// What the cluster granted.
    pub(super) fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }

    /// It is used, or dead: nothing to give back.
    pub(super) fn done(mut self) {
        self.permit = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.errands.release(std::mem::take(&mut self.key), permit.grant.permit);
        }
    }
}
