//! What the emulator does to packets, and the words that say it on the
//! command line: names and units are those of `tc netem`.

use holdfast_netsim::net::loss::LossModel;
use holdfast_report::units;
use std::fmt;
use std::iter::Peekable;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The words of a specification that are still to be read.
type Words<'a> = Peekable<std::vec::IntoIter<&'a str>>;

/// Default number of full-sized packets that may wait for a rate-limited wire.
const DEFAULT_QUEUE_PACKETS: u32 = 1000;

/// Nothing passes for a while, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// How long nothing passes.
    pub length: Duration,
    /// From the end of one outage to the end of the next; the first one ends so long after the
    /// direction's first packet.
    pub every: Duration,
}

/// What a wire does to packets, the same in both directions unless [`EmuSpec::back`] says else.
#[derive(Clone, Debug, PartialEq)]
pub struct EmuSpec {
    /// Delay of every packet.
    pub delay: Duration,
    /// Largest deviation of a packet's delay in either direction, evenly distributed.
    pub jitter: Duration,
    /// Share of packets that vanish before they come to the queue, each for itself, 0 to 1.
    pub loss: f64,
    /// Which packets vanish there in bursts.
    pub bursts: LossModel,
    /// Which packets vanish behind the queue, so that they have taken their share of the rate.
    pub loss_behind: LossModel,
    /// When nothing passes at all.
    pub outage: Option<Outage>,
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
    /// What happens in the other direction, if it is not the same. A limit of the rate and
    /// losses in bursts that the way there has are changed by words, not taken off again.
    pub back: Option<Box<EmuSpec>>,
}

impl Default for EmuSpec {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            bursts: LossModel::Never,
            loss_behind: LossModel::Never,
            outage: None,
            reorder: 0.0,
            duplicate: 0.0,
            rate_bits_per_second: None,
            queue_packets: DEFAULT_QUEUE_PACKETS,
            only_to: None,
            seed: 1,
            back: None,
        }
    }
}

/// Why words are not a specification.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// The keyword is unknown.
    #[error(
        "`{0}` is unknown; known are delay, jitter, loss, loss-behind, outage, reorder, duplicate, rate, \
         queue, only to, seed, back"
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

impl FromStr for EmuSpec {
    type Err = SpecError;

    /// As [`EmuSpec::parse`], of words in one text.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(&text.split_whitespace().collect::<Vec<_>>())
    }
}

