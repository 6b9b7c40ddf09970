//! Tunnels between two network namespaces, with the program that users run. They need root; without it
//! they fail, unless HOLDFAST_MAY_SKIP=1. One at a time: `cargo test -p holdfast-tunnel-host --test
//! tunnel -- --test-threads=1`.

mod bed;
mod relay;
mod traffic;

mod a_flood_keeps_nobody_out;
mod a_path_may_lose_packets;
mod a_service_manager_hears_of_it;
mod an_end_may_move;
mod any_traffic_goes_through;
mod connections_are_spliced;
mod ends_may_die;
mod how_fast_it_is;
mod mistakes_are_told;
mod ports_need_no_root;
mod strangers_change_nothing;
mod the_status_is_true;
