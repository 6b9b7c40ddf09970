//! A command line as a person writes it, as the words of `command` in a file.

/// Why a text is no list of words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    #[error("a quotation mark {0} is not closed")]
    Open(char),
    #[error("nothing follows the backslash at its end")]
    Backslash,
}

/// The words of a text, with quotes and backslashes as in a shell. Nothing else means anything: no
/// variable, no pattern, no redirection.
///
/// # Errors
/// [`WordsError`].
pub fn words(text: &str) -> Result<Vec<String>, WordsError> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => found.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Open('\''))? {
                        '\'' => break,
                        inside => word.push(inside),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Open('"'))? {
                        '"' => break,
                        '\\' => match chars.next().ok_or(WordsError::Open('"'))? {
                            escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        inside => word.push(inside),
                    }
                }
            }
            '\\' => {
                word.get_or_insert_default().push(chars.next().ok_or(WordsError::Backslash)?);
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    found.extend(word);
    Ok(found)
}

/// Words as a person writes them on a command line: the inverse of [`words`].
#[must_use]
pub fn line(words: &[String]) -> String {
    const PLAIN: &str = "-_./:=,@%+";
    let is_plain = |c: char| c.is_alphanumeric() || PLAIN.contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_those_of_a_shell() {
        let of = |text| words(text).unwrap();
        assert_eq!(
            of("/usr/bin/redis-server --bind * --save ''"),
            ["/usr/bin/redis-server", "--bind", "*", "--save", ""]
        );
        assert_eq!(of("nginx -g \"daemon off;\"\n"), ["nginx", "-g", "daemon off;"]);
        assert_eq!(of(r#"a\ b 'c\d' "e\"f\g" h'i'j"#), ["a b", r"c\d", r#"e"f\g"#, "hij"]);
        assert_eq!(of("  $HOME | > x "), ["$HOME", "|", ">", "x"]);
        assert_eq!(of(" \t"), Vec::<String>::new());
        assert_eq!(words("a 'b"), Err(WordsError::Open('\'')));
        assert_eq!(words("a \"b\\"), Err(WordsError::Open('"')));
        assert_eq!(words("a\\"), Err(WordsError::Backslash));
    }

    #[test]
    fn a_line_has_the_quotes_that_its_words_need() {
        let words = ["redis-server", "--save", "", "--bind", "*", "it's"].map(str::to_owned);
        assert_eq!(line(&words), r"redis-server --save '' --bind '*' 'it'\''s'");
    }

    proptest! {
        #[test]
        fn a_line_has_the_words_it_was_made_of(all in prop::collection::vec(".{0,8}", 0..6)) {
            prop_assert_eq!(words(&line(&all)), Ok(all));
        }

        #[test]
        fn any_text_has_words_or_a_reason(text in ".{0,60}") {
            let _ = words(&text);
        }
    }
}
