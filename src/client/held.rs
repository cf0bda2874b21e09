//! A permit that nobody has used yet. Dropped, it goes back to the cluster.

use super::Client;
use super::permit::Permit;
use tokio::runtime::Handle;

/// A permit between its grant and its use.
#[derive(Debug)]
pub(super) struct Held {
    client: Client,
    /// Where to give it back from: a drop may happen on any thread.
    runtime: Handle,
    permit: Permit,
    unused: bool,
}

impl Held {
    pub(super) const fn new(client: Client, runtime: Handle, permit: Permit) -> Self {
        Self { client, runtime, permit, unused: true }
    }

    pub(super) const fn permit(&self) -> &Permit {
        &self.permit
    }

    /// From here on it is the caller's, used or not.
    pub(super) fn into_permit(mut self) -> Permit {
        self.unused = false;
        self.permit.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.unused {
            let (key, number) = (self.permit.grant.key.clone(), self.permit.grant.permit);
            let client = self.client.clone();
            let give_back = async move { client.give_back(&key, number).await };
            self.client.shared.background.spawn(&self.runtime, give_back);
        }
    }
}

impl Client {
    /// Gives a permit back that was not used. Whether that succeeds changes nothing for anybody but the next in line: the slot
    /// passes unused, or the lease ends by itself.
    async fn give_back(&self, key: &str, permit: u64) {
        let Ok(_turn) = self.turn(self.timeout).await else {
            self.shared.tally.not_given_back.one();
            return;
        };
        match self.release(key, permit).await {
            Ok(answer) if answer.released => self.shared.tally.given_back.one(),
            Ok(_) | Err(_) => self.shared.tally.not_given_back.one(),
        }
    }
}
