//! Paths as servers read them. Guildgate compares the paths of operations byte for byte, and an origin may read the same
//! path in another way: it decodes, folds case, resolves dots or drops what it takes for parameters. A path that might be
//! an operation's to any of them is not passed on, so that there is no way round an operation's rules. Pure.

use percent_encoding::percent_decode;

use super::Operation;

/// How often a path may be decoded until nothing changes. No honest path needs more than two.
const MAX_DECODINGS: usize = 8;

/// Whether a server may take this path for an operation's: `{base}/NAME`, `/NAME` or `{upstream path}/NAME`, however it is
/// spelled, or one below it, which servers hand to the same program.
///
/// Where servers disagree about which segments a path has (`..`, parameters, a decoded query, a leading `//host`), an
/// operation's name in any segment is enough.
pub fn may_be_operation(path: &[u8], base: &str, upstream_paths: &[&str]) -> bool {
    let Some(path) = decoded(path) else { return true };
    let is_operation = |name: &str| Operation::ALL.iter().any(|operation| operation.name().eq_ignore_ascii_case(name));
    // A suffix such as `.json` chooses the form of the answer at some servers.
    let is_name = |segment: &&str| segment.split(['.', ':']).next().is_some_and(is_operation);
    let segments = segments(&path);
    if !segments.iter().any(is_name) {
        return false;
    }
    let is_below = |prefix: &str| {
        let Some(prefix) = decoded(prefix.as_bytes()) else { return true };
        let rest = segments.strip_prefix(&*self::segments(&prefix));
        rest.and_then(<[&str]>::first).is_some_and(is_name)
    };
    // Behind a program such as `index.php` stands the path that it answers.
    let is_ambiguous =
        path.contains([';', '?', '#']) || path.contains(".PHP/") || path.starts_with("//") || segments.contains(&"..");
    is_ambiguous || is_below("") || is_below(base) || upstream_paths.iter().copied().any(is_below)
}

