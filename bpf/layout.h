/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the programs and user space share: map keys and values, limits and
 * counters. crates/linux/src/bpf/layout.rs mirrors this file, and a test
 * compares them; change both together. Addresses are 16 bytes (IPv4 mapped into IPv6),
 * ports and sequence numbers are in host order.
 */
#ifndef HOLDFAST_LAYOUT_H
#define HOLDFAST_LAYOUT_H

#include <linux/types.h>

#define SERVICES_MAX 16
#define GROUP_NAME_BYTES 32
#define MEMBERS_MAX 4
#define GATE_SLOTS_DEFAULT 65536
#define GATE_SYNS_MAX 65536
#define GATE_EVENTS_BYTES (1 << 20)
/* Connections without a slot that are remembered, and for how long: longer than a client
 * waits between two repeats (RFC 6298 §2.4 and §2.5; Linux: 120 s). */
#define GATE_UNKNOWN_MAX 4096
#define GATE_UNKNOWN_NS 120000000000ull
#define EDGE_FLOWS_DEFAULT 65536
#define SYN_ACK_BYTES_MAX 128
#define CAPTURE_BYTES_MAX 256
#define CAPTURE_RING_BYTES (1 << 20)
#define BIND_RING_BYTES 4096 /* the least there is: nothing but waking is in it */
#define RECOVER_RING_BYTES (4 << 20)
/* The reader is woken when this much waits; otherwise it looks when it needs to
 * know. */
#define RECOVER_WAKE_BYTES (RECOVER_RING_BYTES / 4)
#define REGULATE_FLOWS_DEFAULT 65536
#define STRINGS_MAX 8
#define TRANSIT_SLOTS 256 /* a power of two */
#define TRANSIT_FLOWS_DEFAULT 131072
#define NO_STRING 255u
#define SPREAD_HOSTS_MAX 255
#define SPREAD_SERVICES_MAX 64
#define SPREAD_TABLES (2 * SPREAD_SERVICES_MAX)
#define SPREAD_DIRECTORIES 4
#define SPREAD_BUCKETS_SHIFT 12
#define SPREAD_BUCKETS (1 << SPREAD_BUCKETS_SHIFT)
#define NO_SERVICE 255
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

/* One protected connection. `stable`, `open_gen`, `fin_gen` and `free_gen` are
 * written by user space, the rest by the gate, with two exceptions: user space
 * writes all of a slot that it adopts, and the gate itself opens and ends what it
 * lets pass alone. A word of user space counts only if it carries the slot's
 * generation, so that a late store can neither open nor release a recycled slot
 * (decision 1). */
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

/* A SYN-ACK that waits for user space, or of which user space only learns. */
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
	__u8 passed; /* 1: it does not wait */
	__u8 zero[7];
	struct conn_key key;
	__u8 packet[SYN_ACK_BYTES_MAX]; /* from the IP header on */
};

/* Hardware addresses of a member of a pair without an edge. */
struct speak_macs {
	__u8 service[6]; /* to which clients' frames go */
	__u8 own[6];
};

/* Where frames to the service's hardware address go besides: to the other member's
 * own one. */
struct speak_relay {
	__u8 peer[6];
	__u8 hand_on; /* while this member is silent, it gets them in its place */
	__u8 clone;   /* while this member speaks, it gets copies */
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
/* The handshake of this flow was not seen: window scales, the ISS and what went by
 * before are not known, so its bounds tell the least that a client has, never the
 * most. */
#define FLOW_LEARNT 16
/* The client has said something after the handshake of this life of the tuple. */
#define FLOW_OPENED 32

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
	CAPTURE_DROPPED,
	CAPTURE_ANSWERED, /* an ICMP error in place of the packet */
	CAPTURE_RESENT,   /* by the daemon, after an outage */
};

struct captured {
	__u64 at_ns; /* CLOCK_BOOTTIME of the kernel, whatever a time namespace says */
	__u32 ifindex;
	__u32 what;
	__u32 wire_bytes;
	__u32 bytes; /* of `data` */
	__u8 data[CAPTURE_BYTES_MAX];
};

/* What is copied for recovery: the value of `recover_control`. */
#define RECOVER_OFF 0
#define RECOVER_SYNS 1
#define RECOVER_SEGMENTS 2
#define RECOVER_POLICY 0xff /* one of these, and above it: */
#define RECOVER_HOLDS 0x100 /* until the time in `recover_hold` */
/* With this bit, `recover_hold` is a duration from the next packet on: a time
 * namespace may hide the kernel's clock from the daemon. */
#define RECOVER_FROM_NOW (1ULL << 63)

/* The direction of a packet. A program may add a number of its own, such as the
 * packet's string, above these bits. */
#define RECOVER_INTO 0 /* into the part of the network that may fail */
#define RECOVER_OUT 1
#define RECOVER_HELD 2 /* out of it, but the daemon has it, and sends it on */
#define RECOVER_OPENED 3 /* into it, by a client that was answered: no SYN is lost */
#define RECOVER_WAY_SHIFT 8

