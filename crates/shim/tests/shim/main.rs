//! The shim under real servers and programs. One program for all files: each of them would be linked
//! anew, with nearly the same in it.

mod calls_by_number;
mod compares_files;
mod copies_more_servers;
mod copies_signals;
mod delivers_signals;
mod follows_from_an_image;
mod harness;
mod keeps_devices;
mod layers;
mod lends_connections;
mod lists_listeners;
mod remembers_epoll_sets;
mod replays_a_server;
mod replays_calls_by_number;
mod replays_children;
mod replays_families;
mod replays_flags;
mod replays_kin;
mod replays_machines;
mod replays_more_servers;
mod replays_sessions;
mod replays_threads;
mod resets_upstreams;
mod runs_one_at_a_time;
mod says_what_differs;
mod sends_files;
mod sounds_the_alarm;
mod stands_still;
mod support_table;
mod writes_by_several_descriptors;
