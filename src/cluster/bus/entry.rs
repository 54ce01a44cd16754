//! The entries of the bus, and their text in the stream: `INCARNATION SEQUENCE NOTICE`, where a notice is a word and its
//! arguments. An entry of another form is an error, and the reader then knows that it missed something.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

use crate::model::{GuildId, MemberId};

/// One start of one process: a random number, so that a restarted node is not taken for the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// The place of an entry in the stream. Ids of one stream only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// Unix time of the server, in milliseconds.
    pub millis: u64,
    pub sequence: u64,
}

/// What a node tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Nothing but that it runs, and that it heard everything before this entry once it reads it back.
    Beat,
    /// The origin is about to be asked to perform a write.
    Begun { write: u64, member: MemberId },
    /// A write has ended; `settled`: its outcome is known.
    Over { write: u64, member: MemberId, settled: bool },
    /// Cached answers to the keys of a guild, about a member, or both are invalid; all where neither is given.
    Purge { guild: Option<GuildId>, member: Option<MemberId> },
    /// Notices of this node were lost: everything is invalid, and its writes in flight are those that it begins anew
    /// from here on.
    Everything,
    /// The node stops. It has no write in flight.
    Bye,
}

/// A notice with its sender, whose entries are numbered from 1 without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub incarnation: Incarnation,
    pub sequence: u64,
    pub notice: Notice,
}

/// The text is not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an entry of the bus, or of a newer version")]
pub struct BadEntry;

impl Incarnation {
    pub fn random() -> Self {
        Incarnation(fastrand::u64(..))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

impl FromStr for StreamId {
    type Err = BadEntry;

    fn from_str(text: &str) -> Result<Self, BadEntry> {
        let (millis, sequence) = text.split_once('-').ok_or(BadEntry)?;
        Ok(StreamId { millis: number(millis)?, sequence: number(sequence)? })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.incarnation, self.sequence)?;
        match &self.notice {
            Notice::Beat => f.write_str("beat"),
            Notice::Begun { write, member } => write!(f, "begun {write} {member}"),
            Notice::Over { write, member, settled } => {
                let outcome = if *settled { "settled" } else { "unsettled" };
                write!(f, "over {write} {member} {outcome}")
            }
            Notice::Purge { guild, member } => {
                f.write_str("purge")?;
                guild.iter().try_for_each(|guild| write!(f, " guild={guild}"))?;
                member.iter().try_for_each(|member| write!(f, " member={member}"))
            }
            Notice::Everything => f.write_str("everything"),
            Notice::Bye => f.write_str("bye"),
        }
    }
}

impl FromStr for Entry {
    type Err = BadEntry;

    fn from_str(text: &str) -> Result<Self, BadEntry> {
        let mut words = text.split_ascii_whitespace();
        let incarnation = u64::from_str_radix(words.next().ok_or(BadEntry)?, 16).map_err(|_| BadEntry)?;
        let sequence = next_number(&mut words)?;
        let notice = match words.next().ok_or(BadEntry)? {
            "beat" => Notice::Beat,
            "begun" => Notice::Begun { write: next_number(&mut words)?, member: next_number(&mut words)? },
            "over" => Notice::Over {
                write: next_number(&mut words)?,
                member: next_number(&mut words)?,
                settled: match words.next() {
                    Some("settled") => true,
                    Some("unsettled") => false,
                    _ => return Err(BadEntry),
                },
            },
            "purge" => purge(&mut words)?,
            "everything" => Notice::Everything,
            "bye" => Notice::Bye,
            _ => return Err(BadEntry),
        };
        match words.next() {
            None => Ok(Entry { incarnation: Incarnation(incarnation), sequence, notice }),
            Some(_) => Err(BadEntry),
        }
    }
}

fn purge(words: &mut SplitAsciiWhitespace<'_>) -> Result<Notice, BadEntry> {
    let (mut guild, mut member) = (None, None);
    for word in words {
        match word.split_once('=') {
            Some(("guild", id)) => guild = Some(id.parse().map_err(|_| BadEntry)?),
            Some(("member", id)) => member = Some(number(id)?),
            _ => return Err(BadEntry),
        }
    }
    Ok(Notice::Purge { guild, member })
}

fn next_number<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Result<T, BadEntry> {
    number(words.next().ok_or(BadEntry)?)
}

fn number<T: FromStr>(text: &str) -> Result<T, BadEntry> {
    text.parse().map_err(|_| BadEntry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_read_as_it_was_written() {
        let member: MemberId = "190551803669118976".parse().unwrap();
        let guild: GuildId = "guild=member=-".parse().unwrap();
        let notices = [
            Notice::Beat,
            Notice::Begun { write: 7, member },
            Notice::Over { write: u64::MAX, member, settled: true },
            Notice::Over { write: 0, member, settled: false },
            Notice::Purge { guild: None, member: None },
            Notice::Purge { guild: Some(guild.clone()), member: None },
            Notice::Purge { guild: None, member: Some(member) },
            Notice::Purge { guild: Some(guild), member: Some(member) },
            Notice::Everything,
            Notice::Bye,
        ];
        for notice in notices {
            let entry = Entry { incarnation: Incarnation(0xAB), sequence: 3, notice };
            assert_eq!(entry.to_string().parse(), Ok(entry));
        }
    }

    #[test]
    fn other_texts_are_no_entries() {
        for text in [
            "",
            "1",
            "1 2",
            "x 2 beat",
            "1 x beat",
            "1 -2 beat",
            "1 2 beat 3",
            "1 2 beats",
            "1 2 begun 3",
            "1 2 over 3 4",
            "1 2 over 3 4 maybe",
            "1 2 begun 3 -4",
            "1 2 begun 3 9223372036854775808",
            "1 2 purge 7",
            "1 2 purge guild=",
        ] {
            assert_eq!(text.parse::<Entry>(), Err(BadEntry), "{text}");
        }
        assert_eq!("7-3".parse(), Ok(StreamId { millis: 7, sequence: 3 }));
        assert!("7".parse::<StreamId>().is_err() && "7-x".parse::<StreamId>().is_err());
    }
}
