//! Integers of variable length (LEB128, as protobuf has them): seven bits a byte, the lowest first. Pure.

/// Appends a number, in 1 byte up to 127 and in 10 at most.
pub(super) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number (zigzag).
pub(super) fn put_signed(value: i64, out: &mut Vec<u8>) {
    put(((value << 1) ^ (value >> 63)) as u64, out);
}

/// Takes a number off the front; `None` if it does not end or does not fit.
pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return (value >> shift == bits).then_some(value);
        }
    }
    None
}

pub(super) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    take(bytes).map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_reads_back_and_leaves_the_rest(value in any::<u64>(), shift in 0u32..64, rest in any::<Vec<u8>>()) {
            let (value, signed) = (value >> shift, (value >> shift) as i64);
            let mut bytes = Vec::new();
            put(value, &mut bytes);
            put_signed(signed, &mut bytes);
            put_signed(-(signed >> 1), &mut bytes);
            bytes.extend(&rest);
            let mut left = &*bytes;
            prop_assert_eq!(take(&mut left), Some(value));
            prop_assert_eq!(take_signed(&mut left), Some(signed));
            prop_assert_eq!(take_signed(&mut left), Some(-(signed >> 1)));
            prop_assert_eq!(left, &*rest);
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
            let mut left = &*bytes;
            while take(&mut left).is_some() {}
        }
    }

    #[test]
    fn what_does_not_fit_is_no_number() {
        assert_eq!(take(&mut [0xff; 9].as_slice()), None, "it does not end");
        assert_eq!(take(&mut [0xff; 11].as_slice()), None);
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(take(&mut most.as_slice()), Some(u64::MAX));
        let more = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(take(&mut more.as_slice()), None);
    }
}
