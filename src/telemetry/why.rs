//! Explains one request from its access line, in sentences for the operator: the key, the limit with its value in
//! force, the cache, the upstream, the answer, and what can be done about it. Pure: it is given all that it says.

use serde::Serialize;

use super::{AccessLine, CacheUse};
use crate::config::{ConfigHash, Loaded, Rate};
use crate::model::Limit;
use crate::wire::{Fault, Operation, Param, Wording};

/// What is known of the request's key beyond its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLookup {
    Found {
        name: Option<String>,
        guild: String,
    },
    /// The list of keys has no such id any more.
    NotListed,
    /// Only the origin knows the keys.
    AtOrigin,
    /// Why it could not be looked up.
    Failed(String),
}

/// One request explained. As JSON, one object with the fields of the access line among its own.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    #[serde(flatten)]
    line: AccessLine,
    key_name: Option<String>,
    guild: Option<String>,
    /// The limit that it was over.
    limit: Option<ExplainedLimit>,
    /// The hash of gateway.toml as it is now.
    config_now: Option<ConfigHash>,
    /// Whether that is another configuration than the one under which the request was answered.
    config_changed: Option<bool>,
    /// The line that the caller was told, if it was refused.
    answer: Option<String>,
    sentences: Vec<String>,
    what_to_do: Option<&'static str>,
}

/// A limit as gateway.toml has it now.
#[derive(Clone, Debug, Serialize)]
struct ExplainedLimit {
    name: String,
    value: Option<String>,
    /// Such as `gateway.toml:37`; `None`: the file does not set it.
    #[serde(rename = "place")]
    location: Option<String>,
}

impl Explanation {
    /// `loaded` is gateway.toml as it is now; `None` if it could not be read.
    pub fn new(line: AccessLine, key: &KeyLookup, loaded: Option<&Loaded>) -> Self {
        let limit = line.over_limit.as_deref().map(|name| ExplainedLimit::new(name, line.tier.as_deref(), loaded));
        let config_now = loaded.map(|loaded| loaded.config.hash);
        let config_changed = config_now.map(|now| line.config != now);
        let answer = line.code.and_then(|code| answer(code, line.operation, loaded));
        let (key_name, guild) = match key {
            KeyLookup::Found { name, guild } => (name.clone(), Some(guild.clone())),
            KeyLookup::NotListed | KeyLookup::AtOrigin | KeyLookup::Failed(_) => (None, None),
        };
        let mut explanation = Explanation {
            what_to_do: line.code.and_then(what_to_do),
            line,
            key_name,
            guild,
            limit,
            config_now,
            config_changed,
            answer,
            sentences: Vec::new(),
        };
        let sentences = [
            Some(explanation.request()),
            Some(explanation.key(key)),
            explanation.config(),
            explanation.over_limit(),
            explanation.candidate(),
            explanation.cache(),
            explanation.upstream(),
            Some(explanation.told()),
            explanation.what_to_do.map(str::to_owned),
        ];
        explanation.sentences = sentences.into_iter().flatten().collect();
        explanation
    }

    /// The sentences, in reading order.
    pub fn sentences(&self) -> &[String] {
        &self.sentences
    }

    fn request(&self) -> String {
        let (time, client) = (self.line.time(), self.line.client);
        let what = self.line.operation.map_or("a request that named no operation", Operation::name);
        format!("At {time} the address {client} sent {what}.")
    }

    fn key(&self, lookup: &KeyLookup) -> String {
        let Some(id) = &self.line.key else {
            return match self.line.code {
                Some(1) => "It had no API key.",
                Some(2) => "Its API key was not accepted.",
                _ => "It was answered before its API key was known to be valid.",
            }
            .to_owned();
        };
        let tier = self.line.tier.as_ref().map(|tier| format!(" Its tier was {tier}.")).unwrap_or_default();
        match lookup {
            KeyLookup::Found { name: Some(name), guild } => {
                format!("Its key was {id}, named \"{name}\", of guild {guild}.{tier}")
            }
            KeyLookup::Found { name: None, guild } => format!("Its key was {id}, of guild {guild}.{tier}"),
            KeyLookup::NotListed => format!("Its key was {id}, which is not listed any more.{tier}"),
            KeyLookup::AtOrigin => format!("Its key was {id}, which only the origin knows.{tier}"),
            KeyLookup::Failed(why) => {
                format!("Its key was {id}; its name and guild are not known here, because {why}.{tier}")
            }
        }
    }

