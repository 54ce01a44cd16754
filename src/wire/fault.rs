//! Every refusal as one table: its code, status and message, as in the contract (section 1, "Refusals"). The lines 01 to
//! 05 are the service's own, word for word. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operation, Param};

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoKey,
    IncorrectKey,
    GuildDeparted,
    MemberMissing,
    MemberNotInteger,
    AmountMissing,
    AmountNotInteger,
    Repeated(Param),
    UnknownOperation,
    MethodNotPost,
    /// Seconds until it would be admitted, at least 1.
    TooManyRequests {
        retry_after: u64,
    },
    NotAForm,
    BodyTooLarge,
    NotAllowed(Operation),
    Malformed,
    /// Plain HTTP on a port that speaks TLS.
    PlainHttp,
    TooSlow,
    NoUsableAnswer,
    /// Seconds after which to try again, at least 1.
    Unavailable {
        retry_after: u64,
    },
    OriginTimeout,
}

/// The configurable parts of the lines (`[answers]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Wording {
    /// The name of the service in refusal 03.
    pub service_name: String,
    /// The command that creates a key, in refusal 01.
    pub key_command: String,
}

impl Default for Wording {
    fn default() -> Self {
        Wording { service_name: "Guildgate".to_owned(), key_command: "/apikey create".to_owned() }
    }
}

/// The highest code. Codes are counted in tables of this size.
pub const MAX_CODE: u8 = 22;

/// One fault of each code, whatever it holds.
const OF_EACH_CODE: [Fault; 19] = [
    Fault::NoKey,
    Fault::IncorrectKey,
    Fault::GuildDeparted,
    Fault::MemberMissing,
    Fault::MemberNotInteger,
    Fault::AmountMissing,
    Fault::AmountNotInteger,
    Fault::Repeated(Param::MemberId),
    Fault::UnknownOperation,
    Fault::MethodNotPost,
    Fault::TooManyRequests { retry_after: 1 },
    Fault::NotAForm,
    Fault::BodyTooLarge,
    Fault::NotAllowed(Operation::SetPoints),
    Fault::Malformed,
    Fault::TooSlow,
    Fault::NoUsableAnswer,
    Fault::Unavailable { retry_after: 1 },
    Fault::OriginTimeout,
];

/// What a code means, in a few words for operators.
pub fn code_meaning(code: u8) -> &'static str {
    Fault::of_code(code).map_or("another outcome", |fault| fault.row().2)
}

impl Fault {
    /// The table: code, status, what the code means to operators, and the message. `{}` is what [`Fault::line`] puts there.
    const fn row(self) -> (u8, u16, &'static str, &'static str) {
        match self {
            Fault::NoKey => (1, 401, "no key", "No api key provided! Create it using: {}"),
            Fault::IncorrectKey => (2, 401, "incorrect key", "Incorrect API key!"),
            Fault::GuildDeparted => {
                let message = "Error while retrieving guild using this API key. Is {} still on guild?";
                (3, 403, "the bot left the guild", message)
            }
            Fault::MemberMissing => (4, 400, "memberID is missing", "Param 'memberID' is not provided!"),
            Fault::MemberNotInteger => {
                (5, 400, "memberID not integer", "Param 'memberID' should contain only integers!")
            }
            Fault::AmountMissing => (6, 400, "amount is missing", "Param 'amount' is not provided!"),
            Fault::AmountNotInteger => (7, 400, "amount not integer", "Param 'amount' should contain only integers!"),
            Fault::Repeated(_) => (8, 400, "a parameter is repeated", "Param '{}' is provided more than once!"),
            Fault::UnknownOperation => (10, 404, "unknown operation", "Unknown operation!"),
            Fault::MethodNotPost => (11, 405, "the method is not POST", "Method should be POST!"),
            Fault::TooManyRequests { .. } => (12, 429, "over a limit", "Too many requests! Try again in {} s."),
            Fault::NotAForm => (13, 415, "the body is not a form", "Body should be application/x-www-form-urlencoded!"),
            Fault::BodyTooLarge => (14, 413, "the body is too large", "Body is too large!"),
            Fault::NotAllowed(_) => (15, 403, "not in the key's scope", "This API key is not allowed to use {}!"),
            Fault::Malformed => (16, 400, "malformed request", "Malformed request!"),
            Fault::PlainHttp => {
                let message = "Malformed request! This port speaks TLS: use https instead of http.";
                (16, 400, "malformed request", message)
            }
            Fault::TooSlow => (17, 408, "the request took too long", "Request took too long!"),
            Fault::NoUsableAnswer => {
                (20, 502, "no usable answer", "The service gave no usable answer. Try again later.")
            }
            Fault::Unavailable { .. } => (21, 503, "not available", "The service is not available. Try again later."),
            Fault::OriginTimeout => {
                (22, 504, "origin too slow", "The service took too long to answer. Try again later.")
            }
        }
    }

    /// The code, which begins the line with two digits.
    pub const fn code(self) -> u8 {
        self.row().0
    }

    /// The HTTP status, if `answers.error_status` is `http`.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// A fault of this code.
    pub fn of_code(code: u8) -> Option<Fault> {
        OF_EACH_CODE.into_iter().find(|fault| fault.code() == code)
    }

    /// The value of `Retry-After` in seconds, if the table has one.
    pub const fn retry_after(self) -> Option<u64> {
        match self {
            Fault::TooManyRequests { retry_after } | Fault::Unavailable { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Whether the origin failed and gave no answer, so that stale-if-error applies.
    pub const fn is_origin_failure(self) -> bool {
        matches!(self, Fault::NoUsableAnswer | Fault::Unavailable { .. } | Fault::OriginTimeout)
    }

    /// The whole line, `<code> | <message>`.
    pub fn line(self, wording: &Wording) -> String {
        let seconds = self.retry_after().map(|seconds| seconds.to_string());
        let inserted = match self {
            Fault::NoKey => &wording.key_command,
            Fault::GuildDeparted => &wording.service_name,
            Fault::Repeated(param) => param.name(),
            Fault::NotAllowed(operation) => operation.name(),
            _ => seconds.as_deref().unwrap_or_default(),
        };
        let (code, _, _, message) = self.row();
        match message.split_once("{}") {
            Some((before, after)) => format!("{code:02} | {before}{inserted}{after}"),
            None => format!("{code:02} | {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_meaning_of_its_own() {
        let codes = OF_EACH_CODE.map(Fault::code);
        assert!(codes.is_sorted_by(|a, b| a < b) && codes.last() == Some(&MAX_CODE), "{codes:?}");
        let distinct = std::collections::HashSet::from(codes.map(code_meaning));
        assert_eq!(distinct.len(), codes.len(), "{distinct:?}");
        assert_eq!(code_meaning(9), "another outcome");
    }
}
