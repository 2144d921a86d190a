//! Call ids: 48 bits of wall-clock milliseconds and 80 random bits, so that they sort by time and never collide.

use crate::rng::Rng;
use crate::time::Wall;

/// Crockford's alphabet: no letter that looks like a digit.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Characters of a printed id.
pub const LENGTH: usize = 26;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u128);

impl CallId {
    #[must_use]
    pub fn new(now: Wall, rng: &mut Rng) -> Self {
        let time = u128::try_from(now.0).unwrap_or(0) & ((1 << 48) - 1);
        let chance = (u128::from(rng.draw()) << 16) | u128::from(rng.draw() >> 48);
        Self(time << 80 | chance)
    }

    /// Builds an id from a moment and the caller's random bytes.
    #[must_use]
    pub fn from_parts(now: Wall, chance: [u8; 10]) -> Self {
        let mut bytes = Self::first_at(now).to_bytes();
        bytes[6..].copy_from_slice(&chance);
        Self::from_bytes(bytes)
    }

    /// The bytes that a database stores: they sort as the ids do.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The smallest id of that moment: ids of earlier calls are below it.
    #[must_use]
    pub fn first_at(at: Wall) -> Self {
        Self((u128::try_from(at.0).unwrap_or(0) & ((1 << 48) - 1)) << 80)
    }

    /// When it was made, by the clock of its maker.
    #[must_use]
    pub fn created_at(self) -> Wall {
        Wall(i64::try_from(self.0 >> 80).unwrap_or(i64::MAX))
    }

    /// Its characters, without an allocation.
    #[must_use]
    pub fn text(self) -> [u8; LENGTH] {
        let mut text = [b'0'; LENGTH];
        // Twelve characters at a time, which fit into a machine word.
        for (i, characters) in text.rchunks_mut(12).enumerate() {
            let mut rest = u64::try_from(self.0 >> (60 * i) & ((1 << 60) - 1)).unwrap_or(0);
            for place in characters.iter_mut().rev() {
                *place = ALPHABET[usize::try_from(rest & 31).unwrap_or(0)];
                rest >>= 5;
            }
        }
        text
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != LENGTH {
            return None;
        }
        let mut value: u128 = 0;
        for byte in text.bytes() {
            let digit = ALPHABET.iter().position(|letter| *letter == byte.to_ascii_lowercase())?;
            value = value.checked_mul(32)?.checked_add(u128::try_from(digit).ok()?)?;
        }
        Some(Self(value))
    }
}

impl std::fmt::Display for CallId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.text().iter().try_for_each(|byte| std::fmt::Write::write_char(f, char::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let mut rng = Rng::seeded(1);
        let early = CallId::new(Wall(1_000), &mut rng);
        let late = CallId::new(Wall(2_000), &mut rng);
        assert!(early < late && early.to_string() < late.to_string());
        assert_eq!(CallId::parse(&early.to_string()), Some(early));
        assert_eq!((early.created_at(), CallId::first_at(Wall(2_000)).created_at()), (Wall(1_000), Wall(2_000)));
        assert_ne!(CallId::new(Wall(1_000), &mut rng), CallId::new(Wall(1_000), &mut rng));
        for bad in ["", "u", "uuuuuuuuuuuuuuuuuuuuuuuuuu", "zzzzzzzzzzzzzzzzzzzzzzzzzz"] {
            assert_eq!(CallId::parse(bad), None, "{bad}");
        }
    }
}
