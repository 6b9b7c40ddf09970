/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Caps the windows that acknowledgements advertise, so that the senders on this
 * side of the edge share what the cluster can carry (PFRC, thesis §6.2). The
 * controller in user space sets the window; what it measures is counted here.
 * Window scales are learned from the handshakes even while it is off: without
 * them a flow cannot be touched later.
 */
#ifndef HOLDFAST_REGULATE_H
#define HOLDFAST_REGULATE_H

#include "capture.h"
#include "csum.h"
#include "maps.h"

/* Multiple of what it sends in a round trip that a sender is promised room for:
 * it may double that in the next one, while half of this one is not over
 * yet. */
#define PROMISE_TURNS 3
/* Smallest promise, in bytes: what receivers promise at first. */
#define PROMISE_MIN 65536
#define NS_PER_US 1000

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* struct regulate_control, as one word */
} regulate_control SEC(".maps");

/* Never LRU: a full table leaves new flows alone and keeps the old (law L6). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REGULATE_FLOWS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, struct regulate_flow);
} regulate_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STRINGS_MAX);
	__type(key, __u32);
	__type(value, struct regulate_string);
} regulate_strings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct regulate_count);
} regulate_counts SEC(".maps");

static __always_inline struct regulate_control regulate_now(void)
{
	union {
		__u64 word;
		struct regulate_control control;
	} now = {};
	__u32 zero = 0;
	__u64 *word = bpf_map_lookup_elem(&regulate_control, &zero);

	if (word)
		now.word = *(volatile __u64 *)word;
	return now.control;
}

static __always_inline void regulate_counted(int clamped)
{
	__u32 zero = 0;
	struct regulate_count *c = bpf_map_lookup_elem(&regulate_counts, &zero);

	if (c && clamped)
		c->clamped += 1;
	else if (c)
		c->refused += 1;
}

static __always_inline void regulate_key(struct conn_key *key, const struct packet *p, int near)
{
	__builtin_memcpy(key->client, near ? p->source : p->target, 16);
	__builtin_memcpy(key->server, near ? p->target : p->source, 16);
	key->client_port = near ? p->source_port : p->target_port;
	key->server_port = near ? p->target_port : p->source_port;
}

/* The window scale that a SYN or SYN-ACK offers (RFC 7323 §2.2). A function of its own,
 * as the next one is: what they have on the stack is not there at the same time. */
__attribute__((noinline)) int regulate_scale(struct __sk_buff *skb, const struct packet *p)
{
	struct tcp_options o = {};

	if (!p || p->tcp_header <= TCP_HEADER || p->tcp_header > TCP_HEADER + OPTIONS_MAX)
		return NO_SCALE;
	read_options(skb, p->l4 + TCP_HEADER, p->tcp_header - TCP_HEADER, &o);
	return o.wscale;
}

/* Enters a flow of which nothing is known yet. */
__attribute__((noinline)) int regulate_begin(const struct conn_key *key)
{
	struct regulate_flow fresh = {};

	if (!key)
		return 1;
	fresh.seen_ns = bpf_ktime_get_coarse_ns();
	fresh.near_scale = NO_SCALE;
	fresh.far_scale = NO_SCALE;
	return bpf_map_update_elem(&regulate_flows, key, &fresh, BPF_ANY) != 0;
}

/* Learns the window scale of one side from its handshake. A SYN begins a new life of
 * the tuple. A global function, proved once. */
__attribute__((noinline)) int regulate_learn(struct __sk_buff *skb, const struct packet *p, int near)
{
	struct conn_key key = {};
	struct regulate_flow *flow;
	__u8 scale;

	if (!p)
		return 1;
	regulate_key(&key, p, near);
	scale = regulate_scale(skb, p);
	flow = bpf_map_lookup_elem(&regulate_flows, &key);
	if (!flow || !(p->flags & TCP_ACK)) {
		/* A SYN-ACK alone is half of what must be known. */
		if (regulate_begin(&key)) {
			regulate_counted(0);
			return 0;
		}
		flow = bpf_map_lookup_elem(&regulate_flows, &key);
		if (!flow)
			return 0;
	}
	flow->seen_ns = bpf_ktime_get_coarse_ns();
	if (near) {
		flow->near_scale = scale;
		flow->flags |= REGULATE_NEAR_SEEN;
		flow->sent_end = p->seq + 1;
		flow->turn_from = p->seq + 1;
	} else {
		flow->turn_ns = bpf_ktime_get_ns();
		flow->far_scale = scale;
		flow->flags |= REGULATE_FAR_SEEN;
	}
	return 0;
}

/* Notes how far the sender has come, and how much it sends in a round trip from
 * here to it and back: its answer to the handshake tells how long that
 * takes. */
static __always_inline void regulate_sent(struct regulate_flow *flow, const struct packet *p)
{
	__u32 end = p->seq + p->payload, bytes;
	__u64 now;

	if (!flow->turn_us) {
		if (!flow->turn_ns)
			return;
		/* The coarse clock may be a tick behind, which only makes turns longer. */
		flow->turn_us = 1 + (bpf_ktime_get_ns() - flow->turn_ns) / NS_PER_US;
	}
	if (!p->payload)
		return;
	now = bpf_ktime_get_coarse_ns();
	if ((__s64)(now - flow->turn_ns) > (__s64)flow->turn_us * NS_PER_US) {
		bytes = flow->sent_end - flow->turn_from;
		flow->turn_bytes -= flow->turn_bytes / 8;
		if (bytes > flow->turn_bytes)
			flow->turn_bytes = bytes;
		flow->turn_from = flow->sent_end;
		flow->turn_ns = now;
		flow->seen_ns = now;
	}
	if (AFTER(end, flow->sent_end))
		flow->sent_end = end;
}

