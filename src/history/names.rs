//! Names that stand in many lines, each kept once: policies, workers, reasons.
//!
//! Invariant: [`NO_NAME`] is no name; any other number is that of one name, for as long as the table lives.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of a name in its table, counted from one.
pub(super) type NameId = u32;

/// Where there is none.
pub(super) const NO_NAME: NameId = 0;

/// A table of names.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Arc<str>, NameId>,
    texts: Vec<Arc<str>>,
}

impl Names {
    pub(super) fn texts(&self) -> &[Arc<str>] {
        &self.texts
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn text(&self, id: NameId) -> Option<&str> {
        self.texts.get(position(id)?).map(AsRef::as_ref)
    }

    /// The number of a name.
    pub(super) fn id(&mut self, text: &str) -> NameId {
        match self.ids.get(text) {
            Some(id) => *id,
            None => self.insert(text.into()),
        }
    }

    /// The number of a name that may not be there, and is not copied if it is new.
    pub(super) fn id_of(&mut self, text: Option<&Arc<str>>) -> NameId {
        match text {
            Some(text) => self.ids.get(text).copied().unwrap_or_else(|| self.insert(Arc::clone(text))),
            None => NO_NAME,
        }
    }

    fn insert(&mut self, text: Arc<str>) -> NameId {
        self.texts.push(Arc::clone(&text));
        // A table with more than four billion names does not fit into memory.
        let id = NameId::try_from(self.texts.len()).unwrap_or(NO_NAME);
        self.ids.insert(text, id);
        id
    }
}

/// Where a name stands in its table.
pub(super) fn position(id: NameId) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number() {
        let mut names = Names::default();
        let api: Arc<str> = "api".into();
        let ids = [
            names.id_of(Some(&api)),
            names.id("w"),
            names.id("api"),
            names.id_of(None),
            names.id_of(Some(&"w".into())),
        ];
        assert_eq!(ids, [1, 2, 1, NO_NAME, 2]);
        let text = |id| names.text(id);
        assert_eq!([0, 1, 2, 3].map(text), [None, Some("api"), Some("w"), None]);
    }
}
