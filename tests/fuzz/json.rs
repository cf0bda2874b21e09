//! JSON that is well formed and means nothing, or something else.

use proptest::prelude::*;
use serde_json::{Value, json};

/// What a value is replaced by.
fn strange() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(true)),
        prop::sample::select(vec![0_i64, 1, -1, 2, 10_000, 10_001, i64::MAX, i64::MIN])
            .prop_map(|number| json!(number)),
        Just(json!(u64::MAX)),
        prop::sample::select(vec![0.5, -0.0, 1e-300, 1e300, 1e18, 4_503_599_627_370_497.5])
            .prop_map(|number| json!(number)),
        prop::sample::select(vec![
            "",
            "1/s",
            "0/s",
            "1/0s",
            "99999999999999999999/s",
            "*",
            "a:*",
            "none",
            "server",
            "spacing"
        ])
        .prop_map(|text| json!(text)),
        "\\PC{0,300}".prop_map(|text| json!(text)),
        Just(json!([])),
        Just(json!({})),
        (1_usize..200).prop_map(|depth| (0..depth).fold(json!(1), |inner, _| json!([inner]))),
        (1_usize..1_200).prop_map(|count| json!(vec![json!({"key": "a", "limit": "1/s"}); count])),
    ]
}

/// Where a replacement goes, and what it is.
pub(crate) fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, Value)>> {
    prop::collection::vec((any::<prop::sample::Index>(), strange()), 0..4)
}

/// The value with all of that put into it.
pub(crate) fn changed(good: &Value, changes: &[(prop::sample::Index, Value)]) -> Value {
    let mut value = good.clone();
    for (at, strange) in changes {
        let places = places(&value, String::new());
        if let Some(place) = value.pointer_mut(&places[at.index(places.len())]) {
            *place = strange.clone();
        }
    }
    value
}

/// Pointers to everything inside, and to the whole.
fn places(value: &Value, at: String) -> Vec<String> {
    let inner: Vec<String> = match value {
        Value::Object(members) => {
            members.iter().flat_map(|(name, inner)| places(inner, format!("{at}/{name}"))).collect()
        }
        Value::Array(items) => {
            items.iter().zip(0..50).flat_map(|(inner, index)| places(inner, format!("{at}/{index}"))).collect()
        }
        _ => Vec::new(),
    };
    inner.into_iter().chain([at]).collect()
}
