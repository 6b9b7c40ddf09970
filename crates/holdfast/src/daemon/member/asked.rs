//! What a member answers at its admin socket, and the settings that it takes over while it runs.

use super::MemberContext;
use crate::admin::{Level, Request, refusal};
use crate::config::{Config, GroupFile, Settings as _};
use crate::daemon::reload::{Plan, Reader};
use crate::daemon::viewer::Viewer;
use crate::key::Keyring;
use crate::status::{Role, State};
use holdfast_cluster::Nanos;
use holdfast_linux::aside::drop_aside;

impl MemberContext<'_> {
    pub(super) fn serve_admin(&mut self) {
        // Between two reports nothing else notices that a peer has become silent.
        self.show();
        let (status, events) = (self.answer(), &self.events);
        let (hands_over, leaves) = (&mut self.member.hands_over, &mut self.leaves);
        let edge = &self.edge;
        let (config, key, me) = (self.config, &self.key, self.me);
        let mut planned = None;
        let look = self.admin.serve(|request| match request {
            Request::Switchover { leaves: then }
                if status.role == Role::Primary && status.state == State::Protected =>
            {
                (*hands_over, *leaves) = (true, then);
                serde_json::json!({ "from": status.member })
            }
            Request::Switchover { .. } => refusal(&format!(
                "this member is {} and {}: only a protected primary hands over\n  remedy: ask on \
                 the primary's host, when `holdfast status` says protected",
                status.role, status.state
            )),
            Request::Takeover => match edge.take_word() {
                Ok(()) => serde_json::json!({ "from": status.member }),
                Err(reason) => refusal(&reason),
            },
            Request::Status => {
                serde_json::to_value(&status).unwrap_or_else(|e| refusal(&e.to_string()))
            }
            Request::Events { since } => events.answer(since),
            Request::Reload { dry_run } => {
                let plan = read_again(config, key, &me.name);
                let answer = match &plan {
                    Ok(plan) => plan.answer(&me.name),
                    Err(why) => refusal(why),
                };
                planned = Some(plan).filter(|_| !dry_run);
                answer
            }
            _ => refusal("only the edge can do that; ask its socket"),
        });
        if let Some(plan) = planned {
            self.take_over(plan);
        }
        if self.kept.take(look, &self.config.group.run_dir, &mut self.events) {
            self.note_again();
        }
    }

    /// Reads the file again, and takes over what a member can (SIGHUP).
    pub(super) fn reload(&mut self) {
        let plan = read_again(self.config, &self.key, &self.me.name);
        self.take_over(plan);
    }

    fn take_over(&mut self, plan: Result<Plan, String>) {
        let plan = match plan {
            Ok(plan) => plan,
            Err(why) => {
                let words = format!("goes on as before: {why}");
                return self.events.add_at(Level::Warn, "reload", words);
            }
        };
        self.events.add("reload", plan.words());
        let GroupFile::Replicated(file) = &plan.file else { return };
        let mut config = self.config.clone();
        if plan.takes_keys() {
            config.take_public_keys(file);
            config.group.key_file.clone_from(&file.group.key_file);
            self.key.take_over(&plan.keyring);
        }
        if plan.takes_of("group.rejoin_max") {
            config.group.rejoin_max = file.group.rejoin_max;
            self.member.rejoin_max = file.group.rejoin_max;
        }
        if plan.takes_of("group.alone_after_s") {
            config.group.alone_after_s = file.group.alone_after_s;
            self.member.alone_after = Nanos(file.group.alone_after_s * 1_000_000_000);
        }
        if plan.takes_of("hooks.") {
            config.hooks.clone_from(&file.hooks);
            self.events.call(config.hooks.as_ref());
        }
        if plan.takes_of("metrics.") || plan.takes_of("page.") {
            (config.metrics, config.page) = (file.metrics, file.page);
            // The one before ends by itself, and whoever finds its port taken tries again.
            drop_aside(self.viewer.take());
            self.viewer = Viewer::start(&[(config.common(), &self.me.name)]);
        }
        if plan.applies() {
            // Roles hold the file for as long as the daemon lives. One is left behind each time
            // that an operator has changed it.
            self.config = Box::leak(Box::new(config));
        }
    }
}

fn read_again(config: &Config, key: &Keyring, me: &str) -> Result<Plan, String> {
    let running = GroupFile::Replicated(Box::new(config.clone()));
    Plan::read(&running, key, (me, Reader::Member(me)))
}