/* The head of a copied packet. Its bytes follow: the headers and the first
 * segment's payload, and at `tail_from` the payload of the last segment. */
struct recovered {
	__u32 payload;    /* bytes of the whole frame's */
	__u32 tail_at;    /* offset of the last segment in the payload; 0: no other */
	__u16 direction;  /* RECOVER_INTO to RECOVER_OPENED */
	__u16 way;        /* the program's own number */
	__u16 headers;    /* bytes of the IP and the TCP header */
	__u16 head_bytes; /* of the first segment's payload */
	__u16 tail_bytes;
	__u16 tail_from; /* offset behind this structure */
	__u16 gso_size;  /* 0: not segmented */
	__u16 zero;
};

struct recover_count {
	__u64 copied;
	__u64 lost; /* no room in the ring, or longer than its longest record */
};

/* The control as one word, so that a program sees either all of a change or
 * none. */
struct regulate_control {
	__u32 window_bytes; /* 0: off; REGULATE_UNCAPPED: nothing but promises are bounded */
	__u16 interval;     /* of the controller; counts on with every one */
	__u16 session;      /* from one switching on to the next; never 0 */
};

#define REGULATE_UNCAPPED 0xffffffffu

#define REGULATE_NEAR_SEEN 1
#define REGULATE_FAR_SEEN 2
#define REGULATE_NEAR_FIN 4
#define REGULATE_FAR_FIN 8
#define REGULATE_RESET 16
#define REGULATE_FREE 32 /* was promised more before, and does not feel the cap yet */

/* A flow whose sender is on this side of the edge; in its key the sender is the
 * client. */
struct regulate_flow {
	__u64 seen_ns;
	__u64 turn_ns;    /* when this turn began: a round trip from here to the sender */
	__u32 turn_us;    /* how long that takes; 0: not known */
	__u32 turn_from;  /* `sent_end` when it began */
	__u32 turn_bytes; /* what came in the turns before, the largest, fading */
	__u32 sent_end;   /* the furthest that the sender has come */
	__u32 right_edge; /* the furthest that the far side promised... */
	__u16 session;    /* ...since then; an earlier one's is not known any more */
	__u16 interval;   /* in which the sender was last counted */
	__u8 near_scale;
	__u8 far_scale;
	__u8 flags;
	__u8 zero[5];
};

/* What went into a string, counted per processor. */
struct regulate_string {
	__u64 bytes;
	__u64 flows; /* times that a flow was the first time active in an interval */
	__u64 free_bytes; /* what of both was that of REGULATE_FREE ones */
	__u64 free_flows;
};

struct regulate_count {
	__u64 clamped;
	__u64 refused; /* flows for which the table had no room */
};

#define STRING_V4 1 /* has a next hop for IPv4 */
#define STRING_V6 2

/* One string, as the edge sees it. */
struct string_row {
	__u32 ifindex; /* 0: no such string */
	__u32 families;
	__u8 next_hop4[4];
	__u8 next_hop6[16];
};

#define TRANSIT_LEADS 1      /* the other edge follows this one's choices */
#define TRANSIT_RETURN_ALL 2 /* moved flows go back to a string that returns */
#define TRANSIT_CLOSED 4     /* by hand: none is usable; for the daemon's next life */

/* Which strings may be used, and which slot of the hash belongs to which
 * string. The whole table is replaced in one map update: that is the fence. */
struct transit_table {
	__u32 epoch;
	__u32 armed; /* 0 until the first update: a new map is closed */
	__u32 usable; /* bit i: string i */
	__u32 flags;
	__u32 seed; /* of the hash; the same at both edges */
	struct string_row strings[STRINGS_MAX];
	__u8 slots[TRANSIT_SLOTS];
};

/* A flow without its direction: the lower endpoint comes first. Ports and
 * protocol are 0 where only the pair of addresses counts. */
struct transit_key {
	__u8 low[16];
	__u8 high[16];
	__u16 low_port;
	__u16 high_port;
	__u32 protocol;
};

#define TRANSIT_FROM_OUTSIDE 1 /* a packet came from there */
#define TRANSIT_FROM_STRING 2
#define TRANSIT_OUTSIDE_FIN 4
#define TRANSIT_STRING_FIN 8
#define TRANSIT_RESET 16

struct transit_flow {
	__u64 seen_ns; /* CLOCK_MONOTONIC of the host, coarse, some 100 ms behind */
	__u8 string;
	__u8 home; /* its first string */
	__u8 flags;
	__u8 zero[5];
};

struct transit_traffic {
	__u64 packets;
	__u64 bytes;
};

struct spread_service {
	__u64 address[2]; /* its bytes in their order */
	__u16 port;
	__u16 protocol;
	__u32 table; /* which of the tables says who serves */
};

