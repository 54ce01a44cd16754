//! Puts another configuration, origin and key table in force in one atomic swap. The order matters: the state is
//! swapped first and the epochs move after it, so that no answer of the old origin or of the old cache times is kept as
//! one of the new. Budgets that were used up stay used up (guarantee 6). Whatever can fail has been done by the caller,
//! `cli/reload`, before.

use std::sync::Arc;

use super::{Fresh, Gateway, KeySource, Listing, State};
use crate::config::Config;
use crate::keys::Book;
use crate::limits::Strangers;
use crate::origin::Origin;

impl Gateway {
    /// Puts another configuration in force, from the next request on: one swap, all or nothing.
    /// What is available to a key or an address stays available, up to its new burst (guarantee 6). `fresh` is
    /// what `keys` lists now, where they are the store's. A key file's are put in force without it, with the guilds that
    /// were left as they are known: the store is not asked, and a change of them comes by its feed.
    pub fn reload(&self, config: Config, origin: Arc<Origin>, keys: KeySource, mut fresh: Option<Fresh<'_>>) {
        let _changing = self.changing.lock();
        let now = self.now();
        let before = self.state.load_full();
        let rate = config.limits.strangers;
        let strangers = if before.strangers.rate() == rate {
            before.strangers.clone()
        } else {
            Strangers::after(&before.strangers, rate, now)
        };
        let listing = match &mut fresh {
            Some(fresh) => std::mem::take(&mut fresh.listing),
            None => Listing { keys: Vec::new(), guilds_gone: before.guilds_gone.clone() },
        };
        let (listed, guilds_gone) = keys.listed(listing);
        let book = Arc::new(Book::new(listed, &config.limits, &before.book, now, self.clock.unix()));
        let other_origin = !Arc::ptr_eq(&before.origin, &origin);
        let other_answers = other_origin || before.config.cache != config.cache;
        let state = Arc::new(State { config: Arc::new(config), origin, book, keys, guilds_gone, strangers });
        self.state.store(state.clone());
        // After the swap: an answer of the other origin that was taken for one that counts was asked for before this.
        state.keys.hold_to(&state.config, &state.book, other_origin, self.now());
        self.state().origin.takes_over();
        if other_answers {
            // What another origin said, or was kept by other times, is not given any more.
            self.memory.fence().changed_all();
        }
        if let Some(fresh) = fresh
            && self.doubt.book_taken(fresh.changes, fresh.at, now)
        {
            self.state().book.set_known_until(fresh.at);
        }
    }
}
