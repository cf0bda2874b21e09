//! The counts of a window: how much was granted in each of its cells, as far as it still matters.
//!
//! Invariant: cells are in order, none of them is empty, and all have the width of the window they were last counted by.

use super::time::{Span, Time};
use super::window::Window;
use serde::{Deserialize, Serialize};

/// All cells of one key that hold anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Cells {
    width: Span,
    /// How long after its end a cell still counts.
    lasts: Span,
    counts: Vec<Cell>,
}

/// One cell: `[index * width, (index + 1) * width)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Cell {
    index: u64,
    count: u64,
}

impl Cells {
    pub(super) const fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// What counts at `at`, rounded up. Of a sliding window what lies less than a period ahead counts as well: it will be in a
    /// window with whatever is granted now.
    pub(super) fn counted(&self, window: &Window, at: Time) -> u64 {
        let current = index(window, at);
        if window.is_aligned() {
            return self.count(current);
        }
        let (whole, oldest) = self.around(window, current);
        let covered = end(window, current).since(at).0;
        whole.saturating_add(weighted(oldest, covered, window.resolution().0))
    }

    /// The earliest instant from `from` on at which `cost` more fits.
    pub(super) fn earliest(&self, window: &Window, from: Time, cost: u64) -> Time {
        let mut current = index(window, from);
        loop {
            current = self.first_fitting(window, current, cost);
            let begin = Time(current.saturating_mul(window.resolution().0)).max(from);
            let end = end(window, current);
            let (whole, oldest) =
                if window.is_aligned() { (self.count(current), 0) } else { self.around(window, current) };
            if let Some(room) = window.count().checked_sub(whole.saturating_add(cost)) {
                // `ceil(oldest * covered / width) <= room`: rounded down, so that the instant is rounded up.
                let covered = if oldest == 0 {
                    u64::MAX
                } else {
                    let ns = u128::from(room) * u128::from(window.resolution().0) / u128::from(oldest);
                    u64::try_from(ns).unwrap_or(u64::MAX)
                };
                let at = begin.max(end.before(Span(covered)));
                if at < end {
                    return at;
                }
            }
            current += 1;
        }
    }

    /// A cell from `current` on before which nothing fits: far reservations are passed without looking at every cell.
    fn first_fitting(&self, window: &Window, current: u64, cost: u64) -> u64 {
        let room = window.count().saturating_sub(cost);
        if window.is_aligned() {
            let at = self.counts.partition_point(|cell| cell.index < current);
            let full = self.counts[at..].iter().zip(current..);
            return current + full.take_while(|(cell, index)| cell.index == *index && cell.count > room).count() as u64;
        }
        let (mut current, span) = (current, window.cells());
        let (mut first, mut after) = self.reach(window, current);
        let mut whole = sum(&self.counts[first..after]);
        while whole > room {
            // Nothing gets better before the first of them has left; others come in on the way.
            current = self.counts[first].index.saturating_add(span);
            let (next_first, next_after) = self.reach(window, current);
            whole -= sum(&self.counts[first..next_first.min(after)]);
            whole = whole.saturating_add(sum(&self.counts[after.max(next_first)..next_after]));
            (first, after) = (next_first, next_after);
        }
        current
    }

    /// Which cells are in one window with an instant of cell `current`, whether they lie before it or after it.
    fn reach(&self, window: &Window, current: u64) -> (usize, usize) {
        let span = window.cells();
        let first = self.counts.partition_point(|cell| cell.index.saturating_add(span) <= current);
        let after = self.counts.partition_point(|cell| cell.index < current.saturating_add(span));
        (first, after)
    }

    /// Counts `cost` at `slot` and says where.
    pub(super) fn add(&mut self, window: &Window, slot: Time, cost: u64) -> u64 {
        (self.width, self.lasts) = (window.resolution(), lasts(window));
        let index = index(window, slot);
        let at = self.counts.partition_point(|cell| cell.index < index);
        match self.counts.get_mut(at) {
            Some(cell) if cell.index == index => cell.count = cell.count.saturating_add(cost),
            _ => self.counts.insert(at, Cell { index, count: cost }),
        }
        index
    }

    /// Takes `cost` out of a cell again.
    pub(super) fn remove(&mut self, index: u64, cost: u64) {
        let Ok(at) = self.counts.binary_search_by_key(&index, |cell| cell.index) else { return };
        self.counts[at].count = self.counts[at].count.saturating_sub(cost);
        if self.counts[at].count == 0 {
            self.counts.remove(at);
        }
    }

    /// Forgets what no longer counts.
    pub(super) fn forget_past(&mut self, window: &Window, now: Time) {
        let kept = if window.is_aligned() { 0 } else { window.cells() };
        let first = index(window, now).saturating_sub(kept);
        let past = self.counts.partition_point(|cell| cell.index < first);
        self.counts.drain(..past);
    }

    /// The instant from which on nothing of this counts.
    pub(super) fn idle_at(&self) -> Time {
        let end = |cell: &Cell| Time(cell.index.saturating_add(1).saturating_mul(self.width.0)).after(self.lasts);
        self.counts.last().map_or(Time::ZERO, end)
    }

    /// What still counts in part or in full, whatever the window.
    pub(super) fn owed(&self, now: Time) -> u64 {
        let counts =
            |cell: &&Cell| Time(cell.index.saturating_add(1).saturating_mul(self.width.0)).after(self.lasts) > now;
        self.counts.iter().filter(counts).fold(0, |sum: u64, cell| sum.saturating_add(cell.count))
    }

