//! Sessions of people who are logged in on the dashboard: in memory, few, and ended by idleness. An id is known by its
//! digest only.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::tokens::Role;
use crate::clock::Tick;
use crate::keys::random_token;
use crate::model::Digest;

/// Sessions at once: far more than there are admins. One more ends the one that was not used for longest.
const MAX_SESSIONS: usize = 64;

/// After so long without a request a session ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// All sessions: whose they are, and when they were last used.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Digest, (Role, Tick)>>);

impl Sessions {
    /// With a session of an admin whose id is in a link; the log-in by the link ends it and begins another.
    pub(super) fn with_link(link: &str, now: Tick) -> Self {
        Sessions(Mutex::new(HashMap::from([(Digest::of(link.as_bytes()), (Role::Admin, now))])))
    }

    /// Begins a session; its id.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub(super) fn begin(&self, role: Role, now: Tick) -> Result<String, String> {
        let id = random_token()?;
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, (_, last_used))| *last_used).map(|(digest, _)| *digest);
            oldest.map(|oldest| sessions.remove(&oldest));
        }
        sessions.insert(Digest::of(id.as_bytes()), (role, now));
        Ok(id)
    }

    /// Whose session has this id. `is_use`: a person asks, and not the refresh of a page that may stand open for days.
    pub(super) fn get(&self, id: &str, now: Tick, is_use: bool) -> Option<Role> {
        let mut sessions = self.0.lock();
        sessions.retain(|_, (_, last_used)| now.since(*last_used) < IDLE_TIMEOUT);
        let (role, last_used) = sessions.get_mut(&Digest::of(id.as_bytes()))?;
        if is_use {
            *last_used = now;
        }
        Some(*role)
    }

    pub(super) fn end(&self, id: &str) {
        self.0.lock().remove(&Digest::of(id.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_after_an_hour_without_use_which_a_refresh_is_not() {
        let (sessions, start) = (Sessions::default(), Tick(1));
        let id = sessions.begin(Role::Admin, start).unwrap();
        let at = |minutes: u64| start.plus(Duration::from_secs(60 * minutes));
        assert!(sessions.get(&id, at(59), true).is_some());
        assert!(sessions.get(&id, at(118), false).is_some());
        assert!(sessions.get(&id, at(119), false).is_none());
        assert!(sessions.get("x", at(0), true).is_none());
    }

    #[test]
    fn one_session_too_many_ends_the_one_that_was_not_used_for_longest() {
        let sessions = Sessions::default();
        let ids: Vec<String> =
            (1..=MAX_SESSIONS as u64).map(|n| sessions.begin(Role::Read, Tick(n)).unwrap()).collect();
        assert!(sessions.get(&ids[0], Tick(100), true).is_some());
        let last = sessions.begin(Role::Admin, Tick(101)).unwrap();
        let is_there = |id: &str| sessions.get(id, Tick(102), false).is_some();
        assert_eq!([&ids[0], &ids[1], &ids[2], &last].map(|id| is_there(id)), [true, false, true, true]);
        sessions.end(&last);
        assert!(!is_there(&last));
    }
}
