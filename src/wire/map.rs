//! The answer of the built-in backend to setPoints as text, and the search for the first expiry in a map of any origin
//! (`model::NoteKind` renders maps). The search may take for an entry what is none, but it misses none: that can
//! only shorten the time for which an answer is kept (guarantee 4). Its time is proportional to the answer's length,
//! since an origin chooses the text.

use crate::model::MemberId;

/// The answer to setPoints.
pub fn set_points_line(member_name: &str, new_value: i64) -> String {
    format!("Successfully set '{member_name}' points to '{new_value}'")
}

/// The first expiry, past or future, in a map whose keys begin with `section`, in Unix seconds. An entry tells its expiry
/// in its key and again at its end, which counts where an id hides that of the key. A reason may contain what looks like a
/// key or the end of an entry; it is taken for one.
pub fn first_expiry(answer: &str, section: &str, member: MemberId) -> Option<i64> {
    let key = format!("{section}_{member}_id_");
    // Each byte is read a few times at most, however many keys begin in the answer: keys that end with the same `=` have
    // the same expiry.
    let (before, _) = answer.rsplit_once('=').unwrap_or_default();
    let in_keys = before.split('=').filter_map(|piece| {
        let entry = &piece[piece.find(&key)? + key.len()..];
        entry[entry.rfind('_')? + 1..].parse::<i64>().ok()
    });
    let at_ends = answer.split("(Expires ").skip(1).filter_map(|piece| {
        let (expiry, after) = piece.split_once(')')?;
        let is_next = |after: &str| after.strip_prefix(section).is_some_and(|after| after.starts_with('_'));
        let is_end = after.starts_with('}') || after.strip_prefix(", ").is_some_and(is_next);
        expiry.parse().ok().filter(|_| is_end)
    });
    in_keys.chain(at_ends).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Note, WARN};

    fn first_expiry(answer: &str, member: MemberId) -> Option<i64> {
        super::first_expiry(answer, "warns", member)
    }

    fn seven() -> MemberId {
        "7".parse().unwrap()
    }

    fn warn(id: i64, expires: i64) -> Note {
        Note { id, author: "Mod".into(), text: "spam, twice".into(), number: expires }
    }

    fn warns(member: MemberId, warns: &[Note]) -> String {
        WARN.answer(member, warns)
    }

    #[test]
    fn the_first_expiry_is_found_wherever_it_stands() {
        let answer = warns(seven(), &[warn(1, 200), warn(2, 100), warn(3, 300)]);
        assert_eq!(first_expiry(&answer, seven()), Some(100));
        assert_eq!(first_expiry(&warns(seven(), &[warn(1, 0)]), seven()), Some(0));
        assert_eq!(first_expiry("{}", seven()), None);
        assert_eq!(first_expiry("{warns_7_id_", seven()), None);
        assert_eq!(
            first_expiry("{warns_7_id_1_300=Mod: spam, warns_7_id_a=b_200=Mod: spam (Expires 200)}", seven()),
            Some(200)
        );
        let quoting = warns(seven(), &[Note { text: "again: spam (Expires 100)".into(), ..warn(1, 300) }]);
        assert_eq!(first_expiry(&quoting, seven()), Some(300));
    }

    #[test]
    fn an_answer_that_begins_keys_without_end_takes_no_longer_than_another() {
        // There are 50,000 of them in a megabyte. Reading from each to the end would be 25 GB.
        let answer = "{".to_owned() + &"warns_7_id_(Expires ".repeat(50_000) + "1_200=x}";
        assert_eq!(first_expiry(&answer, seven()), Some(200));
        assert_eq!(first_expiry(&answer.replace('=', "-"), seven()), None);
    }

    proptest! {
        #[test]
        fn rendering_then_reading_gives_back_the_first_expiry(
            expiries in proptest::collection::vec(0i64..1000, 1..20), reason in "\\PC{0,20}",
        ) {
            let list: Vec<Note> = expiries.iter().enumerate()
                .map(|(i, e)| Note { id: i as i64, author: "A".into(), text: reason.clone(), number: *e }).collect();
            prop_assert_eq!(first_expiry(&warns(seven(), &list), seven()), expiries.into_iter().min());
        }

        #[test]
        fn no_answer_panics(answer in "\\PC*") {
            let _ = first_expiry(&answer, seven());
        }
    }
}
