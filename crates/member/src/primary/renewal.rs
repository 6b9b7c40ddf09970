//! A new image for a cold backup that follows: the server goes on, protected, and so does its
//! log. The backup keeps what it has until the new image is whole, and no client lacks what it
//! was sent before that was taken: only this host's kernel has that.

use super::audit::unwritten;
use super::lacking::Lacking;
use super::sending::Sending;
use super::{PrimaryHost, PrimaryMachine};
use crate::nanos;
use crate::timing::primary::TICK;
use holdfast_cluster::Nanos;
use holdfast_wire::message::{ConnId, Message, clip};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

const UNTAKEN: &str = "clients have not taken what they were sent before the new image";

/// How far it has come; see the module.
#[derive(Debug)]
pub(super) enum Renewal {
    /// The image is being taken; what each client had acknowledged before.
    Taking(BTreeMap<ConnId, SeqNo>),
    Sending {
        sending: Sending,
        lacking: Lacking,
    },
}

/// What the backup has said of it since the last turn.
#[derive(Debug, Default)]
pub(super) struct Wish {
    is_wanted: bool,
    is_off: bool,
    arrived: u64,
}

impl Wish {
    pub(super) fn note(&mut self, message: &Message<'_>) {
        match message {
            Message::Renew => self.is_wanted = true,
            Message::ImageOff { .. } => (self.is_wanted, self.is_off) = (false, true),
            Message::ImageOk { bytes } => self.arrived = self.arrived.max(*bytes),
            _ => {}
        }
    }
}

impl PrimaryMachine {
    /// A turn of the renewal, if there is one.
    pub(super) fn renew(&mut self, host: &mut impl PrimaryHost) {
        let Wish { is_wanted, is_off, arrived } = std::mem::take(&mut self.tables.wish);
        if is_off {
            self.drop_renewal(host);
        }
        if is_wanted {
            self.drop_renewal(host);
            self.renewal = Some(Renewal::Taking(self.acked(host)));
            if let Err(reason) = host.take_image(&[], false) {
                return self.refuse_renewal(&reason, host);
            }
        }
        let done = match self.renewal.take() {
            None => return,
            Some(Renewal::Taking(acked)) => self.begin_renewal(acked, host),
            Some(Renewal::Sending { mut sending, lacking }) => {
                sending.note(arrived);
                self.send_renewal(sending, lacking, host)
            }
        };
        match done {
            Ok(renewal) => self.renewal = renewal,
            Err(reason) => self.refuse_renewal(&reason, host),
        }
    }

    /// The image is sent as soon as it is taken, and the log knows where.
    fn begin_renewal(
        &mut self,
        acked: BTreeMap<ConnId, SeqNo>,
        host: &mut impl PrimaryHost,
    ) -> Result<Option<Renewal>, String> {
        let Some(taken) = host.image_taken() else { return Ok(Some(Renewal::Taking(acked))) };
        let image = taken?;
        let now = host.now();
        let (_, adopted, ended) = self.adopted(host)?;
        if let Some(reason) = unwritten(&adopted, &acked) {
            return Err(reason);
        }
        let lacking = Lacking::of(&adopted, &ended, now, host);
        let renewed = Message::Renewed { log_from: image.log_from, image_bytes: image.bytes };
        self.tables.say(&renewed, host);
        Ok(Some(Renewal::Sending { sending: Sending::new(image, now), lacking }))
    }

    fn send_renewal(
        &mut self,
        mut sending: Sending,
        mut lacking: Lacking,
        host: &mut impl PrimaryHost,
    ) -> Result<Option<Renewal>, String> {
        sending.turn(&mut self.tables, host)?;
        let waits = lacking.waits(&mut self.tables.conns, host);
        if !sending.is_sent() || waits {
            return Ok(Some(Renewal::Sending { sending, lacking }));
        }
        if !lacking.at_risk().is_empty() {
            return Err(UNTAKEN.to_owned());
        }
        // The backup hears of the acknowledgements first.
        let now = host.now();
        self.tell_progress(now, host);
        Sending::end(&mut self.tables, host);
        Ok(None)
    }

    fn refuse_renewal(&mut self, reason: &str, host: &mut impl PrimaryHost) {
        self.renewal = None;
        host.drop_image();
        self.tables.say(&Message::ImageOff { reason: clip(reason) }, host);
    }

    /// Nobody wants it any more, or nobody can take it: the server's log is about to end.
    pub(super) fn drop_renewal(&mut self, host: &mut impl PrimaryHost) {
        if self.renewal.take().is_some() {
            host.drop_image();
        }
    }

    /// When it wants the next turn.
    pub(super) fn renewal_due(&self, now: Nanos) -> Option<Nanos> {
        match self.renewal.as_ref()? {
            Renewal::Taking(_) => Some(now.plus(nanos(TICK))),
            Renewal::Sending { sending, .. } => Some(sending.due(now)),
        }
    }
}
