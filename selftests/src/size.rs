// SPDX-License-Identifier: GPL-2.0

//! Byte counts with the suffixes people write.

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Reads `4096`, `64K`, `256M`, `1G` or `1T`.
///
/// # Errors
///
/// A sentence for the user when it is not a positive number of bytes below
/// 2^63.
pub fn parse(text: &str) -> Result<u64, String> {
    let upper = text.to_ascii_uppercase();
    let (digits, shift) = UNITS
        .iter()
        .find_map(|&(unit, shift)| upper.strip_suffix(unit).map(|d| (d, shift)))
        .unwrap_or((&upper, 0));
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|&n| n > 0 && n < 1 << 63)
        .ok_or_else(|| format!("`{text}` is not a size; write bytes, or e.g. 64K, 256M, 1G"))
}

/// Writes a byte count in the largest unit that divides it.
pub fn format(bytes: u64) -> String {
    UNITS
        .iter()
        .find(|&&(_, shift)| bytes != 0 && bytes % (1 << shift) == 0)
        .map_or(bytes.to_string(), |&(unit, shift)| {
            format!("{}{unit}", bytes >> shift)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_two() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64k"), Ok(65536));
        assert_eq!(parse("256M"), Ok(256 << 20));
        assert_eq!(parse("128G"), Ok(128 << 30));
    }

    #[test]
    fn nonsense_is_refused_with_the_word() {
        for bad in ["", "M", "1X", "-1", "0", "9000000T", "1.5G"] {
            assert!(parse(bad).unwrap_err().contains(&format!("`{bad}`")));
        }
    }

    #[test]
    fn format_is_the_inverse_of_parse() {
        for text in ["4097", "64K", "256M", "3G", "128G", "1T"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
    }
}