    /// Counts in the cells of another window. Nothing in here lies after `now`. What was in a cell is put where the cell ended,
    /// or at `now` if it has not: it may only count longer.
    pub(super) fn recount(&mut self, window: &Window, now: Time) {
        let old = std::mem::replace(&mut self.width, window.resolution());
        self.lasts = lasts(window);
        if old == self.width {
            return;
        }
        for cell in std::mem::take(&mut self.counts) {
            let last = Time(cell.index.saturating_add(1).saturating_mul(old.0)).before(Span(1));
            self.add(window, last.min(now), cell.count);
        }
    }

    /// What is in the cells that count in full at an instant of cell `current`, and what is in the oldest one.
    fn around(&self, window: &Window, current: u64) -> (u64, u64) {
        let (first, after) = self.reach(window, current);
        let oldest = current.checked_sub(window.cells());
        (sum(&self.counts[first..after]), oldest.map_or(0, |oldest| self.count(oldest)))
    }

    fn count(&self, index: u64) -> u64 {
        self.counts.binary_search_by_key(&index, |cell| cell.index).map_or(0, |at| self.counts[at].count)
    }
}

const fn index(window: &Window, at: Time) -> u64 {
    at.0 / window.resolution().0
}

const fn end(window: &Window, index: u64) -> Time {
    Time(index.saturating_add(1).saturating_mul(window.resolution().0))
}

const fn lasts(window: &Window) -> Span {
    if window.is_aligned() { Span::ZERO } else { window.rate().per() }
}

fn sum(cells: &[Cell]) -> u64 {
    cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.count))
}

/// `count * covered / width`, rounded up.
fn weighted(count: u64, covered: u64, width: u64) -> u64 {
    let part = (u128::from(count) * u128::from(covered)).div_ceil(u128::from(width));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    fn sliding() -> Window {
        Window::sliding("10/10s".parse().unwrap(), Some(Span::from_secs(5))).unwrap()
    }

    #[test]
    fn the_oldest_cell_counts_by_what_is_covered_of_it() {
        let mut cells = Cells::default();
        cells.add(&sliding(), Time(2 * SEC), 4);
        for (at, counted) in [(2, 4), (14, 1), (10, 4), (12, 3), (15, 0), (9, 4)] {
            assert_eq!(cells.counted(&sliding(), Time(at * SEC)), counted, "at {at} s");
        }
        assert_eq!(cells.counted(&sliding(), Time(15 * SEC - 1)), 1, "rounded up");
        assert_eq!(cells.idle_at(), Time(15 * SEC));
    }

    #[test]
    fn the_earliest_instant_is_the_first_at_which_it_fits() {
        let mut cells = Cells::default();
        cells.add(&sliding(), Time(2 * SEC), 10);
        let at = cells.earliest(&sliding(), Time(3 * SEC), 1);
        assert_eq!(at, Time(10 * SEC + SEC / 2), "a tenth of the oldest cell has left");
        assert_eq!(cells.counted(&sliding(), at), 9);
        assert_eq!(cells.counted(&sliding(), at.before(Span(1))), 10);
        assert_eq!(cells.earliest(&sliding(), Time(3 * SEC), 10), Time(15 * SEC));
        let aligned = Window::aligned("10/10s".parse().unwrap());
        let mut cells = Cells::default();
        cells.add(&aligned, Time(2 * SEC), 10);
        assert_eq!(cells.earliest(&aligned, Time(3 * SEC), 1), Time(10 * SEC));
        assert_eq!(cells.counted(&aligned, Time(10 * SEC - 1)), 10);
        assert_eq!((cells.counted(&aligned, Time(10 * SEC)), cells.idle_at()), (0, Time(10 * SEC)));
    }

    #[test]
    fn another_window_never_counts_less() {
        let mut cells = Cells::default();
        cells.add(&sliding(), Time(2 * SEC), 4);
        cells.add(&sliding(), Time(7 * SEC), 2);
        let finer = Window::sliding("10/10s".parse().unwrap(), Some(Span::from_secs(1))).unwrap();
        cells.recount(&finer, Time(13 * SEC));
        assert_eq!(cells.counted(&finer, Time(13 * SEC)), 6, "as if all had come at the end of their cells");
        assert_eq!(cells.counted(&finer, Time(15 * SEC)), 2);
        cells.remove(9, 2);
        cells.forget_past(&finer, Time(14 * SEC));
        assert_eq!(cells.counts, [Cell { index: 4, count: 4 }]);
        cells.forget_past(&finer, Time(15 * SEC));
        assert!(cells.is_empty());
    }

    /// Permits of a limit that has room are not refused because others were pushed far ahead.
    #[test]
    fn what_lies_far_ahead_is_no_hindrance_now() {
        let mut cells = Cells::default();
        for ahead in 2..100 {
            cells.add(&sliding(), Time(ahead * 10 * SEC), 9);
        }
        assert_eq!(cells.earliest(&sliding(), Time(SEC), 10), Time(SEC));
        assert_eq!(cells.counted(&sliding(), Time(SEC)), 0);
        assert_eq!(cells.earliest(&sliding(), Time(14 * SEC), 1), Time(14 * SEC), "nine and one");
        assert_eq!(cells.earliest(&sliding(), Time(16 * SEC), 2), Time(1_000_555_555_556), "after all of them");
    }

    /// P7: a hostile client reserves far ahead, and nobody else waits for that. Looking at every cell took minutes here.
    #[test]
    fn far_reservations_are_passed_quickly() {
        for window in [sliding(), Window::aligned("10/10s".parse().unwrap())] {
            let mut cells = Cells::default();
            for reserved in 0..20_000 {
                let slot = cells.earliest(&window, Time(0), 10);
                assert_eq!(slot.0, reserved * if window.is_aligned() { 10 } else { 15 } * SEC, "{window:?}");
                cells.add(&window, slot, 10);
            }
        }
    }
}