/* The services. Each has a bucket of its own: user space tries `factors` of the
 * hash until no two services share one. A directory is written where no packet
 * looks, and then named by `spread_config`, so that it changes from one packet
 * to the next. */
struct spread_directory {
	__u64 factors[3];
	struct spread_service services[SPREAD_SERVICES_MAX];
	__u8 buckets[SPREAD_BUCKETS]; /* index of a service, or NO_SERVICE */
};

struct spread_table {
	__u8 hosts[MAGLEV_ENTRIES];
};

enum spread_state { SPREAD_FREE, SPREAD_UP, SPREAD_DRAINING, SPREAD_DEAD, SPREAD_DEAD_DRAINED };

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

/* Configuration; `tick` counts seconds while the daemon lives: flows age only
 * then. */
struct spread_config {
	__u64 seed;
	__u32 outer4;
	__u32 outer4_mask; /* of the bits that differ between flows */
	__u32 outer6[4];
	__u32 outer6_mask; /* of its last word */
	__u32 tick;
	__u32 directory; /* which of them counts */
	__u32 zero;
};

/* Key of an IPv4 flow; an IPv6 flow has a conn_key. */
struct spread_key4 {
	__u32 server; /* in the order of the packet */
	__u32 client;
	__u32 ports; /* client << 16 | server */
};

struct spread_flow {
	__u32 tick; /* of the last packet */
	__u32 hash; /* which outer source it has */
	__u8 host;
	__u8 flags; /* FLOW_CLIENT_FIN, FLOW_RESET, FLOW_ESTABLISHED, FLOW_LEARNT, FLOW_OPENED */
	__u16 lived; /* ticks from its first packet to its last; this many or more */
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
	__u32 tunnel4; /* in the order of the packet, as all here but the MTU */
	__u32 outer4;  /* who may encapsulate */
	__u32 outer4_mask;
	__u32 mtu; /* of the way from the edge, outer packet */
	__u64 tunnel6[2];
	__u64 outer6[2];
	__u64 outer6_mask[2];
};

/* What becomes of RSTs for connections without a slot. */
enum gate_resets { GATE_LETS_RESETS, GATE_KEEPS_RESETS, GATE_DEFERS_RESETS };

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
	GATE_UNKNOWN_ALONE,
	GATE_LATE_RESETS,
	GATE_COUNTERS
};

enum tapdrop_counter { TAPDROP_DROPPED, TAPDROP_COUNTERS };

enum speak_counter {
	SPEAK_TAKEN,
	SPEAK_LEFT, /* frames for the service that came while this member was silent */
	SPEAK_SENT,
	SPEAK_SILENCED,
	SPEAK_MALFORMED, /* refused: some kernels take it and others do not */
	SPEAK_ODD,
	SPEAK_HANDED_ON,
	SPEAK_CLONED,
	SPEAK_UNCLONED,
	SPEAK_COUNTERS
};

enum edge_counter {
	EDGE_FORWARDED_IN,
	EDGE_FORWARDED_OUT,
	EDGE_COPIED,
	EDGE_COPY_FAILED,
	EDGE_CLOSED,
	EDGE_FENCED,
	EDGE_REFUSED_FLOWS,
	EDGE_UNTRACKED, /* segments of flows for which there was no room */
	EDGE_LEARNT,    /* flows that were older than the table */
	EDGE_IMPLAUSIBLE,
	EDGE_MALFORMED, /* refused: some kernels take it and others do not */
	EDGE_SLOW_PATH,
	EDGE_ODD,
	EDGE_TOO_BIG, /* for a member's link: the client is told, so often at most */
	EDGE_COUNTERS
};

enum transit_counter {
	TRANSIT_INTO,       /* from outside into a string */
	TRANSIT_OUT,        /* from a string to the outside */
	TRANSIT_NEW,        /* flows that got a string here */
	TRANSIT_LEARNED,    /* flows that the other edge had put on a string */
	TRANSIT_FOLLOWED,   /* flows that the other edge has moved */
	TRANSIT_MOVED,      /* flows whose string is dead */
	TRANSIT_RETURNED,   /* flows whose first string is back */
	TRANSIT_FULL,       /* packets of flows that find no room in the table */
	TRANSIT_STATELESS,  /* fragments and what has no ports */
	TRANSIT_QUOTED,     /* ICMP errors that follow the flow they quote */
	TRANSIT_NO_STRING,
	TRANSIT_SLOW_PATH,
	TRANSIT_ODD,
	TRANSIT_TOO_BIG, /* for their string: the sender is told, so often at most */
	TRANSIT_COUNTERS
};

enum spread_counter {
	SPREAD_REDIRECTED,
	SPREAD_NEW_FLOWS,
	SPREAD_ESTABLISHED,
	SPREAD_LEARNT,
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

enum bind_counter {
	BIND_BINDS,
	BIND_COUNTERS
};

#endif
