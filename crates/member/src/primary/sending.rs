//! An image on its way to who joins, or to a backup that renews its own: piece by piece, and no
//! faster than it is taken.

use super::join::Image;
use super::{PrimaryHost, Tables};
use crate::timing::primary::{IMAGE_EVERY, TICK};
use crate::{nanos, percent};
use holdfast_cluster::Nanos;
use holdfast_wire::message::{IMAGE_BYTES_MAX, Message};

/// Most bytes of an image under way: heartbeats and log wait behind them.
const IMAGE_AHEAD: u64 = 4 * IMAGE_BYTES_MAX as u64;

/// See the module.
#[derive(Debug)]
pub(super) struct Sending {
    image: Image,
    /// Bytes of the image that were sent, and that have arrived.
    sent: u64,
    arrived: u64,
    /// Whether nothing is left to send but the word that it is whole.
    is_sent: bool,
    /// When the next piece may go.
    piece_at: Nanos,
}

impl Sending {
    pub(super) fn new(image: Image, now: Nanos) -> Self {
        Self { image, sent: 0, arrived: 0, is_sent: false, piece_at: now }
    }

    /// Notes how much has arrived.
    pub(super) fn note(&mut self, arrived: u64) {
        self.arrived = self.arrived.max(arrived.min(self.sent));
    }

    /// Hundredths of it that have arrived.
    pub(super) fn percent(&self) -> u8 {
        percent(self.arrived, self.image.bytes)
    }

    /// Whether all pieces were sent.
    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether a piece may be sent: some is left, and not too much under way.
    fn may_send(&self) -> bool {
        !self.is_sent && self.sent - self.arrived < IMAGE_AHEAD
    }

    /// When it wants the next turn.
    pub(super) fn due(&self, now: Nanos) -> Nanos {
        let tick = now.plus(nanos(TICK));
        if self.may_send() { tick.min(self.piece_at.max(now)) } else { tick }
    }

    /// Sends the next piece, if it is time.
    ///
    /// # Errors
    /// When the image will never be complete, with the reason.
    pub(super) fn turn(
        &mut self,
        tables: &mut Tables,
        host: &mut impl PrimaryHost,
    ) -> Result<(), String> {
        if self.may_send() && host.now() >= self.piece_at {
            self.piece_at = host.now().plus(nanos(IMAGE_EVERY));
            match host.image(IMAGE_BYTES_MAX)? {
                Some(bytes) if bytes.is_empty() => {
                    self.is_sent = true;
                    host.drop_image();
                }
                Some(bytes) => {
                    tables.say(&Message::Image { bytes: &bytes }, host);
                    self.sent += bytes.len() as u64;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Says that the image is whole.
    pub(super) fn end(tables: &mut Tables, host: &mut impl PrimaryHost) {
        tables.say(&Message::Image { bytes: &[] }, host);
    }
}
