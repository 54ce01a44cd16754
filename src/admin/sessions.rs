//! Sessions of people who are logged in on the dashboard: in memory, few, and ended by idleness. An id is known by its
//! digest only.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use super::tokens::Role;
use crate::clock::Tick;
use crate::keys::random_token;
use crate::model::Digest;

/// Sessions at once: far more than there are admins. One more ends the one that was not used for longest.
const MAX_SESSIONS: usize = 64;

/// After so long without a request a session ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Someone who is logged in.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) role: Role,
    /// Every form that changes something has it, so that no other site can send one.
    pub(super) csrf: String,
    last_used: Tick,
}

impl Session {
    pub(super) fn has_csrf(&self, token: &str) -> bool {
        self.csrf.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Digest, Session>>);

impl Sessions {
    /// Begins a session; its id.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub(super) fn begin(&self, role: Role, now: Tick) -> Result<String, String> {
        let (id, csrf) = (random_token()?, random_token()?);
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.last_used).map(|(digest, _)| *digest);
            oldest.map(|oldest| sessions.remove(&oldest));
        }
        sessions.insert(Digest::of(id.as_bytes()), Session { role, csrf, last_used: now });
        Ok(id)
    }

    /// The session of this id. `is_use`: a person asks, and not the refresh of a page that may stand open for days.
    pub(super) fn get(&self, id: &str, now: Tick, is_use: bool) -> Option<Session> {
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| now.since(session.last_used) < IDLE_TIMEOUT);
        let session = sessions.get_mut(&Digest::of(id.as_bytes()))?;
        if is_use {
            session.last_used = now;
        }
        Some(session.clone())
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

    #[test]
    fn only_the_sessions_own_csrf_token_is_accepted() {
        let sessions = Sessions::default();
        let session = |id: &str| sessions.get(id, Tick(1), true).unwrap();
        let (a, b) = (sessions.begin(Role::Admin, Tick(1)).unwrap(), sessions.begin(Role::Admin, Tick(1)).unwrap());
        assert!(session(&a).has_csrf(&session(&a).csrf));
        assert!(!session(&a).has_csrf(&session(&b).csrf) && !session(&a).has_csrf(""));
    }
}
