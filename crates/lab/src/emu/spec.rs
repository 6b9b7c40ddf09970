//! What the emulator does to packets, and the words that say it on the
//! command line: names and units are those of `tc netem`.

use holdfast_report::units;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

/// Default number of full-sized packets that may wait for a rate-limited wire.
const DEFAULT_QUEUE_PACKETS: u32 = 1000;

/// What a wire does to packets, the same in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct EmuSpec {
    /// Delay of every packet.
    pub delay: Duration,
    /// Largest deviation of a packet's delay in either direction, evenly distributed.
    pub jitter: Duration,
    /// Share of packets that vanish, 0 to 1.
    pub loss: f64,
    /// Share of packets that overtake others, 0 to 1.
    pub reorder: f64,
    /// Share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Bits per second, or no limit.
    pub rate_bits_per_second: Option<u64>,
    /// Full-sized packets that may wait for the rate; the next is dropped.
    pub queue_packets: u32,
    /// Only packets to this address are touched; all others pass.
    pub only_to: Option<IpAddr>,
    /// Determines every random decision.
    pub seed: u64,
}

impl Default for EmuSpec {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            rate_bits_per_second: None,
            queue_packets: DEFAULT_QUEUE_PACKETS,
            only_to: None,
            seed: 1,
        }
    }
}

/// Why words are not a specification.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// The keyword is unknown.
    #[error(
        "`{0}` is unknown; known are delay, jitter, loss, reorder, duplicate, rate, queue, only to, seed"
    )]
    Unknown(String),
    /// The keyword has no value.
    #[error("`{0}` needs a value")]
    Missing(&'static str),
    /// The value does not fit its keyword.
    #[error("`{value}` is no {what}, for example {example}")]
    Value {
        /// The value as written.
        value: String,
        /// What it should be.
        what: &'static str,
        /// An example that fits.
        example: &'static str,
    },
}

impl EmuSpec {
    /// Reads `delay 50ms loss 1% only to 10.9.0.100` and the like.
    ///
    /// # Errors
    /// At the first word that is unknown, has no value or a wrong one.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut words = words.iter().map(AsRef::as_ref);
        while let Some(word) = words.next() {
            let mut value = |name| words.next().ok_or(SpecError::Missing(name));
            match word {
                "delay" => spec.delay = time(value("delay")?)?,
                "jitter" => spec.jitter = time(value("jitter")?)?,
                "loss" => spec.loss = share(value("loss")?)?,
                "reorder" => spec.reorder = share(value("reorder")?)?,
                "duplicate" => spec.duplicate = share(value("duplicate")?)?,
                "rate" => spec.rate_bits_per_second = Some(rate(value("rate")?)?),
                "queue" => spec.queue_packets = number(value("queue")?)?,
                "seed" => spec.seed = number(value("seed")?)?,
                "only" => match value("only to")? {
                    "to" => spec.only_to = Some(address(value("only to")?)?),
                    other => return Err(SpecError::Unknown(format!("only {other}"))),
                },
                other => return Err(SpecError::Unknown(other.to_owned())),
            }
        }
        Ok(spec)
    }

    /// The words that [`EmuSpec::parse`] reads back as this specification.
    pub fn words(&self) -> Vec<String> {
        self.to_string().split_whitespace().map(str::to_owned).collect()
    }

    /// Whether any packet can be touched at all.
    pub fn is_transparent(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                only_to: self.only_to,
                queue_packets: self.queue_packets,
                ..Self::default()
            }
    }
}

impl fmt::Display for EmuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {}ns jitter {}ns", self.delay.as_nanos(), self.jitter.as_nanos())?;
        for (name, share) in
            [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)]
        {
            if share > 0.0 {
                write!(f, " {name} {}%", share * 100.0)?;
            }
        }
        if let Some(rate) = self.rate_bits_per_second {
            write!(f, " rate {rate}bit")?;
        }
        if let Some(address) = self.only_to {
            write!(f, " only to {address}")?;
        }
        write!(f, " queue {} seed {}", self.queue_packets, self.seed)
    }
}

