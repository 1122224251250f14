//! Bytes as hexadecimal digits, for environments and launchers that carry text.

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None` if it is anything but pairs of digits.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_checked() {
        assert_eq!(to_hex(&[0, 1, 0xab, 255]), "0001abff");
        assert_eq!(from_hex("0001abFF").unwrap(), [0, 1, 0xab, 255]);
        assert!(from_hex("0").is_none() && from_hex("0g").is_none() && from_hex("+1").is_none());
    }
}
