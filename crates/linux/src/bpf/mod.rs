//! The eBPF programs of `bpf/` and their maps, as safe types: the primary's
//! [`Gate`], the backup's [`TapDrop`], the [`Edge`] or, where a pair has none,
//! what lets one member [`Speak`]; a spread group's
//! [`Redirect`] and [`HostEnd`], and its [`BindWatch`], the only one that ends
//! with its daemon; and an edge of strings, the [`Transit`].
//!
//! Programs are attached as netlink tc filters and pinned with their maps in a
//! BPF file system, so that they go on when the daemon is killed. Dropping one
//! of these types leaves everything in place; `detach` removes it. All calls
//! work in the network namespace of the calling thread. The pins are visible in
//! the mount namespace in which they were made (`ip netns exec` makes a new one).

mod batch;
mod bind;
mod capture;
mod cgroup;
mod cost;
mod directory;
mod edge;
mod error;
mod flows;
mod gate;
mod host;
mod kept;
mod layout;
mod left;
mod loader;
mod net;
mod owner;
mod pins;
mod qdisc;
mod recover;
mod redirect;
mod regulate;
mod slots;
mod speak;
mod tapdrop;
mod trace;
mod transit;

pub use bind::{BindWatch, Watched};
pub use capture::{CAPTURE_CREDIT, Captured, Captures, What};
pub use cost::Cost;
pub use edge::{Edge, EdgeConfig, MemberPort};
pub use error::BpfError;
pub use gate::{Gate, GateConfig, SynAck};
pub use holdfast_wire::gate::{Adopted, SlotView};
pub use host::{HostEnd, HostEndConfig};
pub use kept::mend_pins;
pub use layout::{
    EDGE_FLOWS_DEFAULT, GATE_SLOTS_DEFAULT, MAGLEV_ENTRIES, MEMBERS_MAX, NO_STRING,
    REGULATE_FLOWS_DEFAULT, SERVICES_MAX, SPREAD_FLOWS_DEFAULT, SPREAD_HOSTS_MAX,
    SPREAD_SERVICES_MAX, STRINGS_MAX, SYN_ACK_BYTES_MAX, TRANSIT_FLOWS_DEFAULT, TRANSIT_SLOTS,
};
pub use left::Left;
pub use loader::{Detached, Mended, has_pins, remove_pin_dir, remove_qdiscs};
pub use owner::{OTHER_GROUP_REMEDY, OtherGroup};
pub use pins::Shape;
pub use recover::{Copied, Copies, CopyPolicy, DRAINS_MAX};
pub use redirect::{FORGET_MAX, Flows, Host, HostState, Redirect, RedirectConfig, ServiceKey, Way};
pub use regulate::{Measured, Regulated};
pub use speak::{Deadline, Relay, Speak, SpeakConfig, Until};
pub use tapdrop::TapDrop;
pub use trace::{How, Question, Traced, Verdict};
pub use transit::{
    FlowSweeper, StringPort, Traffic, Transit, TransitConfig, TransitPrograms, TransitState,
};
