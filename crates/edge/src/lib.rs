//! Holdfast edge.