/* A packet of a sender on this side goes into a string. */
static __always_inline void regulate_data(struct __sk_buff *skb, const struct packet *p,
					  __u32 string)
{
	struct regulate_control now = regulate_now();
	struct regulate_string *s;
	struct regulate_flow *flow;
	struct conn_key key = {};

	if (p->flags & TCP_SYN)
		regulate_learn(skb, p, 1);
	if (!now.window_bytes && !(p->flags & (TCP_FIN | TCP_RST)))
		return;
	regulate_key(&key, p, 1);
	flow = bpf_map_lookup_elem(&regulate_flows, &key);
	if (flow && p->flags & TCP_FIN)
		flow->flags |= REGULATE_NEAR_FIN;
	if (flow && p->flags & TCP_RST)
		flow->flags |= REGULATE_RESET;
	if (flow && now.window_bytes)
		regulate_sent(flow, p);
	s = bpf_map_lookup_elem(&regulate_strings, &string);
	if (!s || !p->payload)
		return;
	s->bytes += skb->len;
	if (!flow)
		return;
	if (flow->flags & REGULATE_FREE)
		s->free_bytes += skb->len;
	if (flow->interval != now.interval) {
		flow->interval = now.interval;
		flow->seen_ns = bpf_ktime_get_coarse_ns();
		s->flows += 1;
		if (flow->flags & REGULATE_FREE)
			s->free_flows += 1;
	}
}

/* How much a receiver need promise for the next round trip. An unused promise
 * could not be taken back when capacity is lost. */
static __always_inline __u32 regulate_room(const struct regulate_flow *flow, __u32 ack)
{
	__u32 bytes = flow->sent_end - flow->turn_from, room = PROMISE_MIN;

	if (!flow->turn_us)
		return REGULATE_UNCAPPED;
	if (bytes < flow->turn_bytes)
		bytes = flow->turn_bytes;
	if (bytes > PROMISE_MIN / PROMISE_TURNS)
		room = bytes > REGULATE_UNCAPPED / 2 / PROMISE_TURNS ? REGULATE_UNCAPPED / 2 :
								       PROMISE_TURNS * bytes;
	return AFTER(flow->sent_end, ack) ? room + (flow->sent_end - ack) : room;
}

/* What the window field may say, and what the far side has then promised: W >>
 * scale, rounded up; never 0 where it was not, never more than it was, and the
 * right edge never moves left (law L4; RFC 7323 §2.4). */
static __always_inline __u32 regulate_window(struct regulate_flow *flow, __u32 ack, __u32 field,
					     __u32 scale, struct regulate_control now)
{
	__u32 unit = 1u << scale, offered = field << scale, allowed = offered, room, edge;
	__s32 promised;

	if (flow->session != now.session) {
		/* Earlier promises are not known: this one passes. */
		flow->right_edge = ack + offered;
		flow->session = now.session;
		flow->flags |= REGULATE_FREE;
		return field;
	}
	if (now.window_bytes < allowed)
		allowed = now.window_bytes;
	room = regulate_room(flow, ack);
	if (room < allowed)
		allowed = room;
	promised = flow->right_edge - ack;
	/* A little more than allowed is used up within a round trip. */
	if (promised > 0 && (__u32)promised / 5 > now.window_bytes / 4)
		flow->flags |= REGULATE_FREE;
	else
		flow->flags &= ~REGULATE_FREE;
	if (promised > 0 && (__u32)promised > allowed)
		allowed = promised;
	if (allowed < offered)
		field = (allowed + unit - 1) >> scale;
	edge = ack + (field << scale);
	if (AFTER(edge, flow->right_edge))
		flow->right_edge = edge;
	return field;
}

/* An acknowledgement leaves the cluster for a sender on this side. Returns 0,
 * or -1 if the packet is spoilt and must be stolen. */
static __always_inline int regulate_ack(struct __sk_buff *skb, const struct packet *p)
{
	struct regulate_control now = regulate_now();
	struct regulate_flow *flow;
	struct conn_key key = {};
	__u32 scale, field;

	if (p->flags & TCP_SYN) {
		regulate_learn(skb, p, 0);
		return 0;
	}
	if (!now.window_bytes && !(p->flags & (TCP_FIN | TCP_RST)))
		return 0;
	regulate_key(&key, p, 0);
	flow = bpf_map_lookup_elem(&regulate_flows, &key);
	if (!flow)
		return 0;
	if (p->flags & TCP_FIN)
		flow->flags |= REGULATE_FAR_FIN;
	if (p->flags & TCP_RST)
		flow->flags |= REGULATE_RESET;
	if (!now.window_bytes || !(p->flags & TCP_ACK) || (p->flags & TCP_RST))
		return 0;
	if ((flow->flags & (REGULATE_NEAR_SEEN | REGULATE_FAR_SEEN)) !=
	    (REGULATE_NEAR_SEEN | REGULATE_FAR_SEEN))
		return 0;
	/* Both sides must have offered scaling, or neither scales. */
	scale = flow->near_scale == NO_SCALE || flow->far_scale == NO_SCALE ? 0 : flow->far_scale;
	if (scale > SCALE_MAX)
		return 0;
	field = regulate_window(flow, p->ack, p->window, scale, now);
	if (field >= p->window)
		return 0;
	if (set_tcp_half(skb, p, offsetof(struct tcphdr, window), bpf_htons(p->window),
			 bpf_htons(field)))
		return -1;
	regulate_counted(1);
	capture(skb, CAPTURE_CLAMPED);
	return 0;
}

#endif
