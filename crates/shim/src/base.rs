//! What all calls rely on: system calls, the shim's state, libc's own functions,
//! the log, and what is known about descriptors and connections. Nothing here
//! knows a call.

pub mod actions;
pub mod alarm;
pub mod alloc;
pub mod binds;
pub mod brief;
pub mod cells;
pub mod commit;
pub mod conns;
pub mod copy;
pub mod defer;
pub mod direct;
pub mod fds;
pub mod handed;
pub mod handlers;
pub mod holders;
pub mod kept;
pub mod leash;
pub mod log;
pub mod objects;
pub mod park;
pub mod processes;
pub mod quiet;
pub mod real;
pub mod report;
pub mod ring;
pub mod robust;
pub mod state;
pub mod sys;
pub mod table;
pub mod token;
pub mod waiting;
pub mod watch;
