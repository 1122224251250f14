//! Types that parse the values of variables. Their errors name the fault in a text.

use std::str::FromStr;
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A duration in seconds, between 0 and a year.
///
/// # Examples
/// ```
/// use transom::variables::Seconds;
/// assert_eq!("0.5".parse::<Seconds>().unwrap().0.as_millis(), 500);
/// assert!("-1".parse::<Seconds>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // More than a year is a mistake, and could overflow when added to a clock.
        match text.trim().parse::<f64>() {
            Ok(seconds) if (0.0..=YEAR.as_secs_f64()).contains(&seconds) => {
                Ok(Seconds(Duration::from_secs_f64(seconds)))
            }
            Ok(_) => Err("not between 0 and a year in seconds"),
            Err(_) => Err("not a number of seconds"),
        }
    }
}

/// A positive duration in seconds, or `off`, which parses to `None`.
///
/// # Examples
/// ```
/// use transom::variables::SecondsOrOff;
/// assert_eq!("0.5".parse::<SecondsOrOff>().unwrap().0.unwrap().as_millis(), 500);
/// assert_eq!("off".parse(), Ok(SecondsOrOff(None)));
/// assert!("0".parse::<SecondsOrOff>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SecondsOrOff(pub Option<Duration>);

impl FromStr for SecondsOrOff {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().parse::<Seconds>() {
            _ if text.trim() == "off" => Ok(SecondsOrOff(None)),
            Ok(Seconds(Duration::ZERO)) => Err("not a time above 0"),
            Ok(Seconds(time)) => Ok(SecondsOrOff(Some(time))),
            Err(why) => Err(why),
        }
    }
}

/// A duration in microseconds, at most an hour.
///
/// # Examples
/// ```
/// use transom::variables::Micros;
/// assert_eq!("20".parse::<Micros>().unwrap().0.as_nanos(), 20_000);
/// assert_eq!("0.5".parse::<Micros>().unwrap().0.as_nanos(), 500);
/// assert!("20us".parse::<Micros>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Micros(pub Duration);

impl FromStr for Micros {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().parse::<f64>() {
            Ok(micros) if (0.0..=3600e6).contains(&micros) => Ok(Micros(Duration::from_secs_f64(micros / 1e6))),
            Ok(_) => Err("not between 0 and an hour in microseconds"),
            Err(_) => Err("not a number of microseconds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_out_of_range_are_refused() {
        assert_eq!("1.5".parse(), Ok(Seconds(Duration::from_millis(1500))));
        assert_eq!("31536000".parse(), Ok(Seconds(YEAR)));
        for wrong in ["", "soon", "-1", "31536001", "inf", "nan", "1s"] {
            assert!(wrong.parse::<Seconds>().is_err() && wrong.parse::<SecondsOrOff>().is_err(), "{wrong}");
        }
        assert_eq!(" off ".parse(), Ok(SecondsOrOff(None)));
        assert_eq!("2".parse(), Ok(SecondsOrOff(Some(Duration::from_secs(2)))));
        assert_eq!("0".parse::<SecondsOrOff>(), Err("not a time above 0"));
        assert_eq!(("0".parse(), "20".parse()), (Ok(Micros(Duration::ZERO)), Ok(Micros(Duration::from_micros(20)))));
        assert_eq!("3600000000".parse(), Ok(Micros(Duration::from_secs(3600))));
        for wrong in ["", "off", "-1", "3600000001", "20us", "nan"] {
            assert!(wrong.parse::<Micros>().is_err(), "{wrong}");
        }
    }
}
