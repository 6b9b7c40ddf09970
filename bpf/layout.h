/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the programs and user space share: map keys and values, limits and
 * counters. crates/linux/src/bpf/layout.rs mirrors this file and asserts the
 * sizes; change both together. Addresses are 16 bytes (IPv4 mapped into IPv6),
 * ports and sequence numbers are in host order.
 */
#ifndef HOLDFAST_LAYOUT_H
#define HOLDFAST_LAYOUT_H

#include <linux/types.h>

#define SERVICES_MAX 16
#define MEMBERS_MAX 4
#define GATE_SLOTS_DEFAULT 65536
#define GATE_SYNS_MAX 65536
#define GATE_EVENTS_BYTES (1 << 20)
#define EDGE_FLOWS_DEFAULT 65536
#define SYN_ACK_BYTES_MAX 128
#define CAPTURE_BYTES_MAX 256
#define CAPTURE_RING_BYTES (1 << 20)
#define SPREAD_HOSTS_MAX 255
#define SPREAD_SERVICES_MAX 64
#define SPREAD_TABLES (2 * SPREAD_SERVICES_MAX)
#define SPREAD_FLOWS_DEFAULT 262144
#define SPREAD_EMBRYOS_MAX 65536
#define SPREAD_DATAGRAMS_MAX 65536
#define SPREAD_FRAGMENTS_MAX 4096
#define MAGLEV_ENTRIES 65537
#define NO_MEMBER 0xffffffffu
#define NO_SCALE 255

struct service_key {
	__u8 address[16];
	__u16 port;
	__u16 zero;
};

struct conn_key {
	__u8 server[16];
	__u8 client[16];
	__u16 server_port;
	__u16 client_port;
};

/* What a client's SYN offered; `seq` ties it to one handshake. */
struct syn_offer {
	__u32 seq;
	__u16 mss;
	__u8 wscale;
	__u8 sack;
	__u8 ts;
	__u8 zero[3];
};

/* One protected connection. `stable`, `open_gen`, `fin_gen` and `free_gen`
 * are written by user space only, the rest by the gate only. A word of user
 * space counts only if it carries the slot's generation, so that a late store
 * can neither open nor release a recycled slot (decision 1). */
struct gate_slot {
	__u64 stable; /* generation << 32 | sequence number */
	__u32 gen;
	__u32 open_gen;
	__u32 fin_gen;
	__u32 free_gen;
	__u32 iss;
	__u32 irs;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 right_edge; /* the stack's */
	__u32 rcv_nxt;    /* the stack's, by its ACKs */
	__u32 last_ack;   /* on the wire */
	__u32 last_edge;  /* on the wire */
	__u32 tsval;
	__u32 tsecr;
	__u16 mss;
	__u16 peer_mss;
	__u16 window;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 sack;
	__u8 has_ts;
	__u16 zero;
	struct conn_key key;
	__u8 zero_tail[16];
};

/* A SYN-ACK that waits for user space. */
struct gate_event {
	__u64 socket; /* its cookie */
	__u32 index;
	__u32 gen;
	__u32 iss;
	__u32 irs;
	__u32 tsval;
	__u32 tsecr;
	__u16 mss;
	__u16 peer_mss;
	__u16 window;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 sack;
	__u8 has_ts;
	__u16 packet_len;
	struct conn_key key;
	__u8 packet[SYN_ACK_BYTES_MAX]; /* from the IP header on */
};

/* The fence: replaced in one map update. */
struct edge_fence {
	__u64 epoch;
	__u32 current; /* member index or NO_MEMBER */
	__u32 armed;   /* 0 until the first update: a new map is closed */
};

struct edge_member {
	__u32 ifindex; /* 0: no such member */
	__u32 l3_ifindex;
	__u8 mac[6];
	__u8 port_mac[6];
	__u32 tap;
};

#define FLOW_SERVER_FIN 1
#define FLOW_CLIENT_FIN 2
#define FLOW_RESET 4
#define FLOW_ESTABLISHED 8

struct edge_flow {
	__u64 seen_ns; /* CLOCK_MONOTONIC of the host, coarse */
	__u32 iss;
	__u32 seq_end;
	__u32 right_edge;
	__u32 tsval;
	__u32 client_ack;
	__u32 server_ack;
	__u32 flags;
	__u8 wscale;
	__u8 zero[3];
};

/* Why a packet is shown to `holdfast capture`. */
enum capture_what {
	CAPTURE_REDIRECTED = 1,
	CAPTURE_CLAMPED,
	CAPTURE_RESENT,
	CAPTURE_DROPPED,
	CAPTURE_ANSWERED, /* an ICMP error in place of the packet */
};

struct captured {
	__u64 at_ns; /* CLOCK_BOOTTIME */
	__u32 ifindex;
	__u32 what;
	__u32 wire_bytes;
	__u32 bytes; /* of `data` */
	__u8 data[CAPTURE_BYTES_MAX];
};

struct spread_service_key {
	__u8 address[16];
	__u16 port;
	__u16 protocol;
};

/* Which of the tables says who serves; replaced in one map update. */
struct spread_service {
	__u32 table;
	__u32 zero;
};

struct spread_table {
	__u8 hosts[MAGLEV_ENTRIES];
};

enum spread_state { SPREAD_FREE, SPREAD_UP, SPREAD_DRAINING, SPREAD_DEAD };

