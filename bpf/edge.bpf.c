// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The edge: forwards clients' packets to the current member and copies them to
 * the backup, lets nobody but the current member speak for a service address
 * (the fence), and keeps per flow the bounds that promotion needs. All of it
 * lives on when the daemon dies.
 */
#include "layout.h"
#define COUNTERS EDGE_COUNTERS
#include "csum.h"
#include "maps.h"
#include "capture.h"
#include "claims.h"
#include "recover.h"
#include "sound.h"
#include "toobig.h"

#define AF_INET 2
#define AF_INET6 10
#define ETH_ADDRESSES 12

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_fence);
} edge_fence SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct edge_member);
} edge_members SEC(".maps");

/* Never LRU: a full table refuses new flows and keeps the old (law L6). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EDGE_FLOWS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, struct edge_flow);
} edge_flows SEC(".maps");

static __always_inline __u32 current_member(void)
{
	__u32 zero = 0;
	struct edge_fence *fence = bpf_map_lookup_elem(&edge_fence, &zero);

	return fence && fence->armed ? *(volatile __u32 *)&fence->current : NO_MEMBER;
}

static __always_inline struct edge_member *member(__u32 index)
{
	struct edge_member *m = bpf_map_lookup_elem(&edge_members, &index);

	return m && m->ifindex ? m : 0;
}

static __always_inline int address_frame(struct __sk_buff *skb, const struct edge_member *m)
{
	__u8 addresses[ETH_ADDRESSES];

	__builtin_memcpy(addresses, m->mac, 6);
	__builtin_memcpy(addresses + 6, m->port_mac, 6);
	return bpf_skb_store_bytes(skb, 0, addresses, ETH_ADDRESSES, 0);
}

/* Copies what carries information for the tap: payload, SYN, FIN and RST. */
static __always_inline void copy_to_backups(struct __sk_buff *skb, const struct packet *p,
					    __u32 current)
{
	if (!p->payload && !(p->flags & (TCP_SYN | TCP_FIN | TCP_RST)))
		return;
	for (__u32 i = 0; i < MEMBERS_MAX; i++) {
		struct edge_member *m = member(i);

		if (i == current || !m || !m->tap)
			continue;
		if (address_frame(skb, m) || bpf_clone_redirect(skb, m->ifindex, 0))
			count(EDGE_COPY_FAILED);
		else
			count(EDGE_COPIED);
	}
}

/* Bounds a client's segment, and says whether its server's kernel could take it.
 * Everything sent to a client passes here first, so a segment that acknowledges
 * more (RFC 9293 §3.10.7.4), or that begins behind the promised window, is
 * forged. */
static __always_inline int track_client(const struct packet *p)
{
	struct conn_key key = {};
	struct edge_flow *flow;

	__builtin_memcpy(key.server, p->target, 16);
	__builtin_memcpy(key.client, p->source, 16);
	key.server_port = p->target_port;
	key.client_port = p->source_port;
	flow = bpf_map_lookup_elem(&edge_flows, &key);
	if (!flow)
		return 1;
	flow->seen_ns = bpf_ktime_get_coarse_ns();
	if (p->flags & TCP_SYN) /* the tuple may be on its way to a new life */
		return 1;
	if (!(flow->flags & FLOW_LEARNT) &&
	    (AFTER(p->seq, flow->right_edge) ||
	     ((p->flags & TCP_ACK) && AFTER(p->ack, flow->seq_end))))
		return 0;
	/* A segment that begins before the window may still bring new bytes. */
	if (AFTER(flow->server_ack, p->seq + 1))
		return 1;
	if (p->flags & TCP_RST) {
		/* Any other SYN is answered with a challenge (RFC 5961 §3.2), and
		 * the connection goes on. */
		if (p->seq == flow->server_ack)
			flow->flags |= FLOW_RESET;
		return 1;
	}
	if (!(p->flags & TCP_ACK))
		return 1;
	if (p->flags & TCP_FIN)
		flow->flags |= FLOW_CLIENT_FIN;
	flow->flags |= FLOW_ESTABLISHED;
	if (AFTER(p->ack, flow->client_ack))
		flow->client_ack = p->ack;
	return 1;
}

/* What every link of an IPv4 host carries (RFC 791 §3.1), and every one of IPv6. */
#define ALWAYS_FITS 576

/* The smallest link that this packet would go through, if it does not fit; 0: it does. A
 * client that is told the backup's has nothing to learn in a takeover. */
static __always_inline __u32 too_big_for(struct __sk_buff *skb, const struct packet *p,
					 __u32 current)
{
	__u32 smallest = 0;

	if (p->l3_len <= ALWAYS_FITS)
		return 0;
	for (__u32 i = 0; i < MEMBERS_MAX; i++) {
		struct edge_member *m = member(i);
		__u32 mtu;

		if (!m || (i != current && !m->tap))
			continue;
		if (is_too_long(skb, p, m->ifindex, &mtu) && mtu && (!smallest || mtu < smallest))
			smallest = mtu;
	}
	return smallest;
}

