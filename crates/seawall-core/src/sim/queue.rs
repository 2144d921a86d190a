//! The event queue: earliest first, and first in, first out among events of one instant, so that a run never depends on the tie-breaking of
//! a heap.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Mono;

#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<QueueEntry<E>>,
    pushed: u64,
}

#[derive(Debug)]
struct QueueEntry<E> {
    at: Mono,
    order: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(super) fn with_capacity(events: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(events), pushed: 0 }
    }

    pub(super) fn push(&mut self, at: Mono, event: E) {
        self.heap.push(QueueEntry { at, order: self.pushed, event });
        self.pushed += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(Mono, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> Ord for QueueEntry<E> {
    /// Reversed, because the standard heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<E> PartialOrd for QueueEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for QueueEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for QueueEntry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut queue = Queue::with_capacity(0);
        for (at, event) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b'), (2, 'e')] {
            queue.push(Mono(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcde");
    }
}
