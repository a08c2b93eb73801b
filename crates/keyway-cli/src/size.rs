//! Sizes on a command line: `64`, `64m`, `1g`, `512k`.

/// Bytes of `text`: a whole number and a unit, `k`, `m`, `g` or `t` (powers of 1024, either case, `b` or `ib` may follow), or
/// `b`; without a unit the number is in units of `default_unit` bytes.
pub(crate) fn parse(text: &str, default_unit: u64) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let explain = || format!("\"{text}\" is no size: write a whole number and k, m or g, as in 512k, 64m, 1g");
    let number: u64 = number.parse().map_err(|_| explain())?;
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" => default_unit,
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(explain()),
    };
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("\"{text}\" is more bytes than a 64-bit number counts"))
}

/// Bytes as they are written on a command line.
pub(crate) fn written(bytes: u64) -> String {
    let units = [(1u64 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    match units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}b"),
    }
}

/// Bytes of a size; a plain number is in MiB, as for memcached's `-m`.
pub(crate) fn parse_mebibytes(text: &str) -> Result<u64, String> {
    parse(text, 1 << 20)
}

/// Bytes of a cache that is measured; a plain number is in MiB. No region is smaller than 2 MiB
/// ([`keyway_cache::Options::memory`]).
pub(crate) fn parse_cache_memory(text: &str) -> Result<u64, String> {
    match parse_mebibytes(text)? {
        size if size >= 2 << 20 => Ok(size),
        _ => Err(format!("the memory of a cache is {text}, which must be at least 2m")),
    }
}

/// Bytes of the largest item, 1 KiB to 1 GiB; a plain number is in bytes, as for memcached's `-I`.
pub(crate) fn parse_item_size(text: &str) -> Result<usize, String> {
    let size = parse(text, 1)?;
    match usize::try_from(size) {
        Ok(size) if (1 << 10..=1 << 30).contains(&size) => Ok(size),
        _ => Err(format!("the largest item is {text}, which must be between 1k and 1g")),
    }
}

/// Bytes of a value; a plain number is in bytes, and no value is longer than the largest item, 1 GiB.
pub(crate) fn parse_value_size(text: &str) -> Result<usize, String> {
    let size = parse(text, 1)?;
    match usize::try_from(size) {
        Ok(size) if size <= 1 << 30 => Ok(size),
        _ => Err(format!("a value of {text}, which must be at most 1g")),
    }
}

/// Bytes of the longest answer over UDP; a plain number is in bytes. At least one datagram, and no more datagrams than 16 bits
/// can number.
pub(crate) fn parse_answer_size(text: &str) -> Result<usize, String> {
    let size = parse(text, 1)?;
    match usize::try_from(size) {
        Ok(size) if (1400..=64 << 20).contains(&size) => Ok(size),
        _ => Err(format!(
            "the longest answer to a datagram is {text}, which must be between 1400 and 64m"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("64", 64 << 20),
            ("64m", 64 << 20),
            ("512k", 512 << 10),
            ("1G", 1 << 30),
            ("2 GiB", 2 << 30),
            ("9b", 9),
        ] {
            assert_eq!(parse_mebibytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_item_size("2m"), Ok(2 << 20));
        assert_eq!(parse_item_size("1048576"), Ok(1 << 20));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "m", "-1", "1.5g", "64x", "99999999999999999999", "18446744073709551615m"] {
            assert!(parse_mebibytes(text).is_err(), "{text}");
        }
        assert!(parse_mebibytes("abc").unwrap_err().contains("64m"));
        assert!(parse_item_size("100").is_err());
        assert!(parse_item_size("2g").is_err());
        assert_eq!(parse_value_size("20"), Ok(20));
        assert!(parse_value_size("2g").is_err());
    }
}
