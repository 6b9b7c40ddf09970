//! A cold backup whose log has become long gets a new image while it goes on: it keeps the log a
//! second time, and what it has until image and log are whole behind it.

use super::join::Said;
use super::{BackupHost, BackupMachine};
use crate::host::MemberEvent;
use crate::nanos;
use crate::timing::backup::{RENEW_PAUSE, RENEW_PAUSE_MAX, RENEW_SILENT_MAX, RENEW_TRIES_MAX};
use crate::timing::doubled;
use holdfast_cluster::Nanos;
use holdfast_wire::message::{Message, clip};

const SILENT: &str = "nothing more comes of the new image";

/// Attempts at a new image.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// Attempts that have failed since the last one that did not.
    failed: u32,
    again_at: Option<Nanos>,
    renewal: Option<Renewal>,
}

/// A new image that comes.
#[derive(Debug)]
struct Renewal {
    begun: Nanos,
    /// When something of it was heard last.
    heard_at: Nanos,
    /// Its size limit, once it was announced; how much of it has come, of which the primary was
    /// told; and whether that is all.
    image_bytes: Option<u64>,
    arrived: u64,
    told: u64,
    is_whole: bool,
}

impl Renewals {
    /// Whether the primary may have something to say of one.
    pub(super) const fn is_on(&self) -> bool {
        self.renewal.is_some()
    }
}

impl BackupMachine {
    /// A new image is due. It is asked for, unless that has failed too often: then this backup
    /// leaves, and joins anew.
    pub(super) fn wants_image(&mut self, reason: &str, host: &mut impl BackupHost) {
        let now = host.now();
        let Renewals { failed, again_at, renewal } = &mut self.renewals;
        if renewal.is_some() || again_at.is_some_and(|at| now < at) {
            return;
        }
        if *failed >= RENEW_TRIES_MAX {
            return self.wants_to_leave(reason, host);
        }
        *renewal = Some(Renewal {
            begun: now,
            heard_at: now,
            image_bytes: None,
            arrived: 0,
            told: 0,
            is_whole: false,
        });
        match host.begin_renewal() {
            Ok(()) => host.send(&Message::Renew),
            Err(reason) => self.fail_renewal(&reason, host),
        }
    }

    /// A turn of the renewal, if there is one.
    pub(super) fn renew(&mut self, host: &mut impl BackupHost) {
        let said = std::mem::take(&mut self.said);
        let Some(mut renewal) = self.renewals.renewal.take() else { return };
        let now = host.now();
        match renewal.turn(said, now, host) {
            Err(reason) => self.fail_renewal(&reason, host),
            Ok(true) => {
                host.end_renewal(true);
                self.renewals = Renewals::default();
                host.show(MemberEvent::Renewed { took: now.since(renewal.begun) });
            }
            Ok(false) => self.renewals.renewal = Some(renewal),
        }
    }

    fn fail_renewal(&mut self, reason: &str, host: &mut impl BackupHost) {
        self.renewals.renewal = None;
        host.end_renewal(false);
        host.send(&Message::ImageOff { reason: clip(reason) });
        host.flush();
        let pause = doubled(RENEW_PAUSE, self.renewals.failed, RENEW_PAUSE_MAX);
        self.renewals.failed += 1;
        self.renewals.again_at = Some(host.now().plus(nanos(pause)));
        host.show(MemberEvent::RenewedNot { reason });
    }

    /// What there was before is what a takeover builds the server of.
    pub(super) fn drop_renewal(&mut self, host: &mut impl BackupHost) {
        if self.renewals.renewal.take().is_some() {
            host.end_renewal(false);
        }
    }
}

impl Renewal {
    /// Takes what has come; whether all of it is kept.
    fn turn(
        &mut self,
        said: Vec<Said>,
        now: Nanos,
        host: &mut impl BackupHost,
    ) -> Result<bool, String> {
        if !said.is_empty() {
            self.heard_at = now;
        }
        for said in said {
            self.take(said, host)?;
        }
        if self.image_bytes.is_none() {
            return self.waits(now);
        }
        let kept = host.image_kept().min(self.arrived);
        if kept > self.told {
            self.told = kept;
            host.send(&Message::ImageOk { bytes: kept });
            host.flush();
        }
        if !host.is_renewal_kept()? || !self.is_whole {
            return self.waits(now);
        }
        Ok(true)
    }

    fn waits(&self, now: Nanos) -> Result<bool, String> {
        match now.since(self.heard_at) > nanos(RENEW_SILENT_MAX) {
            true => Err(SILENT.to_owned()),
            false => Ok(false),
        }
    }

    fn take(&mut self, said: Said, host: &mut impl BackupHost) -> Result<(), String> {
        match said {
            Said::Renewed { log_from, image_bytes } if self.image_bytes.is_none() => {
                host.begin_new_image(log_from, image_bytes)?;
                self.image_bytes = Some(image_bytes);
            }
            Said::ImageOff(reason) => return Err(reason),
            // Of an attempt that was given up something may still come.
            _ if self.image_bytes.is_none() => {}
            Said::Image(bytes) if bytes.is_empty() => {
                self.is_whole = true;
                host.end_image();
            }
            Said::Image(bytes) => {
                self.arrived += bytes.len() as u64;
                if self.image_bytes.is_none_or(|all| self.arrived > all) {
                    return Err("more of the image came than was announced".to_owned());
                }
                host.take_image(&bytes)?;
            }
            _ => return Err("the primary speaks out of turn".to_owned()),
        }
        Ok(())
    }
}