    fn over_limit(&self) -> Option<String> {
        let limit = self.limit.as_ref()?;
        let whose = if limit.name == "strangers" { "for addresses without a valid key" } else { "of its tier" };
        let value = match (&limit.value, &limit.location) {
            (Some(value), Some(location)) => format!("It is {value} now ({location})."),
            (Some(value), None) => format!("It is {value} now, the default: gateway.toml does not set it."),
            (None, _) => "gateway.toml does not have it any more, or could not be read.".to_owned(),
        };
        let outcome = match self.line.code {
            Some(12) => "which is why it was refused",
            _ => "but was not refused for it, because limits.shadow was on",
        };
        Some(format!("It was over the limit `{}` {whose}, {outcome}. {value}", limit.name))
    }

    fn candidate(&self) -> Option<String> {
        let text = "It was over the tier's candidate limit, which is counted and refuses nothing.";
        self.line.over_candidate.then(|| text.to_owned())
    }

    fn config(&self) -> Option<String> {
        let (then, now) = (self.line.config, self.config_now?);
        (then != now).then(|| {
            format!(
                "The configuration has changed since: {then} was in force then, and gateway.toml is {now} now. The \
                 values named here are those of now."
            )
        })
    }

    fn cache(&self) -> Option<String> {
        let said = match self.line.cache? {
            CacheUse::Hit => "The answer came from the cache.",
            CacheUse::StaleWhileRevalidate => {
                "The answer came from the cache: it was stale, and a new one was asked for."
            }
            CacheUse::StaleIfError => "The answer came from the cache: it was stale, as the origin failed.",
            CacheUse::Stale => "The answer in the cache was too old, so the origin was asked.",
            CacheUse::Miss => "The cache had no answer, so the origin was asked.",
            CacheUse::Collapsed => {
                "Another request was asking for the same already, so this one waited for its answer."
            }
            CacheUse::Write => "It was a write, which the cache never answers.",
            CacheUse::Refused => "It was refused before the cache was looked up.",
            CacheUse::Bypass => "It is no operation, so it is passed on and its answer is never kept.",
        };
        Some(said.to_owned())
    }

    fn upstream(&self) -> Option<String> {
        let upstream = self.line.upstream.as_ref()?;
        let took = self.line.upstream_us.map_or_else(|| "an unknown time".to_owned(), millis);
        Some(match (&self.line.upstream_error, self.line.code) {
            (Some(error), Some(21)) => format!("The upstream {upstream} could not be reached: {error}."),
            (Some(error), _) => format!("The upstream {upstream} failed after {took}: {error}."),
            (None, Some(21)) => format!("The upstream {upstream} was too busy (429 or 503), after {took}."),
            (None, _) => format!("The upstream {upstream} took {took}."),
        })
    }

    fn told(&self) -> String {
        let (status, took) = (self.line.status, millis(self.line.took.as_micros()));
        let told = match (&self.answer, self.line.code) {
            (Some(answer), _) => format!("was told `{answer}`"),
            (None, Some(code)) => format!("was told code {code:02}"),
            (None, None) => "got the answer".to_owned(),
        };
        format!("The caller {told} with status {status}, {took} after its header had come.")
    }
}

impl ExplainedLimit {
    fn new(name: &str, tier: Option<&str>, loaded: Option<&Loaded>) -> Self {
        let none = ExplainedLimit { name: name.to_owned(), value: None, location: None };
        let Some(loaded) = loaded else { return none };
        let limits = &loaded.config.limits;
        let rate = |rate: &Rate| format!("{}/s with a burst of {}", rate.per_second(), rate.burst);
        if name == "strangers" {
            let location = loaded.location_of_limit(None, "rate").or_else(|| loaded.location_of_limit(None, "burst"));
            return ExplainedLimit { value: Some(rate(&limits.strangers)), location, ..none };
        }
        let tier = tier.and_then(|name| limits.tiers.iter().find(|tier| tier.name == name));
        let (Some(tier), Some(limit)) = (tier, Limit::ALL.into_iter().find(|limit| limit.name() == name)) else {
            return none;
        };
        let (value, burst) = match limit {
            Limit::Daily => (tier.daily.map(|daily| format!("{daily} requests in a UTC day")), None),
            Limit::InFlight => (tier.in_flight.map(|n| format!("{n} requests at once")), None),
            _ => {
                let of = Limit::RATES.into_iter().zip(tier.rates()).find_map(|(of, rate)| rate.filter(|_| of == limit));
                (of.as_ref().map(rate), Some(name.replace("rate", "burst")))
            }
        };
        let location = |setting: &str| loaded.location_of_limit(Some(&tier.name), setting);
        ExplainedLimit { value, location: location(name).or_else(|| location(&burst?)), ..none }
    }
}

fn millis(us: impl Into<u128>) -> String {
    let us = us.into();
    format!("{}.{:03} ms", us / 1000, us % 1000)
}

