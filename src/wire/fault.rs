//! Every refusal: its code, status, `Retry-After` and line, as in the contract's table (section 1, "Refusals"). Code,
//! status and line are exhaustive matches, so that a new refusal cannot lack one of them. The lines 01 to 05 are the
//! service's own, word for word. Pure.

use std::fmt::Write;

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
    /// As `Unavailable`; the origin limits this key (429), and perhaps no other.
    LimitedByOrigin {
        retry_after: u64,
    },
    OriginTimeout,
}

/// The configurable parts of the lines (`[answers]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wording {
    pub service_name: String,
    pub key_command: String,
}

/// The highest code. Codes are counted in tables of this size.
pub const MAX_CODE: u8 = 22;

/// `CODE`, which is compared with [`MAX_CODE`] at compile time.
const fn checked<const CODE: u8>() -> u8 {
    const { assert!(CODE <= MAX_CODE, "raise MAX_CODE") };
    CODE
}

/// What a code means, in a few words for operators.
pub const fn code_meaning(code: u8) -> &'static str {
    match code {
        1 => "no key",
        2 => "incorrect key",
        3 => "the bot left the guild",
        4 => "memberID is missing",
        5 => "memberID is no integer",
        6 => "amount is missing",
        7 => "amount is no integer",
        8 => "a parameter is repeated",
        10 => "unknown operation",
        11 => "the method is not POST",
        12 => "over a limit",
        13 => "the body is not a form",
        14 => "the body is too large",
        15 => "the key's scope does not cover it",
        16 => "malformed request",
        17 => "the request took too long",
        20 => "no usable answer from the origin",
        21 => "the service is unavailable",
        22 => "the origin took too long",
        _ => "another outcome",
    }
}

impl Fault {
    /// The code, which begins the line with two digits.
    pub const fn code(self) -> u8 {
        match self {
            Fault::NoKey => checked::<1>(),
            Fault::IncorrectKey => checked::<2>(),
            Fault::GuildDeparted => checked::<3>(),
            Fault::MemberMissing => checked::<4>(),
            Fault::MemberNotInteger => checked::<5>(),
            Fault::AmountMissing => checked::<6>(),
            Fault::AmountNotInteger => checked::<7>(),
            Fault::Repeated(_) => checked::<8>(),
            Fault::UnknownOperation => checked::<10>(),
            Fault::MethodNotPost => checked::<11>(),
            Fault::TooManyRequests { .. } => checked::<12>(),
            Fault::NotAForm => checked::<13>(),
            Fault::BodyTooLarge => checked::<14>(),
            Fault::NotAllowed(_) => checked::<15>(),
            Fault::Malformed | Fault::PlainHttp => checked::<16>(),
            Fault::TooSlow => checked::<17>(),
            Fault::NoUsableAnswer => checked::<20>(),
            Fault::Unavailable { .. } | Fault::LimitedByOrigin { .. } => checked::<21>(),
            Fault::OriginTimeout => checked::<22>(),
        }
    }

    /// The HTTP status, if `answers.error_status` is `http`.
    pub const fn status(self) -> u16 {
        match self {
            Fault::NoKey | Fault::IncorrectKey => 401,
            Fault::GuildDeparted | Fault::NotAllowed(_) => 403,
            Fault::MemberMissing
            | Fault::MemberNotInteger
            | Fault::AmountMissing
            | Fault::AmountNotInteger
            | Fault::Repeated(_)
            | Fault::Malformed
            | Fault::PlainHttp => 400,
            Fault::UnknownOperation => 404,
            Fault::MethodNotPost => 405,
            Fault::TooManyRequests { .. } => 429,
            Fault::NotAForm => 415,
            Fault::BodyTooLarge => 413,
            Fault::TooSlow => 408,
            Fault::NoUsableAnswer => 502,
            Fault::Unavailable { .. } | Fault::LimitedByOrigin { .. } => 503,
            Fault::OriginTimeout => 504,
        }
    }

    /// The value of `Retry-After` in seconds, if the table has one.
    pub const fn retry_after(self) -> Option<u64> {
        match self {
            Fault::TooManyRequests { retry_after }
            | Fault::Unavailable { retry_after }
            | Fault::LimitedByOrigin { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Whether the origin failed and gave no answer, so that stale-if-error applies.
    pub const fn is_origin_failure(self) -> bool {
        matches!(
            self,
            Fault::NoUsableAnswer | Fault::Unavailable { .. } | Fault::LimitedByOrigin { .. } | Fault::OriginTimeout
        )
    }

    /// Whether what the origin refused may concern the asking key alone, so that another key of the guild is to ask for
    /// itself.
    pub const fn is_of_key(self) -> bool {
        matches!(self, Fault::IncorrectKey | Fault::LimitedByOrigin { .. })
    }

    /// The spec's own refusals that an origin may answer with (02 to 05), by code.
    pub const fn from_origin(code: u8) -> Option<Fault> {
        match code {
            2 => Some(Fault::IncorrectKey),
            3 => Some(Fault::GuildDeparted),
            4 => Some(Fault::MemberMissing),
            5 => Some(Fault::MemberNotInteger),
            _ => None,
        }
    }

    /// The whole line, `<code> | <message>`.
    pub fn line(self, wording: &Wording) -> String {
        let mut line = format!("{:02} | ", self.code());
        let fixed = match self {
            Fault::NoKey => {
                line += "No api key provided! Create it using: ";
                &wording.key_command
            }
            Fault::IncorrectKey => "Incorrect API key!",
            Fault::GuildDeparted => {
                line += "Error while retrieving guild using this API key. Is ";
                line += &wording.service_name;
                " still on guild?"
            }
            Fault::MemberMissing => "Param 'memberID' is not provided!",
            Fault::MemberNotInteger => "Param 'memberID' should contain only integers!",
            Fault::AmountMissing => "Param 'amount' is not provided!",
            Fault::AmountNotInteger => "Param 'amount' should contain only integers!",
            Fault::Repeated(param) => {
                let _ = write!(line, "Param '{}' is provided ", param.name());
                "more than once!"
            }
            Fault::UnknownOperation => "Unknown operation!",
            Fault::MethodNotPost => "Method should be POST!",
            Fault::TooManyRequests { retry_after } => {
                let _ = write!(line, "Too many requests! Try again in {retry_after}");
                " s."
            }
            Fault::NotAForm => "Body should be application/x-www-form-urlencoded!",
            Fault::BodyTooLarge => "Body is too large!",
            Fault::NotAllowed(operation) => {
                line += "This API key is not allowed to use ";
                line += operation.name();
                "!"
            }
            Fault::Malformed => "Malformed request!",
            Fault::PlainHttp => "Malformed request! This port speaks TLS: use https instead of http.",
            Fault::TooSlow => "Request took too long!",
            Fault::NoUsableAnswer => "The service gave no usable answer. Try again later.",
            Fault::Unavailable { .. } | Fault::LimitedByOrigin { .. } => {
                "The service is not available. Try again later."
            }
            Fault::OriginTimeout => "The service took too long to answer. Try again later.",
        };
        line += fixed;
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_meaning_of_its_own() {
        let meanings: Vec<&str> =
            (1..=MAX_CODE).map(code_meaning).filter(|meaning| *meaning != "another outcome").collect();
        let distinct = std::collections::HashSet::<&str>::from_iter(meanings.iter().copied());
        assert_eq!((meanings.len(), distinct.len()), (19, 19), "{meanings:?}");
    }
}