/* As a router would (RFC 1191 §4): the members' links are a part of the path. */
static __always_inline int answer_too_big(struct __sk_buff *skb, const struct packet *p,
					  __u32 mtu)
{
	struct look k = {};

	count(EDGE_TOO_BIG);
	if (!may_answer())
		return TC_ACT_STOLEN;
	__builtin_memcpy(k.key.client, p->source, 16);
	__builtin_memcpy(k.key.server, p->target, 16);
	k.v6 = p->v6;
	k.protocol = IPPROTO_TCP;
	k.l4 = p->l4;
	k.headers = p->l4 - ETH_HLEN + p->tcp_header;
	capture(skb, CAPTURE_ANSWERED);
	if (make_too_big(skb, &k, mtu))
		return steal(EDGE_ODD);
	return bpf_redirect(skb->ifindex, 0);
}

/* A packet that only asks is neither copied, counted nor remembered. */
static __always_inline int answer_trace(struct __sk_buff *skb, const struct packet *p)
{
	__u32 current = current_member();
	struct edge_member *to = member(current);

	skb->mark = TRACE_BYTE << 24 | TRACE_NEW << 8 | (to ? current & 0xff : 0xff);
	if (p->ttl <= 1 && to)
		return PASS;
	if (!to || decrement_ttl(skb, p) || address_frame(skb, to))
		return TC_ACT_STOLEN;
	return bpf_redirect(to->ifindex, 0);
}

SEC("classifier")
int edge_client(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed what = parse(skb, &p);
	struct edge_member *to;
	__u32 current, mtu;

	if (skb->mark == TRACE_MARK && what == PARSED_TCP && is_service(p.target, p.target_port))
		return answer_trace(skb, &p);
	if (what == PARSED_ODD && is_address(p.target))
		return steal(EDGE_ODD);
	if (what != PARSED_TCP || !is_service(p.target, p.target_port))
		return PASS;
	current = current_member();
	to = member(current);
	if (p.ttl <= 1) /* the stack answers with ICMP Time Exceeded */
		return to ? PASS : steal(EDGE_CLOSED);
	if (!is_sound(skb, &p))
		return steal(EDGE_MALFORMED);
	mtu = too_big_for(skb, &p, current);
	if (mtu)
		return answer_too_big(skb, &p, mtu);
	if (decrement_ttl(skb, &p) || ((p.flags & TCP_URG) && clear_urgent(skb, &p)))
		return steal(EDGE_ODD);
	recover_see(skb, &p, RECOVER_INTO);
	/* The server's kernel answers what it cannot take with an ACK (RFC 5961 §5);
	 * a backup, which knows less, might take it for the client's. */
	if (track_client(&p))
		copy_to_backups(skb, &p, current);
	else
		count(EDGE_IMPLAUSIBLE);
	/* Nobody answers now, but whoever comes next has what the client
	 * said. */
	if (!to) {
		capture(skb, CAPTURE_DROPPED);
		return steal(EDGE_CLOSED);
	}
	if (address_frame(skb, to))
		return steal(EDGE_ODD);
	capture(skb, CAPTURE_REDIRECTED);
	count(EDGE_FORWARDED_IN);
	return bpf_redirect(to->ifindex, 0);
}

/* Returns 0 if the table is full. */
static __always_inline int start_flow(const struct packet *p, const struct tcp_options *o,
				      const struct conn_key *key)
{
	struct edge_flow flow = {};

	flow.seen_ns = bpf_ktime_get_coarse_ns();
	flow.iss = p->seq;
	flow.seq_end = p->seq + 1;
	flow.server_ack = p->ack;
	flow.right_edge = p->ack + p->window; /* unscaled on a SYN */
	flow.tsval = o->tsval;
	flow.client_ack = p->seq;
	flow.wscale = o->wscale;
	return bpf_map_update_elem(&edge_flows, key, &flow, BPF_ANY) == 0;
}

/* Learns a flow that is older than this table, for example after the edge's host
 * was started again. It must not cost a connection its room. Returns 0 if there
 * is none. */
static __always_inline int learn_flow(const struct packet *p, const struct tcp_options *o,
				      const struct conn_key *key)
{
	struct edge_flow flow = {};

	flow.seen_ns = bpf_ktime_get_coarse_ns();
	flow.seq_end = p->seq + p->payload;
	flow.server_ack = p->ack;
	flow.right_edge = p->ack + p->window;
	flow.tsval = o->tsval;
	flow.client_ack = p->seq;
	flow.flags = FLOW_LEARNT | FLOW_ESTABLISHED;
	flow.wscale = NO_SCALE;
	return bpf_map_update_elem(&edge_flows, key, &flow, BPF_NOEXIST) == 0;
}