/* How packets of one address family reach a host server. */
struct spread_way {
	__u8 address[16];
	__u8 next_hop[16];
	__u32 ifindex; /* 0: no way */
	__u32 mtu;     /* of the outer packet */
};

struct spread_host {
	struct spread_way v4;
	struct spread_way v6;
	__u32 state;
	__u32 layer2; /* not encapsulated */
};

/* `tick` counts seconds while the daemon lives: flows age only then. */
struct spread_config {
	__u64 seed;
	__u8 outer4[4];
	__u32 outer4_mask; /* of the bits that differ between flows */
	__u8 outer6[16];
	__u32 outer6_mask; /* of its last word */
	__u32 tick;
};

struct spread_flow {
	__u32 tick; /* of the last packet */
	__u8 host;
	__u8 flags; /* FLOW_CLIENT_FIN, FLOW_RESET, FLOW_ESTABLISHED */
	__u16 zero;
};

struct spread_fragment {
	__u8 client[16];
	__u8 server[16];
	__u32 id;
	__u32 protocol;
};

/* What an edge's program answers to a packet that carries TRACE_MARK: the
 * verdict's reason in the mark, `TRACE_BYTE << 24 | outcome << 16 | how << 8 |
 * member`. Such a packet is neither counted nor remembered. */
#define TRACE_MARK 0x686f6c64u
#define TRACE_BYTE 0x68u

enum trace_how {
	TRACE_UNKNOWN,
	TRACE_FLOW,     /* where the flow is already */
	TRACE_EMBRYO,   /* where its SYN went */
	TRACE_NEW,      /* where a new flow would go */
	TRACE_STRAY,    /* a later packet of a flow that nobody knows */
};

struct host_config {
	__u8 tunnel4[16];
	__u8 tunnel6[16];
	__u8 outer4[16]; /* who may encapsulate */
	__u8 outer6[16];
	__u32 outer4_bits;
	__u32 outer6_bits;
	__u32 mtu; /* of the way from the edge, outer packet */
	__u32 zero;
};

_Static_assert(sizeof(struct service_key) == 20, "layout.rs");
_Static_assert(sizeof(struct conn_key) == 36, "layout.rs");
_Static_assert(sizeof(struct gate_slot) == 128, "layout.rs");
_Static_assert(sizeof(struct gate_event) == 208, "layout.rs");
_Static_assert(sizeof(struct edge_fence) == 16, "layout.rs");
_Static_assert(sizeof(struct edge_member) == 24, "layout.rs");
_Static_assert(sizeof(struct edge_flow) == 40, "layout.rs");
_Static_assert(sizeof(struct captured) == 280, "layout.rs");
_Static_assert(sizeof(struct spread_service_key) == 20, "layout.rs");
_Static_assert(sizeof(struct spread_service) == 8, "layout.rs");
_Static_assert(sizeof(struct spread_table) == 65537, "layout.rs");
_Static_assert(sizeof(struct spread_host) == 88, "layout.rs");
_Static_assert(sizeof(struct spread_config) == 40, "layout.rs");
_Static_assert(sizeof(struct spread_flow) == 8, "layout.rs");
_Static_assert(sizeof(struct spread_fragment) == 40, "layout.rs");
_Static_assert(sizeof(struct host_config) == 80, "layout.rs");

enum gate_counter {
	GATE_SYNS,
	GATE_HELD_SYN_ACKS,
	GATE_HELD_REPEATS,
	GATE_REFUSED_SLOTS,
	GATE_REFUSED_EVENTS,
	GATE_REFUSED_OPTIONS,
	GATE_REFUSED_UNKNOWN_SYN,
	GATE_STRAY,
	GATE_SYN_RESETS,
	GATE_DEAD_RESETS,
	GATE_UNOPENED,
	GATE_HELD_FINS,
	GATE_CLEARED_FINS,
	GATE_HELD_RESETS,
	GATE_CLAMPED,
	GATE_REPEATS,
	GATE_DSACKS,
	GATE_ODD,
	GATE_COUNTERS
};

enum tapdrop_counter { TAPDROP_DROPPED, TAPDROP_COUNTERS };

enum edge_counter {
	EDGE_FORWARDED_IN,
	EDGE_FORWARDED_OUT,
	EDGE_COPIED,
	EDGE_COPY_FAILED,
	EDGE_CLOSED,
	EDGE_FENCED,
	EDGE_REFUSED_FLOWS,
	EDGE_UNTRACKED,
	EDGE_IMPLAUSIBLE,
	EDGE_SLOW_PATH,
	EDGE_ODD,
	EDGE_COUNTERS
};

enum spread_counter {
	SPREAD_REDIRECTED,
	SPREAD_NEW_FLOWS,
	SPREAD_ESTABLISHED,
	SPREAD_STRAY,
	SPREAD_REFUSED_FLOWS,
	SPREAD_NOBODY,
	SPREAD_NO_WAY,
	SPREAD_TOO_BIG,
	SPREAD_TOO_BIG_LIMITED,
	SPREAD_CUT,
	SPREAD_ICMP_FOLLOWED,
	SPREAD_FRAGMENTS_FOLLOWED,
	SPREAD_ODD,
	SPREAD_COUNTERS
};

enum host_counter {
	HOST_DECAPSULATED,
	HOST_STRANGERS,
	HOST_NOT_OURS,
	HOST_CONGESTED,
	HOST_CLAMPED,
	HOST_ODD,
	HOST_COUNTERS
};

#endif