impl EmuSpec {
    /// Reads `delay 50ms loss 1% only to 10.9.0.100` and the like.
    ///
    /// # Errors
    /// At the first word that is unknown, has no value or a wrong one.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, SpecError> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut words = words.into_iter().peekable();
        let mut spec = Self::default();
        spec.read(&mut words)?;
        if words.next().is_some() {
            // What comes after `back` changes what the way there does.
            let mut back = spec.clone();
            back.read(&mut words)?;
            if let Some(again) = words.next() {
                return Err(SpecError::Unknown(format!("a second {again}")));
            }
            spec.back = Some(Box::new(back));
        }
        Ok(spec)
    }

    /// Reads up to the end or the word `back`.
    fn read(&mut self, words: &mut Words) -> Result<(), SpecError> {
        while let Some(word) = words.next_if(|word| *word != "back") {
            match word {
                "delay" => self.delay = time(value(words, "delay")?)?,
                "jitter" => self.jitter = time(value(words, "jitter")?)?,
                "loss" => match loss(words, "loss")? {
                    bursts @ LossModel::GilbertElliott { .. } => self.bursts = bursts,
                    alone => self.loss = alone.mean(),
                },
                "loss-behind" => self.loss_behind = loss(words, "loss-behind")?,
                "outage" => self.outage = outage(words)?,
                "reorder" => self.reorder = share(value(words, "reorder")?)?,
                "duplicate" => self.duplicate = share(value(words, "duplicate")?)?,
                "rate" => self.rate_bits_per_second = Some(rate(value(words, "rate")?)?),
                "queue" => self.queue_packets = number(value(words, "queue")?)?,
                "seed" => self.seed = number(value(words, "seed")?)?,
                "only" => match value(words, "only to")? {
                    "to" => self.only_to = Some(address(value(words, "only to")?)?),
                    other => return Err(SpecError::Unknown(format!("only {other}"))),
                },
                other => return Err(SpecError::Unknown(other.to_owned())),
            }
        }
        Ok(())
    }

    /// What happens to packets from the first end to the second, and to those that go back.
    pub(crate) fn directions(&self) -> [EmuSpec; 2] {
        let there = Self { back: None, ..self.clone() };
        let back = self.back.as_deref().cloned().unwrap_or_else(|| there.clone());
        [there, back]
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
        // All that has another default is said, since what comes after `back` changes what stands
        // before it.
        write!(f, "delay {}ns jitter {}ns", self.delay.as_nanos(), self.jitter.as_nanos())?;
        write!(f, " loss {}%", self.loss * 100.0)?;
        for (name, model) in [("loss", self.bursts), ("loss-behind", self.loss_behind)] {
            match model {
                LossModel::Never => {}
                LossModel::Bernoulli(share) => write!(f, " {name} {}%", share * 100.0)?,
                LossModel::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                    let [p, r, h, k] = [to_bad, to_good, loss_bad, loss_good].map(|it| it * 100.0);
                    write!(f, " {name} gemodel {p}% {r}% {h}% {k}%")?;
                }
            }
        }
        let (length, every) =
            self.outage.map_or((0, 1), |it| (it.length.as_nanos(), it.every.as_nanos()));
        write!(f, " outage {length}ns every {every}ns")?;
        write!(f, " reorder {}% duplicate {}%", self.reorder * 100.0, self.duplicate * 100.0)?;
        if let Some(rate) = self.rate_bits_per_second {
            write!(f, " rate {rate}bit")?;
        }
        if let Some(address) = self.only_to {
            write!(f, " only to {address}")?;
        }
        write!(f, " queue {} seed {}", self.queue_packets, self.seed)?;
        self.back.as_ref().map_or(Ok(()), |back| write!(f, " back {back}"))
    }
}

/// A share alone, or netem's `gemodel P R [1-H [1-K]]`: the probability of a change from good to bad
/// and of one back, and the shares that are lost while bad (all) and while good (none).
fn loss(words: &mut Words, name: &'static str) -> Result<LossModel, SpecError> {
    let first = value(words, name)?;
    if first != "gemodel" {
        let share = share(first)?;
        return Ok(if share > 0.0 { LossModel::Bernoulli(share) } else { LossModel::Never });
    }
    let (to_bad, to_good) = (share(value(words, name)?)?, share(value(words, name)?)?);
    let mut more = |default| match words.next_if(|word| word.ends_with('%')) {
        Some(word) => share(word),
        None => Ok(default),
    };
    Ok(LossModel::GilbertElliott { to_bad, to_good, loss_bad: more(1.0)?, loss_good: more(0.0)? })
}

/// `200ms every 5s`; one of no length is none.
fn outage(words: &mut Words) -> Result<Option<Outage>, SpecError> {
    let length = time(value(words, "outage")?)?;
    match value(words, "outage")? {
        "every" => {}
        other => return Err(SpecError::Unknown(format!("outage … {other}"))),
    }
    let every = time(value(words, "outage")?)?;
    Ok(Some(Outage { length, every }).filter(|outage| !outage.length.is_zero()))
}

