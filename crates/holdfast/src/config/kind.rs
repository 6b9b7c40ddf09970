//! The three kinds of groups.

use super::error::{ConfigError, Position};
use super::explain::suggestion;
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::Spanned;

/// What a group does behind its edge: `group.kind` of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A primary and its backup; the default.
    #[default]
    Replicated,
    /// Many host servers behind one service address (HYDRANET).
    Spread,
    /// Strings of middleboxes between a pair of edges (HALR, PFRC).
    Transit,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Replicated, Self::Spread, Self::Transit];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Spread => "spread",
            Self::Transit => "transit",
        }
    }
}

/// The kind that `text` names. A text that cannot be understood counts as a
/// replicated group's, whose reader then says what is wrong with it.
#[must_use]
pub fn kind_of(text: &str) -> Kind {
    #[derive(Deserialize)]
    struct OnlyKind {
        group: OnlyGroup,
    }
    #[derive(Deserialize)]
    struct OnlyGroup {
        kind: Option<String>,
    }
    let found = toml::from_str::<OnlyKind>(text).ok().and_then(|file| file.group.kind);
    let named = |kind: &Kind| found.as_deref() == Some(kind.name());
    Kind::ALL.into_iter().find(named).unwrap_or_default()
}

/// The mistake of a text that names a kind which there is not. Its other keys are not looked at: they
/// are those of another kind.
pub(super) fn unknown_kind(path: &Path, text: &str) -> Option<ConfigError> {
    #[derive(Deserialize)]
    struct OnlyKind {
        group: OnlyGroup,
    }
    #[derive(Deserialize)]
    struct OnlyGroup {
        kind: Spanned<String>,
    }
    let kind = toml::from_str::<OnlyKind>(text).ok()?.group.kind;
    let is_known = Kind::ALL.iter().any(|it| it.name() == kind.get_ref());
    (!is_known).then(|| ConfigError {
        path: path.to_owned(),
        at: Position::of(text, kind.span().start),
        message: format!("there is no kind of group called `{}`", kind.get_ref()),
        remedy: remedy(kind.get_ref()),
    })
}

/// What was probably meant by a word for a kind.
pub(super) fn remedy(word: &str) -> String {
    let names = Kind::ALL.map(Kind::name);
    let list = || format!("one of: {}; without `kind`, replicated", names.join(", "));
    suggestion(word, &names).unwrap_or_else(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_read_before_the_rest() {
        assert_eq!(kind_of("[group]\nkind = \"spread\"\n[nonsense]\nx = 1"), Kind::Spread);
        assert_eq!(kind_of("[group]\nkind = \"transit\""), Kind::Transit);
        assert_eq!(kind_of("[group]\nname = \"x\""), Kind::Replicated);
        assert_eq!(kind_of("[group]\nkind = 7"), Kind::Replicated);
        assert_eq!(kind_of("]["), Kind::Replicated);
    }
}
