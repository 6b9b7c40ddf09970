//! Times, rates and queues as people write them: `250ms`, `100mbit`, `750p`.

use super::error::FileError;
use holdfast_netsim::net::link::QueueLimit;
use holdfast_report::units;
use serde::{Deserialize, Deserializer, de};

/// A time in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub u64);

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub u64);

/// A limit on what may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue(pub QueueLimit);

/// Longest time that a file can state, in ns: a year.
const TIME_MAX_NS: f64 = 3.2e16;

/// Highest rate that a file can state, in bits per second: 100 Tb/s.
const RATE_MAX_BPS: f64 = 1e14;

fn split(text: &str) -> Option<(f64, &str)> {
    let at = text.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(text.len());
    let number = text[..at].trim().parse::<f64>().ok()?;
    (number.is_finite() && number >= 0.0).then_some((number, &text[at..]))
}

impl Time {
    /// Parses `5s`, `250ms`, `10us` or `7ns`.
    ///
    /// # Errors
    /// When it is none of these, or longer than a year.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let scaled = split(text).and_then(|(number, unit)| {
            Some(number * units::nanoseconds(unit)?).filter(|ns| *ns <= TIME_MAX_NS)
        });
        scaled.map(|ns| Self(ns.round() as u64)).ok_or_else(|| FileError::Time(text.to_owned()))
    }
}

impl Rate {
    /// Parses `100mbit`, `10gbit`, `64kbit` or `9600bit`.
    ///
    /// # Errors
    /// When it is none of these, or out of bounds.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let scaled = split(text).and_then(|(number, unit)| {
            let bps = number * units::bits_per_second(unit)?;
            (1.0..=RATE_MAX_BPS).contains(&bps).then_some(bps)
        });
        scaled.map(|bps| Self(bps.round() as u64)).ok_or_else(|| FileError::Rate(text.to_owned()))
    }
}

impl Queue {
    /// Parses `750p` or `1000000b`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let bad = || FileError::Queue(text.to_owned());
        let packets =
            text.strip_suffix('p').and_then(|it| it.parse().ok()).map(QueueLimit::Packets);
        let bytes = || text.strip_suffix('b').and_then(|it| it.parse().ok()).map(QueueLimit::Bytes);
        packets.or_else(bytes).map(Self).ok_or_else(bad)
    }
}

macro_rules! from_text {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                // The remedy goes through the TOML reader behind the message.
                Self::parse(&String::deserialize(input)?)
                    .map_err(|it| de::Error::custom(format!("{it}; {}", it.remedy())))
            }
        }
    };
}

from_text!(Time);
from_text!(Rate);
from_text!(Queue);
