//! The live page: one file that asks nobody but this program.

/// The schema of the answers that the page reads.
pub const SCHEMA: &str = "holdfast.page/1";

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
/// Stands in the file where the word is that this answer's policy trusts.
const NONCE: &str = "@NONCE@";

/// The page, and the policy (CSP) by which a browser runs nothing but what is in it; `None` if the
/// host gives no random numbers.
pub fn render() -> Option<(String, String)> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let html = HTML.replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", SCRIPT, 1);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    Some((html.replace(NONCE, &nonce), policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_file_that_asks_nobody_else() {
        let (html, policy) = render().unwrap();
        assert!(html.len() <= 200 << 10, "{} bytes", html.len());
        // The name of SVG's elements is no address that is asked.
        let rest = html.replace("http://www.w3.org/2000/svg", "");
        for foreign in
            ["http://", "https://", "//cdn", "@import", "url(", " src=", "<link", "<base"]
        {
            assert!(!rest.contains(foreign), "{foreign}");
        }
        // Nothing that a daemon says is ever read as HTML or run.
        for unsafe_word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!html.contains(unsafe_word), "{unsafe_word}");
        }
        assert!(
            !html.contains(" style=\"") && !html.contains(" onclick="),
            "the policy forbids it"
        );
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert_eq!(nonce.len(), 32);
        assert_eq!(html.matches(&format!(" nonce=\"{nonce}\"")).count(), 2, "style and script");
        assert!(!html.contains(NONCE) && !html.contains("/*STYLE*/"));
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
        assert_ne!(render().unwrap().1, policy, "each answer has a word of its own");
    }

    /// Only where node is installed: it runs a part of the page.
    #[test]
    fn a_members_card_says_what_it_is() {
        let begin = SCRIPT.find("function partOf(").expect("it is there");
        let part = &SCRIPT[begin..SCRIPT[begin..].find("// The hosts").expect("its end") + begin];
        let said = |role: &str, name: &str, note: &str| {
            let peer = format!("{{ name: {name:?}, note: {note:?}, connected: true }}");
            let text = format!("{part}\nconsole.log(wordsOf({{ role: {role:?} }}, {peer}));");
            let done = std::process::Command::new("node").args(["-e", &text]).output().ok()?;
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Some(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
        };
        for (role, name, note, words) in [
            ("primary", "b", "protected", "backup"),
            ("backup", "a", "protected", "primary"),
            ("primary", "b", "waiting: it starts", "backup: waiting: it starts"),
            ("primary", "witness", "protected", "witness"),
            ("edge", "a", "current, primary", "current, primary"),
            ("witness", "a", "", "heard"),
        ] {
            let Some(said) = said(role, name, note) else { return };
            assert_eq!(said, words, "{role} of {name}");
        }
    }

    #[test]
    fn people_find_their_way_without_a_mouse() {
        for landmark in [
            "<html lang=\"en\"",
            "<title>",
            "name=\"viewport\"",
            "<header",
            "<main",
            "<h1",
            "aria-live=",
            "class=\"skip\"",
            "color-scheme",
        ] {
            assert!(HTML.contains(landmark), "{landmark}");
        }
        assert!(STYLE.contains("prefers-color-scheme: dark") && STYLE.contains(":focus-visible"));
        assert!(STYLE.contains("prefers-reduced-motion"));
    }

    /// Contrast of WCAG 2.2 (§1.4.3) between two colours `#rrggbb`.
    fn contrast(one: &str, other: &str) -> f64 {
        let light = |text: &str| {
            let part = |at: usize| {
                let value = f64::from(u8::from_str_radix(&text[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        };
        let (one, other) = (light(one) + 0.05, light(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn every_text_can_be_read_on_its_ground() {
        let themes: Vec<&str> = STYLE.split("prefers-color-scheme: dark").collect();
        assert_eq!(themes.len(), 2);
        for theme in themes {
            let colour = |name: &str| {
                let (_, after) = theme.split_once(&format!("--{name}: ")).expect(name);
                after[..7].to_owned()
            };
            for text in ["ink", "soft", "good", "bad", "wait", "accent"] {
                for ground in ["ground", "card"] {
                    let found = contrast(&colour(text), &colour(ground));
                    assert!(found >= 4.5, "{text} on {ground}: {found:.2}");
                }
            }
        }
    }
}