static __always_inline void track_server(struct edge_flow *flow, const struct packet *p,
					 const struct tcp_options *o)
{
	__u32 scale = flow->wscale == NO_SCALE ? 0 : flow->wscale & 15;
	__u32 seq_end = p->seq + p->payload + (p->flags & TCP_FIN ? 1 : 0), edge;

	flow->seen_ns = bpf_ktime_get_coarse_ns();
	if (p->flags & TCP_FIN)
		flow->flags |= FLOW_SERVER_FIN;
	if (p->flags & TCP_RST) {
		flow->flags |= FLOW_RESET;
		return;
	}
	/* The number of an empty segment says nothing about what went by: a dead
	 * server's kernel counts the FIN that the gate withheld. */
	if (seq_end != p->seq && AFTER(seq_end, flow->seq_end))
		flow->seq_end = seq_end;
	if (o->has_ts && AFTER(o->tsval, flow->tsval))
		flow->tsval = o->tsval;
	if (!(p->flags & TCP_ACK))
		return;
	edge = p->ack + ((__u32)p->window << scale);
	if (AFTER(edge, flow->right_edge))
		flow->right_edge = edge;
	if (AFTER(p->ack, flow->server_ack))
		flow->server_ack = p->ack;
}

/* Returns 0 if a new flow finds no room. */
static __always_inline int track(struct __sk_buff *skb, const struct packet *p)
{
	struct conn_key key = {};
	struct tcp_options o = {};
	struct edge_flow *flow;

	__builtin_memcpy(key.server, p->source, 16);
	__builtin_memcpy(key.client, p->target, 16);
	key.server_port = p->source_port;
	key.client_port = p->target_port;
	flow = bpf_map_lookup_elem(&edge_flows, &key);
	if (p->tcp_header > TCP_HEADER)
		options_of(skb, p, &o);
	else
		o.wscale = NO_SCALE;
	if ((p->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)) {
		if (!flow || flow->iss != p->seq)
			return start_flow(p, &o, &key);
		flow->seen_ns = bpf_ktime_get_coarse_ns();
		return 1;
	}
	if (flow)
		track_server(flow, p, &o);
	else if ((p->flags & (TCP_RST | TCP_FIN | TCP_ACK)) == TCP_ACK)
		count(learn_flow(p, &o, &key) ? EDGE_LEARNT : EDGE_UNTRACKED);
	return 1;
}

/* Size on the wire of the largest segment, for the MTU check. */
static __always_inline __u16 segment_len(struct __sk_buff *skb, const struct packet *p)
{
	__u32 segment = segment_bytes(skb, p), len = segment ? segment : p->l3_len;

	return len > LENGTH_MAX ? LENGTH_MAX : len;
}

/* Routes as the stack would; whatever is not a plain success is left to it. */
static __always_inline int forward(struct __sk_buff *skb, const struct packet *p,
				   __u32 ifindex)
{
	struct bpf_fib_lookup fib = {};
	__u8 addresses[ETH_ADDRESSES];

	if (p->ttl <= 1)
		return PASS;
	fib.l4_protocol = IPPROTO_TCP;
	fib.sport = bpf_htons(p->source_port);
	fib.dport = bpf_htons(p->target_port);
	fib.tot_len = segment_len(skb, p);
	fib.ifindex = ifindex;
	if (p->v6) {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, p->source, 16);
		__builtin_memcpy(fib.ipv6_dst, p->target, 16);
	} else {
		fib.family = AF_INET;
		__builtin_memcpy(&fib.ipv4_src, p->source + 12, 4);
		__builtin_memcpy(&fib.ipv4_dst, p->target + 12, 4);
	}
	if (bpf_fib_lookup(skb, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS) {
		count(EDGE_SLOW_PATH);
		return PASS;
	}
	__builtin_memcpy(addresses, fib.dmac, 6);
	__builtin_memcpy(addresses + 6, fib.smac, 6);
	if (decrement_ttl(skb, p) || bpf_skb_store_bytes(skb, 0, addresses, ETH_ADDRESSES, 0))
		return steal(EDGE_ODD);
	count(EDGE_FORWARDED_OUT);
	return bpf_redirect(fib.ifindex, 0);
}

SEC("classifier")
int edge_member(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed what = parse(skb, &p);
	struct edge_member *speaker;

	if (!claims_service(skb, &p, what))
		return PASS;
	speaker = member(current_member());
	if (!speaker || speaker->ifindex != skb->ifindex) {
		capture(skb, CAPTURE_DROPPED);
		return steal(EDGE_FENCED);
	}
	if (what != PARSED_TCP || !is_service(p.source, p.source_port))
		return PASS;
	/* No urgent pointer here either, as in what is sent again after a
	 * takeover. */
	if ((p.flags & TCP_URG) && clear_urgent(skb, &p))
		return steal(EDGE_ODD);
	if (!track(skb, &p))
		return steal(EDGE_REFUSED_FLOWS);
	if (recover_see(skb, &p, RECOVER_OUT))
		return TC_ACT_STOLEN;
	return forward(skb, &p, speaker->l3_ifindex);
}

char licence[] SEC("license") = "Dual MIT/GPL";