fn value<'a>(words: &mut Words<'a>, name: &'static str) -> Result<&'a str, SpecError> {
    words.next().ok_or(SpecError::Missing(name))
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
        let bursts = parse("loss gemodel 4% 33% loss-behind 2% outage 100ms every 3s").unwrap();
        let model = |loss_bad, loss_good| LossModel::GilbertElliott {
            to_bad: 0.04,
            to_good: 0.33,
            loss_good,
            loss_bad,
        };
        assert_eq!(
            (bursts.bursts, bursts.loss_behind),
            (model(1.0, 0.0), LossModel::Bernoulli(0.02))
        );
        assert_eq!(bursts.outage.unwrap().every, Duration::from_secs(3));
        assert_eq!(parse("loss gemodel 4% 33% 80% 1% delay 1ms").unwrap().bursts, model(0.8, 0.01));
        assert!(parse("outage 0s every 1s loss 0%").unwrap().is_transparent());
        assert!(parse("seed 4").unwrap().is_transparent());
        assert!(!spec.is_transparent());
    }

    #[test]
    fn the_way_back_is_that_there_but_for_what_is_said_of_it() {
        let [there, back] =
            parse("delay 5ms rate 50mbit back loss 5% rate 2mbit").unwrap().directions();
        assert_eq!((there.delay, back.delay), (Duration::from_millis(5), Duration::from_millis(5)));
        assert_eq!((there.loss, back.loss), (0.0, 0.05));
        assert_eq!(back.rate_bits_per_second, Some(2_000_000));
        let [there, back] = parse("delay 5ms loss 1%").unwrap().directions();
        assert_eq!(there, back);
        assert_eq!(
            parse("back loss 1% back loss 2%"),
            Err(SpecError::Unknown("a second back".into()))
        );
    }

    #[test]
    fn wrong_words_are_named() {
        assert_eq!(parse("dealy 5ms"), Err(SpecError::Unknown("dealy".into())));
        assert_eq!(parse("delay"), Err(SpecError::Missing("delay")));
        assert!(matches!(parse("delay 5"), Err(SpecError::Value { .. })));
        assert!(matches!(parse("loss 101%"), Err(SpecError::Value { .. })));
        assert_eq!(parse("loss gemodel 1%"), Err(SpecError::Missing("loss")));
        assert!(matches!(parse("outage 1s after 3s"), Err(SpecError::Unknown(_))));
        assert!(matches!(parse("rate 0mbit"), Err(SpecError::Value { .. })));
        assert!(matches!(parse("delay 99999999999999999999999s"), Err(SpecError::Value { .. })));
    }

    proptest! {
        #[test]
        fn no_words_panic(words in proptest::collection::vec("[a-z]{0,8}|[0-9.]{0,9}[a-z%]{0,4}", 0..8)) {
            let _ = EmuSpec::parse(&words);
        }

        #[test]
        fn words_read_back(delay_us in 0u64..1_000_000, loss in 1u8..=100, seed: u64, rate in 1u64..10_000_000_000, outage_ms in 0u64..9) {
            let share = f64::from(loss) / 100.0;
            let back = EmuSpec {
                loss_behind: LossModel::GilbertElliott { to_bad: share, to_good: 0.5, loss_good: 0.0, loss_bad: 1.0 },
                rate_bits_per_second: Some(rate),
                ..EmuSpec::default()
            };
            let spec = EmuSpec {
                delay: Duration::from_micros(delay_us),
                loss: share,
                outage: (outage_ms > 0).then_some(Outage { length: Duration::from_millis(outage_ms), every: Duration::from_secs(1) }),
                rate_bits_per_second: Some(rate),
                seed,
                back: Some(Box::new(back)),
                ..EmuSpec::default()
            };
            let read = EmuSpec::parse(&spec.words()).unwrap();
            prop_assert!((read.loss - share).abs() < 1e-9);
            prop_assert!(read.delay.abs_diff(spec.delay) < Duration::from_nanos(2));
            prop_assert_eq!((read.seed, read.rate_bits_per_second, read.outage), (spec.seed, spec.rate_bits_per_second, spec.outage));
            let [back, was] = [read, spec].map(|it| it.directions()[1].clone());
            prop_assert!((back.loss_behind.mean() - was.loss_behind.mean()).abs() < 1e-9);
            prop_assert_eq!((back.loss, back.outage, back.seed), (was.loss, was.outage, was.seed));
        }
    }
}
