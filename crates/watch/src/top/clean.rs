//! Text that comes from daemons and files, made harmless for a terminal.
//!
//! A daemon repeats what others say: another member's reason, a file's name, a server's words. A
//! control character among them would move the cursor, change colours or answer the terminal's
//! questions; one that turns the direction of writing would show something else than was said.

use serde_json::Value;

/// Longest text that is kept, in characters; the rest is cut.
pub const TEXT_MAX: usize = 2000;

/// What stands in the place of a character that is not shown.
const REPLACED: char = '\u{fffd}';

/// Makes every text in an answer harmless, names included.
#[must_use]
pub fn value(dirty: Value) -> Value {
    match dirty {
        Value::String(words) => Value::String(text(&words)),
        Value::Array(all) => Value::Array(all.into_iter().map(value).collect()),
        Value::Object(fields) => {
            let clean = |(name, field): (String, Value)| (text(&name), value(field));
            Value::Object(fields.into_iter().map(clean).collect())
        }
        other => other,
    }
}

/// A text of one line, without anything that a terminal or a reader could take for more than text.
#[must_use]
pub fn text(dirty: &str) -> String {
    dirty.chars().take(TEXT_MAX).map(harmless).collect()
}

fn harmless(c: char) -> char {
    match c {
        '\n' | '\r' | '\t' => ' ',
        // Marks, overrides and isolates of the direction of writing; what has no width; separators.
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => REPLACED,
        '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => REPLACED,
        _ if c.is_control() => REPLACED,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_moves_a_cursor_is_left() {
        let said = "a\x1b[2J\x07b\u{9b}1m\nnext\u{202e}turned\u{feff}";
        assert_eq!(text(said), "a�[2J�b�1m next�turned�");
        assert_eq!(text("µs – ok ✓ 漢"), "µs – ok ✓ 漢");
        assert_eq!(text(&"x".repeat(TEXT_MAX + 5)).len(), TEXT_MAX);
    }

    #[test]
    fn an_answer_is_cleaned_to_its_depths() {
        let dirty = json!({ "peers": [{ "na\x1bme": "b\x1b]0;x\x07", "n": 3 }], "x": null });
        let clean = json!({ "peers": [{ "na�me": "b�]0;x�", "n": 3 }], "x": null });
        assert_eq!(value(dirty), clean);
    }
}
