//! The state of one idempotency key: reserved before dispatch, then done, released, or unknown. Pure transitions on one entry; other
//! modules store entries and responses. Times are wall-clock, because entries outlive the process.

use crate::classify::Classification;
use crate::record::Class;
use crate::time::{Nanos, Wall};

/// SHA-256 over method, target, content type and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestFingerprint(pub [u8; 32]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationStage {
    /// Reserved; the reservation ends at `until`.
    InFlight { until: Wall },
    /// Responded; the stored response is replayed.
    Done,
    /// Sent, but the result is unknown.
    Unknown,
}

/// ```text
///            reserve              finish(Done)
///   absent ──────────► InFlight ───────────────► Done ──── ttl ───► absent
///     ▲                 │   │  finish(Unknown)
///     └─ finish(Released)   └──── or lease over ──► Unknown ─ ttl ──► absent
///                       ▲                             │
///                       └── reserve, if the upstream ─┘
///                           honours keys
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    pub fingerprint: RequestFingerprint,
    pub state: ReservationStage,
    /// The number of this reservation: the result of an older one is ignored.
    pub reservation: u32,
    pub expires: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyClaim {
    pub fingerprint: RequestFingerprint,
    /// Longer than the call's deadline, so that a running call never loses it.
    pub lease: Nanos,
    pub ttl: Nanos,
    /// Whether the upstream itself executes a repeated key once: then an unknown key may be sent again.
    pub upstream_honours_keys: bool,
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveAnswer {
    Proceed {
        reservation: u32,
    },
    Replay,
    /// The key was used for another request.
    Mismatch,
    InFlight {
        retry_at: Wall,
    },
    /// It may have been executed already, so it is not executed again.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEnding {
    Done,
    /// Provably unsent, or refused by the upstream: the key is free again.
    Released,
    /// Sent, no response.
    Unknown,
}

/// Reserves the key for an execution. An expired entry counts as absent.
pub fn reserve(slot: &mut Option<KeyEntry>, claim: KeyClaim, now: Wall) -> ReserveAnswer {
    let Some(entry) = slot.filter(|entry| now < entry.expires) else { return grant(slot, claim, 0, now) };
    if entry.fingerprint != claim.fingerprint {
        return ReserveAnswer::Mismatch;
    }
    match entry.state_at(now) {
        ReservationStage::Done => ReserveAnswer::Replay,
        ReservationStage::InFlight { until } => ReserveAnswer::InFlight { retry_at: until },
        ReservationStage::Unknown if claim.upstream_honours_keys => grant(slot, claim, entry.reservation.wrapping_add(1), now),
        ReservationStage::Unknown => ReserveAnswer::Unknown,
    }
}

/// Reserves the key again for its current holder: a job that continues after a wait or a crash. The job keeps its reservation, because it
/// would only repeat its own earlier send under the same key.
pub fn resume(slot: &mut Option<KeyEntry>, claim: KeyClaim, now: Wall) -> ReserveAnswer {
    let held = slot.filter(|entry| now < entry.expires && entry.fingerprint == claim.fingerprint);
    match held {
        Some(KeyEntry { state: ReservationStage::InFlight { .. } | ReservationStage::Unknown, reservation, .. }) => {
            grant(slot, claim, reservation, now)
        }
        Some(KeyEntry { state: ReservationStage::Done, .. }) | None => reserve(slot, claim, now),
    }
}

fn grant(slot: &mut Option<KeyEntry>, claim: KeyClaim, reservation: u32, now: Wall) -> ReserveAnswer {
    let until = now + claim.lease;
    let expires = until.max(now + claim.ttl);
    *slot = Some(KeyEntry { fingerprint: claim.fingerprint, state: ReservationStage::InFlight { until }, reservation, expires });
    ReserveAnswer::Proceed { reservation }
}

/// Ends a reservation. `false` when it was lost in the meantime: the result is then only recorded.
pub fn finish(slot: &mut Option<KeyEntry>, reservation: u32, ending: KeyEnding, ttl: Nanos, now: Wall) -> bool {
    let Some(entry) = slot.as_mut().filter(|entry| entry.reservation == reservation) else { return false };
    match (entry.state, ending) {
        (ReservationStage::Done, KeyEnding::Done | KeyEnding::Released | KeyEnding::Unknown) => return false,
        (ReservationStage::InFlight { .. } | ReservationStage::Unknown, KeyEnding::Done) => entry.settle(ReservationStage::Done, ttl, now),
        (ReservationStage::InFlight { .. } | ReservationStage::Unknown, KeyEnding::Unknown) => {
            entry.settle(ReservationStage::Unknown, ttl, now)
        }
        (ReservationStage::InFlight { .. } | ReservationStage::Unknown, KeyEnding::Released) => *slot = None,
    }
    true
}

/// Whether a response is stored for the key. If the upstream refused the request, nothing was executed, and a caller that retries after the
/// failure must not get the refusal replayed for a day. A 500 or a 504 may have executed: only an upstream that honours keys can be asked
/// again.
#[must_use]
pub fn is_final(status: u16, verdict: &Classification, honoured: bool) -> bool {
    let turned_away = match verdict.class {
        Class::Quota | Class::Auth => true,
        Class::Transient => status == 503 || honoured,
        Class::Success | Class::Permanent | Class::Ambiguous => false,
    };
    !(turned_away || verdict.unprocessed)
}

impl KeyEntry {
    /// An expired reservation counts as unknown: its holder may have sent before it died.
    #[must_use]
    pub fn state_at(&self, now: Wall) -> ReservationStage {
        match self.state {
            ReservationStage::InFlight { until } if now >= until => ReservationStage::Unknown,
            state @ (ReservationStage::InFlight { .. } | ReservationStage::Done | ReservationStage::Unknown) => state,
        }
    }

    fn settle(&mut self, state: ReservationStage, ttl: Nanos, now: Wall) {
        self.state = state;
        self.expires = now + ttl;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Nanos = Nanos::from_secs(86_400);

    fn claim(seed: u8) -> KeyClaim {
        KeyClaim { fingerprint: RequestFingerprint([seed; 32]), lease: Nanos::from_secs(60), ttl: TTL, upstream_honours_keys: false }
    }

    fn reserved() -> Option<KeyEntry> {
        let mut slot = None;
        assert_eq!(reserve(&mut slot, claim(1), Wall(0)), ReserveAnswer::Proceed { reservation: 0 });
        slot
    }

    #[test]
    fn the_first_goes_and_the_second_waits_for_it() {
        let mut slot = reserved();
        assert_eq!(reserve(&mut slot, claim(1), Wall(1)), ReserveAnswer::InFlight { retry_at: Wall(60_000) });
    }

    #[test]
    fn another_request_under_the_same_key_is_refused_in_every_state() {
        for ending in [None, Some(KeyEnding::Done), Some(KeyEnding::Unknown)] {
            let mut slot = reserved();
            if let Some(ending) = ending {
                assert!(finish(&mut slot, 0, ending, TTL, Wall(5)));
            }
            assert_eq!(reserve(&mut slot, claim(2), Wall(6)), ReserveAnswer::Mismatch, "{ending:?}");
        }
    }

    #[test]
    fn an_answer_is_replayed_until_it_expires() {
        let mut slot = reserved();
        assert!(finish(&mut slot, 0, KeyEnding::Done, TTL, Wall(1_000)));
        assert_eq!(reserve(&mut slot, claim(1), Wall(86_400_999)), ReserveAnswer::Replay);
        assert_eq!(reserve(&mut slot, claim(2), Wall(86_401_000)), ReserveAnswer::Proceed { reservation: 0 });
    }

    #[test]
    fn a_holder_that_comes_back_goes_on_until_it_is_done() {
        let mut slot = reserved();
        assert_eq!(resume(&mut slot, claim(1), Wall(90_000)), ReserveAnswer::Proceed { reservation: 0 });
        assert_eq!(reserve(&mut slot, claim(1), Wall(90_001)), ReserveAnswer::InFlight { retry_at: Wall(150_000) });
        assert_eq!(resume(&mut slot, claim(2), Wall(90_002)), ReserveAnswer::Mismatch);
        assert!(finish(&mut slot, 0, KeyEnding::Done, TTL, Wall(90_003)));
        assert_eq!(resume(&mut slot, claim(1), Wall(90_004)), ReserveAnswer::Replay);
    }

    #[test]
    fn a_released_key_is_free_again() {
        let mut slot = reserved();
        assert!(finish(&mut slot, 0, KeyEnding::Released, TTL, Wall(5)));
        assert_eq!(reserve(&mut slot, claim(2), Wall(5)), ReserveAnswer::Proceed { reservation: 0 });
    }

    #[test]
    fn the_unknown_is_done_again_only_where_the_upstream_honours_keys() {
        let mut slot = reserved();
        assert!(finish(&mut slot, 0, KeyEnding::Unknown, TTL, Wall(5)));
        assert_eq!(reserve(&mut slot, claim(1), Wall(6)), ReserveAnswer::Unknown);
        let honoured = KeyClaim { upstream_honours_keys: true, ..claim(1) };
        assert_eq!(reserve(&mut slot, honoured, Wall(6)), ReserveAnswer::Proceed { reservation: 1 });
    }

    #[test]
    fn a_lease_that_runs_out_leaves_the_unknown() {
        let mut slot = reserved();
        assert_eq!(reserve(&mut slot, claim(1), Wall(59_999)), ReserveAnswer::InFlight { retry_at: Wall(60_000) });
        assert_eq!(reserve(&mut slot, claim(1), Wall(60_000)), ReserveAnswer::Unknown);
        assert!(finish(&mut slot, 0, KeyEnding::Done, TTL, Wall(60_001)), "its own late answer still resolves it");
        assert_eq!(reserve(&mut slot, claim(1), Wall(60_002)), ReserveAnswer::Replay);
    }

    #[test]
    fn a_lost_reservation_changes_nothing() {
        let mut slot = reserved();
        let honoured = KeyClaim { upstream_honours_keys: true, ..claim(1) };
        assert_eq!(reserve(&mut slot, honoured, Wall(60_000)), ReserveAnswer::Proceed { reservation: 1 });
        let before = slot;
        assert!(!finish(&mut slot, 0, KeyEnding::Released, TTL, Wall(60_001)));
        assert_eq!(slot, before);
        assert!(finish(&mut slot, 1, KeyEnding::Done, TTL, Wall(60_002)));
        assert!(!finish(&mut slot, 1, KeyEnding::Unknown, TTL, Wall(60_003)), "what is done stays done");
    }

    #[test]
    fn a_lease_longer_than_the_ttl_keeps_the_entry() {
        let mut slot = None;
        let short = KeyClaim { ttl: Nanos::from_secs(1), ..claim(1) };
        assert_eq!(reserve(&mut slot, short, Wall(0)), ReserveAnswer::Proceed { reservation: 0 });
        assert_eq!(reserve(&mut slot, short, Wall(30_000)), ReserveAnswer::InFlight { retry_at: Wall(60_000) });
    }
}
