use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Gateway, State};
use crate::config::Config;
use crate::keys::{Book, Listed};
use crate::origin::Origin;

impl Gateway {
    /// Puts another configuration in force, from the next request on: one swap, all or nothing.
    /// Budgets already used up stay used up, in proportion (contract section 3).
    pub fn reload(&self, config: Config, listed: Vec<Listed>, origin: Arc<Origin>) {
        let _changing = self.changing.lock();
        let now = self.now();
        let before = self.state.load_full();
        self.strangers.take_over(before.config.limits.strangers, config.limits.strangers, now);
        let book = Book::new(listed, &config.limits, &before.book, now);
        self.state.store(Arc::new(State { config: Arc::new(config), book: Arc::new(book), origin }));
        // The keys were listed before the swap; what the follower took in since is not lost.
        self.book_is_old.store(true, Ordering::Release);
    }
}
