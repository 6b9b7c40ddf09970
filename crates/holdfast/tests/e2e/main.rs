//! End-to-end tests with real servers in network namespaces, one file per
//! behaviour. They need root and the Debian packages of `scripts/setup`; run
//! one of them with `cargo test --release --test e2e -- a_lone_request`.

mod a_bgp_session_survives;
mod a_client_may_do_what_tcp_allows;
mod a_file_that_differs_is_named;
mod a_hung_replica_is_given_up;
mod a_launcher_becomes_the_server;
mod a_lone_request_survives_kill_9;
mod a_peer_without_the_key_learns_nothing;
mod an_outage_has_a_timeline;
mod both_directions_use_one_string;
mod client;
mod closing_connections_end_cleanly;
mod connections_survive_a_cut_link;
mod datagrams_of_any_size_come_back;
mod downloads_and_uploads_lose_no_byte;
mod every_tcp_is_recovered;
mod flows_leave_a_dead_string;
mod heartbeats_come_as_configured;
mod host_servers_share_a_service;
mod hostile_heartbeats_change_nothing;
mod hostile_packets_change_nothing;
mod members_fail_in_every_way;
mod members_of_different_worlds_refuse_to_pair;
mod nonsense_in_the_config_is_explained;
mod packets_can_be_watched;
mod redis_survives_the_death_of_daemon_and_server;
mod spread_world;
mod status_counts_the_lag;
mod strings_work_without_their_daemons;
mod subscribers_miss_nothing;
mod syns_outlive_a_host_server;
mod the_edge_works_without_its_daemon;
mod the_matrix;
mod threads_are_replicated;
mod transit;
mod unread_bytes_do_not_wait_for_the_client;
mod wire;
mod without_output_commit_the_shared_counter_is_wrong;
mod world;