fn time(word: &str) -> Result<Duration, SpecError> {
    let wrong = || SpecError::Value { value: word.to_owned(), what: "time", example: "50ms" };
    let (number, unit) = units::split(word).ok_or_else(wrong)?;
    let ns = number * units::nanoseconds(unit).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(ns / 1e9).map_err(|_| wrong())
}

fn share(word: &str) -> Result<f64, SpecError> {
    let wrong = || SpecError::Value { value: word.to_owned(), what: "percentage", example: "1%" };
    units::share(word).ok_or_else(wrong)
}

fn rate(word: &str) -> Result<u64, SpecError> {
    let wrong = || SpecError::Value { value: word.to_owned(), what: "rate", example: "100mbit" };
    let (number, unit) = units::split(word).ok_or_else(wrong)?;
    let bits = number * units::bits_per_second(unit).ok_or_else(wrong)?;
    // At less than one bit per second nothing would ever arrive.
    if bits < 1.0 { Err(wrong()) } else { Ok(bits as u64) }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, SpecError> {
    word.parse().map_err(|_| SpecError::Value {
        value: word.to_owned(),
        what: "number",
        example: "7",
    })
}

fn address(word: &str) -> Result<IpAddr, SpecError> {
    word.parse().map_err(|_| SpecError::Value {
        value: word.to_owned(),
        what: "address",
        example: "10.9.0.100",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<EmuSpec, SpecError> {
        EmuSpec::parse(&text.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn the_words_of_the_manual_are_understood() {
        let spec = parse("delay 50ms loss 1% reorder 2% rate 100mbit seed 7").unwrap();
        assert_eq!(spec.delay, Duration::from_millis(50));
        assert_eq!((spec.loss, spec.reorder), (0.01, 0.02));
        assert_eq!(spec.rate_bits_per_second, Some(100_000_000));
        assert_eq!(spec.seed, 7);
        assert_eq!(
            parse("loss 1% only to fd09::100").unwrap().only_to,
            Some("fd09::100".parse().unwrap())
        );
        assert!(parse("seed 4").unwrap().is_transparent());
        assert!(!spec.is_transparent());
    }

    #[test]
    fn wrong_words_are_named() {
        assert_eq!(parse("dealy 5ms"), Err(SpecError::Unknown("dealy".into())));
        assert_eq!(parse("delay"), Err(SpecError::Missing("delay")));
        assert!(matches!(parse("delay 5"), Err(SpecError::Value { .. })));
        assert!(matches!(parse("loss 101%"), Err(SpecError::Value { .. })));
        assert!(matches!(parse("rate 0mbit"), Err(SpecError::Value { .. })));
        assert!(matches!(parse("delay 99999999999999999999999s"), Err(SpecError::Value { .. })));
    }

    proptest! {
        #[test]
        fn no_words_panic(words in proptest::collection::vec("[a-z]{0,8}|[0-9.]{0,9}[a-z%]{0,4}", 0..8)) {
            let _ = EmuSpec::parse(&words);
        }

        #[test]
        fn words_read_back(delay_us in 0u64..1_000_000, loss in 0u8..=100, seed: u64, rate in 1u64..10_000_000_000) {
            let spec = EmuSpec {
                delay: Duration::from_micros(delay_us),
                loss: f64::from(loss) / 100.0,
                rate_bits_per_second: Some(rate),
                seed,
                ..EmuSpec::default()
            };
            let back = EmuSpec::parse(&spec.words()).unwrap();
            prop_assert!((back.loss - spec.loss).abs() < 1e-9);
            prop_assert!(back.delay.abs_diff(spec.delay) < Duration::from_nanos(2));
            prop_assert_eq!((back.seed, back.rate_bits_per_second), (spec.seed, spec.rate_bits_per_second));
        }
    }
}
