//! The process's panic hook: each panic is one line in the process log with its location in the source and a running
//! count. A message that was formatted at run time is left out, since it may contain a part of a request (guarantee 9).
//! It catches nothing: the gateway does that for each request.

use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

/// Installs the panic hook.
pub fn log_panics() {
    let so_far = AtomicU64::new(0);
    panic::set_hook(Box::new(move |panic| {
        let so_far = so_far.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(so_far, "{}", line(panic));
    }));
}

fn line(panic: &PanicHookInfo<'_>) -> String {
    let location = panic.location().map_or_else(|| "an unknown location".to_owned(), ToString::to_string);
    // Only a message without formatted values is a static string.
    let message = panic.payload().downcast_ref::<&'static str>();
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    format!(
        "a defect at {location}{message}; please report it. If a request caused it, it was answered with 20; no other \
         request was affected"
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_panic_is_logged_by_its_place_and_without_what_it_was_given() {
        let before = panic::take_hook();
        // The hook is global, so panics of other tests go to the previous hook.
        panic::set_hook(Box::new(move |info| match std::thread::current().name() {
            Some(name) if name.ends_with("without_what_it_was_given") => {
                LINES.with_borrow_mut(|lines| lines.push(line(info)))
            }
            _ => before(info),
        }));
        let secret = String::from("gg_secret");
        assert!(panic::catch_unwind(|| panic!("no key {secret}")).is_err());
        assert!(panic::catch_unwind(|| panic!("a static message")).is_err());
        let lines = LINES.take();
        assert!(lines[0].contains("panics.rs:") && !lines[0].contains("gg_secret"), "{lines:?}");
        assert!(lines[1].contains("a static message"), "{lines:?}");
    }
}
