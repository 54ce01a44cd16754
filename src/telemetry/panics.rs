//! The process's panic hook: each panic is one line in the log with its place in the source and a running count. A
//! message that was formatted at run time is left out, since it may contain a part of a request (guarantee 9). It
//! catches nothing: the gateway does that for each request.

use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

/// Has every panic told in the process's log, once, with its place and how many there were so far.
/// What it said is left out where it was put together while running: that may hold a part of a
/// request, a key or a body among it (guarantee 9).
pub fn tell_of_panics() {
    let so_far = AtomicU64::new(0);
    panic::set_hook(Box::new(move |panic| {
        let so_far = so_far.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(so_far, "{}", line(panic));
    }));
}

fn line(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    // A text that stands in the source as it is.
    let said = panic.payload().downcast_ref::<&'static str>();
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    format!(
        "a defect at {place}{said}; please report it. If a request met it, that one was answered 20, and no other harmed"
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_panic_is_told_by_its_place_and_without_what_it_was_given() {
        let before = panic::take_hook();
        // The hook is the process's: tests beside this one that panic go on as before.
        panic::set_hook(Box::new(move |info| match std::thread::current().name() {
            Some(name) if name.ends_with("without_what_it_was_given") => {
                TOLD.with_borrow_mut(|told| told.push(line(info)))
            }
            _ => before(info),
        }));
        let secret = String::from("gg_secret");
        assert!(panic::catch_unwind(|| panic!("no key {secret}")).is_err());
        assert!(panic::catch_unwind(|| panic!("as it stands here")).is_err());
        let told = TOLD.take();
        assert!(told[0].contains("panics.rs:") && !told[0].contains("gg_secret"), "{told:?}");
        assert!(told[1].contains("as it stands here"), "{told:?}");
    }
}
