//! Power cuts of one, two and all nodes, on real file systems. Needs root.

use super::kept::Kept;
use super::mixed::{figure, judged, must_have, plan};
use quorate::chaos::{Kind, Tools};
use std::collections::BTreeMap;
use std::time::Duration;

/// "≥ 20 power cuts": "a grant that was answered is never forgotten or given twice, with all nodes losing power at once".
#[tokio::test(flavor = "multi_thread")]
async fn the_power_fails() {
    must_have(&[Kind::Power]);
    if Tools::find().missing(Kind::Power).is_some() {
        return;
    }
    let dir = Kept::new();
    let mut plan = plan(dir.path(), &[Kind::Power]);
    plan.duration = Duration::from_secs(30);
    plan.at_least = BTreeMap::from([(Kind::Power, figure("POWER_CUTS", 20))]);
    judged(&plan).await;
}
