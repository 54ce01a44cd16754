//! The form of a key: makes new keys, and recognises mistyped ones by their checksum. Only `ApiKey::reveal` shows the key,
//! never `Debug` (guarantee 9). A value of any other form is accepted, since it may be the key of another service.

use std::fmt;

use crate::model::Digest;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX: &[u8] = b"gg_";
/// 43 base62 digits carry the 256 random bits.
const SECRET_DIGITS: usize = 43;
/// 6 base62 digits carry the 32 bits of a CRC.
const CHECKSUM_DIGITS: usize = 6;
const LENGTH: usize = PREFIX.len() + SECRET_DIGITS + CHECKSUM_DIGITS;

/// A new key, in the clear. It is printed once and stored nowhere.
pub struct ApiKey(String);

impl ApiKey {
    /// Makes a key from the system's own randomness.
    pub fn generate() -> Result<Self, String> {
        Ok(Self::from_random(random_bytes()?))
    }

    fn from_random(random: [u8; 32]) -> Self {
        let mut text = PREFIX.to_vec();
        text.extend(base62::<SECRET_DIGITS>(random));
        text.extend(checksum(&text));
        ApiKey(text.into_iter().map(char::from).collect())
    }

    /// The key itself, to be printed for the user.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// Whether `key` has the form of our keys, `gg_` and 49 base62 characters, but a wrong checksum, so that no look-up is
/// needed.
pub fn is_mistyped(key: &[u8]) -> bool {
    key.len() == LENGTH
        && key.starts_with(PREFIX)
        && key[LENGTH - CHECKSUM_DIGITS..] != checksum(&key[..LENGTH - CHECKSUM_DIGITS])
        && key[PREFIX.len()..].iter().all(u8::is_ascii_alphanumeric)
}

/// 43 base62 characters that carry 256 random bits.
pub fn random_token() -> Result<String, String> {
    Ok(base62::<SECRET_DIGITS>(random_bytes()?).map(char::from).iter().collect())
}

fn random_bytes() -> Result<[u8; 32], String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|e| format!("the system gave no random bytes: {e}"))?;
    Ok(random)
}

/// The CRC-32 of `text`, in base62.
fn checksum(text: &[u8]) -> [u8; CHECKSUM_DIGITS] {
    base62(crc32fast::hash(text).to_be_bytes())
}

/// A big-endian number in `N` base62 digits, the most significant first.
fn base62<const N: usize>(number: impl AsMut<[u8]>) -> [u8; N] {
    let mut number = number;
    let bytes = number.as_mut();
    let mut digits = [ALPHABET[0]; N];
    for digit in digits.iter_mut().rev() {
        let mut rest = 0u32;
        for byte in bytes.iter_mut() {
            let value = rest << 8 | u32::from(*byte);
            *byte = (value / 62) as u8; // rest < 62, so this is below 256
            rest = value % 62;
        }
        *digit = ALPHABET[rest as usize];
    }
    digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_has_the_length_that_fits_one_block_of_sha256() {
        let key = ApiKey::generate().unwrap();
        assert_eq!(key.reveal().len(), 52);
        assert!(key.reveal().starts_with("gg_"));
        assert!(!is_mistyped(key.reveal().as_bytes()));
    }

    #[test]
    fn two_keys_differ_and_are_not_shown_by_debug() {
        let (a, b) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        assert_ne!(a.reveal(), b.reveal());
        assert_eq!(format!("{a:?}"), "ApiKey(…)");
    }

    #[test]
    fn a_key_of_another_service_is_not_held_to_the_checksum() {
        for other in ["", "gg_", "gg_short", "sk_live_0123456789", &format!("gg_{}", "-".repeat(49))] {
            assert!(!is_mistyped(other.as_bytes()), "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_single_mistyped_character_is_noticed(random: [u8; 32], at in 3usize..52, other in "[0-9A-Za-z]") {
            let mut text = ApiKey::from_random(random).reveal().to_owned();
            prop_assert!(!is_mistyped(text.as_bytes()));
            let before = text.clone();
            text.replace_range(at..=at, &other);
            prop_assert_eq!(is_mistyped(text.as_bytes()), text != before);
        }

        #[test]
        fn no_bits_are_lost(a: [u8; 32], b: [u8; 32]) {
            prop_assert_eq!(a == b, base62::<43>(a) == base62::<43>(b));
        }
    }
}