/// The line of a code. The access log has neither the seconds of 12 nor the parameter of 08.
fn answer(code: u8, operation: Option<Operation>, loaded: Option<&Loaded>) -> Option<String> {
    let fault = match code {
        8 if operation.is_some_and(|operation| operation.row().params.contains(&Param::Amount)) => {
            return Some("08 | Param 'memberID' (or 'amount') is provided more than once!".to_owned());
        }
        12 => return Some("12 | Too many requests! Try again in N s.".to_owned()),
        15 => Fault::NotAllowed(operation?),
        _ => Fault::of_code(code)?,
    };
    let default = || Wording { service_name: "the service".to_owned(), key_command: "…".to_owned() };
    let wording = loaded.map_or_else(default, |loaded| loaded.config.answers.wording.clone());
    Some(fault.line(&wording))
}

/// What the caller, or the operator, can do about a refusal.
fn what_to_do(code: u8) -> Option<&'static str> {
    Some(match code {
        1 => "The caller has to send its key as the whole value of the header field Authorization.",
        2 => "The caller has to send a valid key, without `Bearer ` before it; `guildgate key list` shows all of them.",
        3 => "The bot has to come back to the guild: `guildgate guild return ID` records that it has.",
        4 => "The caller has to send memberID in the body; parameters in the query string do not count.",
        5 => "The caller has to send a memberID of digits only, at most 2^63-1.",
        6 => "The caller has to send amount in the body; parameters in the query string do not count.",
        7 => "The caller has to send an amount of digits only, with a minus before it if it is negative, in 64 bits.",
        8 => "The caller has to send each parameter once.",
        10 => "The caller has to use the exact path of an operation, below server.base_path.",
        11 => "The caller has to use the method POST.",
        12 => "The caller has to wait as Retry-After said; `guildgate key set ID --tier T` gives its key other limits.",
        13 => "The caller has to send the body as application/x-www-form-urlencoded, without Content-Encoding.",
        14 => "The caller has to send a smaller body; server.max_body is the limit.",
        15 => "The operator can let the key write with `guildgate key set ID --scope write`.",
        16 => "The caller's HTTP library or a proxy broke a rule of docs/framing.md, or hung up within its request.",
        17 => "The caller has to send faster; server.header_timeout and server.body_timeout are the limits.",
        20 => "The caller may try again after 1, 2, 4 … s, a few times; the process log has the cause, by request id.",
        21 => "The caller has to try again as Retry-After said; the process log has the cause, by request id.",
        22 => "The caller may try again after 1, 2, 4 … s, a few times; the origin is slow, or origin.timeout short.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;
    use crate::telemetry::access_line::tests::example;

    const CODES: [u8; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22];

    fn line(code: Option<u8>, over_limit: Option<&'static str>) -> AccessLine {
        AccessLine { code, over_limit: over_limit.map(Into::into), ..example() }
    }

    #[test]
    fn each_code_has_its_line_and_one_sentence_of_advice() {
        for code in CODES {
            let answer = answer(code, Some(Operation::SetPoints), None).unwrap();
            assert!(answer.starts_with(&format!("{code:02} | ")), "{answer}");
            let advice = what_to_do(code).unwrap();
            assert!(advice.ends_with('.') && !advice.contains(". "), "{advice}");
        }
        assert_eq!((answer(9, None, None), what_to_do(9)), (None, None));
        // As docs/callers.md tells the caller.
        let pause = "after 1, 2, 4 … s, a few times";
        let rows = include_str!("../../docs/callers.md").lines().filter(|line| line.contains(pause));
        let of_docs: Vec<u8> = rows.map(|row| row[2..4].parse().unwrap()).collect();
        assert_eq!(
            of_docs,
            CODES.into_iter().filter(|code| what_to_do(*code).unwrap().contains(pause)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_limit_is_named_with_its_value_and_its_line() {
        let toml = "[limits.tiers.free]\nrate = \"5/s\"\nburst = 9\nwrite_rate = \"2/s\"\ndaily = 100\nin_flight = 3\n";
        let loaded = config::load_str(toml, Path::new(""), "gateway.toml").unwrap();
        let explain = |limit| {
            let explained = Explanation::new(line(Some(12), Some(limit)), &KeyLookup::NotListed, Some(&loaded));
            explained.sentences().join("\n")
        };
        for (limit, said) in [
            ("rate", "It is 5/s with a burst of 9 now (gateway.toml:2)."),
            ("write_rate", "It is 2/s with a burst of 10 now (gateway.toml:4)."),
            ("daily", "It is 100 requests in a UTC day now (gateway.toml:5)."),
            ("in_flight", "It is 3 requests at once now (gateway.toml:6)."),
            ("strangers", "It is 1/s with a burst of 30 now, the default"),
        ] {
            let explained = explain(limit);
            let changed = "The configuration has changed since: 000000000000 was in force";
            let (changed, said) = (explained.find(changed), explained.find(said));
            assert!(changed.is_some() && changed < said, "{limit}: {explained}");
        }
    }
}
