//! Who belongs to the cluster, and who leads it. Every change may be asked for again.

use super::error::Error;
use super::exchange::Exchange;
use super::{Client, Effect};
use crate::api::{AddNodeRequest, AddNodeResponse, RemoveNodeResponse, TransferRequest, TransferResponse};

impl Client {
    /// Adds a node that was started with `--join true`. While the answer has `behind`, it gets the log and has no vote yet, and
    /// asking again goes on with it.
    pub async fn add_node(&self, id: u64, peer: &str, voter: bool) -> Result<AddNodeResponse, Error> {
        let request = AddNodeRequest { id, peer: peer.to_owned(), voter };
        Ok(self.ask(&Exchange::post("/cluster/nodes", &request)?, Effect::Repeatable).await?.answer)
    }

    /// Removes a node; `removed` is false where it did not belong to the cluster.
    pub async fn remove_node(&self, id: u64) -> Result<RemoveNodeResponse, Error> {
        Ok(self.ask(&Exchange::delete(format!("/cluster/nodes/{id}")), Effect::Repeatable).await?.answer)
    }

    /// Hands leadership over, to one node or to the one that is farthest.
    ///
    /// Without a node to name it is not repeated once it may have been done: that would hand it on to a third.
    pub async fn transfer(&self, to: Option<u64>) -> Result<TransferResponse, Error> {
        let effect = if to.is_some() { Effect::Repeatable } else { Effect::Once };
        Ok(self.ask(&Exchange::post("/cluster/transfer", &TransferRequest { to })?, effect).await?.answer)
    }
}
