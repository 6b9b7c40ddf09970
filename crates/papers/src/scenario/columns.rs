//! The values of a sweep as columns: plain numbers, whose unit is in the column's name.

use super::units::{Queue, Rate, Time};
use holdfast_netsim::net::link::QueueLimit;
use serde_json::Value as Json;
use toml::Value;

/// Reads a text as a number of the column's unit.
type Reader = fn(&str) -> Option<f64>;

/// Endings of the columns' names, and what their numbers are read by.
const UNITS: [(&str, Reader); 4] = [
    ("_s", |text| Some(Time::parse(text).ok()?.0 as f64 / 1e9)),
    ("_mbit", |text| Some(Rate::parse(text).ok()?.0 as f64 / 1e6)),
    ("_packets", |text| match Queue::parse(text).ok()?.0 {
        QueueLimit::Packets(packets) => Some(packets as f64),
        _ => None,
    }),
    ("_bytes", |text| match Queue::parse(text).ok()?.0 {
        QueueLimit::Bytes(bytes) => Some(bytes as f64),
        _ => None,
    }),
];

/// A column: its name, and each of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name of what varies, with its unit.
    pub name: String,
    /// Values, in the order of the sweep's.
    pub values: Vec<Json>,
}

impl Column {
    /// The column of what a sweep varies.
    pub fn of(name: &str, values: &[Value]) -> Self {
        for (ending, read) in UNITS {
            let numbers: Option<Vec<f64>> =
                values.iter().map(|value| value.as_str().and_then(read)).collect();
            if let Some(numbers) = numbers.filter(|it| !it.is_empty()) {
                let values = numbers.into_iter().map(Json::from).collect();
                return Self { name: format!("{name}{ending}"), values };
            }
        }
        let plain = |value: &Value| match value {
            // A list or a table is one cell.
            Value::Array(_) | Value::Table(_) => Json::from(value.to_string()),
            value => serde_json::to_value(value).unwrap_or_default(),
        };
        Self { name: name.to_owned(), values: values.iter().map(plain).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_go_into_the_name_and_numbers_are_plain() {
        let of = |texts: &[&str]| {
            let values: Vec<Value> = texts.iter().map(|it| Value::from(*it)).collect();
            let column = Column::of("x", &values);
            (column.name, column.values)
        };
        assert_eq!(of(&["5500ms", "6s"]), ("x_s".into(), vec![5.5.into(), 6.0.into()]));
        assert_eq!(of(&["64kbit", "1gbit"]), ("x_mbit".into(), vec![0.064.into(), 1000.0.into()]));
        assert_eq!(of(&["750p"]), ("x_packets".into(), vec![750.0.into()]));
        assert_eq!(of(&["1000b"]), ("x_bytes".into(), vec![1000.0.into()]));
        // Numbers and texts would be no column of numbers.
        assert_eq!(of(&["5s", "web"]), ("x".into(), vec!["5s".into(), "web".into()]));
        let lists = [Value::Array(vec![1.into(), 2.into()])];
        assert_eq!(Column::of("x", &lists).values, vec![Json::from("[1, 2]")]);
    }
}
