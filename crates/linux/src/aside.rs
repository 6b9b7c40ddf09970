//! What a daemon's loop lets go of without waiting.

/// Drops `what` in a thread of ordinary priority; here, if there can be no other thread.
pub fn drop_aside<T: Send + 'static>(what: T) {
    // A closure that no thread takes is dropped with what it holds.
    let _none = std::thread::Builder::new().name("closer".to_owned()).spawn(move || drop(what));
}