/// Whether a path is `prefix` or below it in whole segments, to any server: one that might climb out of it is not.
pub fn lies_under(path: &[u8], prefix: &str) -> bool {
    if prefix == "/" {
        return path.starts_with(b"/");
    }
    let is_below = path.strip_prefix(prefix.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    is_below && decoded(path).is_some_and(|path| !segments(&path).contains(&".."))
}

/// A path decoded until nothing changes, in upper case and with `/` for `\`. `None`: it has control characters, which
/// servers drop or end a path at, or it is encoded so often, or in such a way (`%u0073`, or ASCII in more bytes than one)
/// that only an attack can be meant.
fn decoded(path: &[u8]) -> Option<String> {
    let mut path = path.to_vec();
    for _ in 0..MAX_DECODINGS {
        let next: Vec<u8> = percent_decode(&path).collect();
        if next == path {
            let is_overlong = |pair: &[u8]| matches!(pair, [0xc0 | 0xc1, _] | [0xe0, ..0xa0] | [0xf0, ..0x90]);
            let text = String::from_utf8_lossy(&path).to_uppercase();
            let is_meant =
                !text.contains(char::is_control) && !text.contains("%U") && !path.windows(2).any(is_overlong);
            return is_meant.then(|| text.replace('\\', "/"));
        }
        path = next;
    }
    None
}

/// The segments of a decoded path, without those that change nothing, and parameters as segments of their own.
fn segments(path: &str) -> Vec<&str> {
    path.split(['/', ';', '?', '#']).map(str::trim).filter(|segment| !matches!(*segment, "" | ".")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// What `base_path` "/api" and the upstreams' paths stand for.
    const FOLDERS: &[&[&str]] = &[&["API"], &[], &["v1"], &["guild data", "v2"]];

    const STARTS: &[&str] = &["/", "/", "//host/", "/\\host/"];

    const ENDS: &[&str] = &["", "/", ";x", "%3bx", ";%2fx", "%00x", ".json", "%20", ".", "/x/..", "%3fx", "%23"];

    const UPSTREAMS: [&str; 2] = ["/v1", "/guild%20data/v2"];

    fn is_operations(path: &str) -> bool {
        may_be_operation(path.as_bytes(), "/api", &UPSTREAMS)
    }

    /// A character, as it is or encoded up to four times, in either case.
    fn spelled(c: char) -> impl Strategy<Value = String> {
        (0usize..5, any::<bool>()).prop_map(move |(times, is_upper)| {
            let c = if is_upper { c.to_ascii_uppercase() } else { c };
            match times {
                0 => c.to_string(),
                times => format!("%{}{:02x}", "25".repeat(times - 1), c as u32),
            }
        })
    }

    fn spelled_text(text: &'static str) -> impl Strategy<Value = String> {
        text.chars().map(spelled).collect::<Vec<_>>().prop_map(|parts| parts.concat())
    }

    /// What stands between two segments and makes no difference to a server of some kind.
    fn separator() -> impl Strategy<Value = String> {
        const SAME: &[&str] =
            &["/", "//", "\\", "/./", "/x/../", "/x\\..\\", "/;p/", ";p=1/", "/%20/", "/a%2fb/../../", "//..//"];
        select(SAME).prop_flat_map(|text| prop_oneof![Just(text.to_owned()), spelled_text(text)])
    }

    proptest! {
        #[test]
        fn an_operation_is_known_in_every_spelling(
            folder in select(FOLDERS),
            operation in select(&Operation::ALL[..]),
            parts in prop::collection::vec(separator(), 3),
            start in select(STARTS),
            end in select(ENDS),
            spell in prop::collection::vec(0usize..4, 32),
        ) {
            let mut path = start.to_owned();
            let words = folder.iter().copied().chain([operation.name()]);
            let mut spell = spell.into_iter().cycle();
            for (i, word) in words.enumerate() {
                if i > 0 {
                    path += &parts[i];
                }
                for c in word.chars() {
                    match spell.next() {
                        Some(1) => path += &format!("%{:02X}", c as u32),
                        Some(2) => path += &format!("%25{:02x}", c as u32),
                        Some(3) => path.push(c.to_ascii_uppercase()),
                        _ if c == ' ' => path += "%20",
                        _ => path.push(c),
                    }
                }
            }
            path += end;
            prop_assert!(is_operations(&path), "{path}");
        }

        #[test]
        fn what_is_encoded_too_often_is_not_passed(path in prop::collection::vec(any::<u8>(), 0..64), times in 8usize..5_000) {
            let path = [&path[..], b"%", &b"25".repeat(times), b"41"].concat();
            prop_assert!(may_be_operation(&path, "", &[]) && !lies_under(&path, "/docs"));
        }
    }

    #[test]
    fn where_servers_disagree_an_operations_name_anywhere_is_enough() {
        for path in [
            "/setPoints",
            "/api/setPoints",
            "/v1/setPoints",
            "/x/../setPoints",
            "//setPoints",
            "//host/x/setPoints",
            "/set%50oints",
            "/set%2550oints",
            "/setPoints;x",
            "/setPoints;%2fx",
            "\\setPoints",
            "/SETPOINTS/",
            "/\u{17f}etPoints",
            "/x/a%2fb/../../setPoints",
            "/setPoints/a%2fb/..",
            "/api/b//../../setPoints",
            "/set%09Points",
            "/guild%20data/v2/getWarns",
            "/setPoints/x",
            "/api/getPoints.json/a/b",
            "/%u0073etPoints",
            "/x/%u002e%u002e/setPoints",
            "/%c1%b3etPoints",
            "/%e0%81%b3etPoints",
            "/setPoints::$DATA",
            "/index.php/setPoints",
        ] {
            assert!(is_operations(path), "{path}");
        }
        for path in ["/", "", "*", "/docs/setPoints", "/api", "/api/docs/setPoints", "/v2/setPoints", "/setPointsNow"] {
            assert!(!is_operations(path), "{path}");
        }
        for path in [
            "/docs/../index.html",
            "/a;b=c/d",
            "/%E2%98%85",
            "/%ff",
            "/%c9t%e9",
            "/100%",
            "/apisetPoints",
            "/api.setPoints",
        ] {
            assert!(!is_operations(path), "{path}");
        }
    }

    #[test]
    fn a_prefix_is_whole_segments_and_nothing_climbs_out_of_it() {
        for path in ["/docs", "/docs/", "/docs/a", "/docs/a%2fb", "/docs//"] {
            assert!(lies_under(path.as_bytes(), "/docs"), "{path}");
        }
        for path in
            ["/", "/docsx", "/Docs", "//docs", "/docs/../a", "/docs/a%2f..%2f..", "/docs/%252e%252e/a", "/docs/..;/a"]
        {
            assert!(!lies_under(path.as_bytes(), "/docs"), "{path}");
        }
        assert!(lies_under(b"/docs/../a", "/") && lies_under(b"//a", "/") && !lies_under(b"*", "/"));
    }
}
