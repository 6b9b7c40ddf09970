// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * One edge of a transit group: every flow that the routes lead into the strings
 * is kept on one of them, in both directions, and moved when that one dies. The
 * routes say whether a packet goes through the strings; the table says through
 * which. All of it lives on when the daemon dies.
 */
#include "layout.h"
#define COUNTERS TRANSIT_COUNTERS
#include "capture.h"
#include "csum.h"
#include "group.h"
#include "maps.h"
#include "recover.h"
#include "regulate.h"
#include "toobig.h"
#include "transit_key.h"

#define AF_INET 2
#define AF_INET6 10
#define ETH_ADDRESSES 12
#define PACKET_HOST 0 /* linux/if_packet.h */
/* Age at which a flow's stamp is written again: not for every packet, so that
 * its cache line stays shared. */
#define STAMP_NS 100000000ull

/* Never LRU: at the limit, new flows go by their hash alone, which keeps them on
 * one string as long as the table stays, and old flows are not harmed (law
 * L6). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TRANSIT_FLOWS_DEFAULT);
	__type(key, struct transit_key);
	__type(value, struct transit_flow);
} transit_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct transit_table);
} transit_table SEC(".maps");

/* Counters per string: first what went in, then what came out. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * STRINGS_MAX);
	__type(key, __u32);
	__type(value, struct transit_traffic);
} transit_traffic SEC(".maps");

static __always_inline struct transit_table *table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&transit_table, &zero);
}

static __always_inline int is_usable(const struct transit_table *t, __u32 string)
{
	/* One word, read last: this is what fences a string. */
	return t->armed && string < STRINGS_MAX && (*(volatile __u32 *)&t->usable >> string & 1);
}

static __always_inline __u32 string_at(const struct transit_table *t, __u32 ifindex)
{
	for (__u32 i = 0; i < STRINGS_MAX; i++)
		if (t->strings[i].ifindex == ifindex)
			return i;
	return NO_STRING;
}

static __always_inline void count_traffic(struct __sk_buff *skb, __u32 string, __u32 out)
{
	__u32 index = 2 * string + out;
	struct transit_traffic *traffic = bpf_map_lookup_elem(&transit_traffic, &index);

	if (!traffic)
		return;
	traffic->packets += 1;
	traffic->bytes += skb->len - ETH_HLEN;
}

/* Chooses the string of a flow that has none, or a dead one. */
static __always_inline __u32 choose(const struct transit_table *t, const struct transit_key *key)
{
	__u32 string = t->slots[hash_of(key, t->seed) % TRANSIT_SLOTS];

	if (is_usable(t, string))
		return string;
	/* The table is being replaced at this moment: take any string that is
	 * alive. */
	for (__u32 i = 0; i < STRINGS_MAX; i++)
		if (is_usable(t, i))
			return i;
	return NO_STRING;
}

/* Notes a packet of the flow from one side: `came` is TRANSIT_FROM_OUTSIDE or
 * _STRING. */
static __always_inline void touch(struct transit_flow *flow, const struct packet *p, __u8 came)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	__u8 flags = flow->flags;

	if (p->protocol == IPPROTO_TCP) {
		/* The tuple may be on its way to a new life. */
		if ((p->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
			flags = 0;
		if (p->flags & TCP_FIN)
			flags |= came == TRANSIT_FROM_OUTSIDE ? TRANSIT_OUTSIDE_FIN : TRANSIT_STRING_FIN;
		if (p->flags & TCP_RST)
			flags |= TRANSIT_RESET;
	}
	flags |= came;
	if (flags != flow->flags)
		flow->flags = flags;
	if (now - flow->seen_ns > STAMP_NS)
		flow->seen_ns = now;
}

static __always_inline void start_flow(const struct transit_key *key, const struct packet *p,
				       __u32 string, __u8 came, __u32 counter)
{
	struct transit_flow flow = {};

	flow.string = string;
	flow.home = string;
	touch(&flow, p, came);
	count(bpf_map_update_elem(&transit_flows, key, &flow, BPF_NOEXIST) ? TRANSIT_FULL : counter);
}

/* Only one edge brings flows back, or the two might swap them for ever. */
static __always_inline int goes_home(const struct transit_table *t,
				     const struct transit_flow *flow)
{
	__u32 wanted = TRANSIT_LEADS | TRANSIT_RETURN_ALL;

	return (t->flags & wanted) == wanted && flow->string != flow->home &&
	       is_usable(t, flow->home);
}

/* The string of a flow for a packet from outside. */
static __always_inline __u32 string_of(const struct transit_table *t, const struct transit_key *key,
				       const struct packet *p)
{
	struct transit_flow *flow = bpf_map_lookup_elem(&transit_flows, key);
	__u32 string;

	if (!flow) {
		string = choose(t, key);
		if (string != NO_STRING)
			start_flow(key, p, string, TRANSIT_FROM_OUTSIDE, TRANSIT_NEW);
		return string;
	}
	touch(flow, p, TRANSIT_FROM_OUTSIDE);
	if (goes_home(t, flow)) {
		flow->string = flow->home;
		count(TRANSIT_RETURNED);
		return flow->home;
	}
	string = flow->string;
	if (is_usable(t, string))
		return string;
	string = choose(t, key);
	if (string != NO_STRING) {
		flow->string = string;
		count(TRANSIT_MOVED);
	}
	return string;
}

/* Fragments and packets without ports go where their hash says; an ICMP error
 * goes the way of the flow that it is about. */
static __always_inline __u32 string_by_hash(const struct transit_table *t,
					    const struct transit_key *key, enum keyed how)
{
	struct transit_flow *flow = 0;

	if (how == KEYED_QUOTE)
		flow = bpf_map_lookup_elem(&transit_flows, key);
	count(flow ? TRANSIT_QUOTED : TRANSIT_STATELESS);
	return flow && is_usable(t, flow->string) ? flow->string : choose(t, key);
}

/* A packet from a string shows where the other edge has put its flow. The edge
 * that does not lead follows; the leading edge follows only if its own string
 * is dead. Packets that a dead string still delivers move nothing. */
static __always_inline void learn(const struct transit_table *t, const struct transit_key *key,
				  const struct packet *p, __u32 string)
{
	struct transit_flow *flow = bpf_map_lookup_elem(&transit_flows, key);

	if (!flow) {
		if (is_usable(t, string))
			start_flow(key, p, string, TRANSIT_FROM_STRING, TRANSIT_LEARNED);
		return;
	}
	touch(flow, p, TRANSIT_FROM_STRING);
	if (flow->string == string || !is_usable(t, string))
		return;
	if ((t->flags & TRANSIT_LEADS) && is_usable(t, flow->string))
		return;
	flow->string = string;
	count(TRANSIT_FOLLOWED);
}

/* The plain route of a packet that came in here. */
static __always_inline long route(struct __sk_buff *skb, const struct packet *p,
				  struct bpf_fib_lookup *fib, __u32 flags)
{
	fib->ifindex = skb->ifindex;
	fib->l4_protocol = p->protocol;
	fib->sport = bpf_htons(p->source_port);
	fib->dport = bpf_htons(p->target_port);
	if (p->v6) {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, p->source, 16);
		__builtin_memcpy(fib->ipv6_dst, p->target, 16);
	} else {
		fib->family = AF_INET;
		__builtin_memcpy(&fib->ipv4_src, p->source + 12, 4);
		__builtin_memcpy(&fib->ipv4_dst, p->target + 12, 4);
	}
	return bpf_fib_lookup(skb, fib, sizeof(*fib), flags);
}

/* The string into which the routes lead this packet, if to any. One that is too long
 * for it may fit into that of its flow. A global function, whose stack is its own. */
__attribute__((noinline)) __u32 routed_string(struct __sk_buff *skb, const struct packet *p)
{
	struct transit_table *t = table();
	struct bpf_fib_lookup fib = {};
	long found;

	if (!t || !p)
		return NO_STRING;
	found = route(skb, p, &fib, BPF_FIB_LOOKUP_SKIP_NEIGH);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return NO_STRING;
	return string_at(t, fib.ifindex);
}

/* Whether an ICMP error is made here for the packet: for no ICMP error, and no
 * fragment (RFC 1812 §4.3.2.7, RFC 4443 §2.4; the first one is not told apart). */
static __always_inline int may_be_answered(struct __sk_buff *skb, const struct packet *p,
					   enum parsed what, enum keyed how)
{
	if (what == PARSED_TCP)
		return 1;
	return what == PARSED_IP && how != KEYED_QUOTE && !is_extension(p->protocol) &&
	       is_whole(skb, p);
}

/* Makes the packet the answer that its sender may send at most `mtu`. */
__attribute__((noinline)) int make_answer(struct __sk_buff *skb, const struct packet *p,
					  __u32 mtu)
{
	struct look k = {};

	if (!p)
		return -1;
	__builtin_memcpy(k.key.client, p->source, 16);
	__builtin_memcpy(k.key.server, p->target, 16);
	k.v6 = p->v6;
	k.protocol = p->protocol;
	k.l4 = p->l4;
	if (has_ports(p->protocol))
		k.headers = p->l4 - ETH_HLEN;
	return make_too_big(skb, &k, mtu);
}

/* The packet is too long for its flow's string, and the stack would cut or answer it
 * by another one, whose middleboxes know nothing of the flow. What may not be answered
 * is the stack's all the same: its sender would never learn of it. */
static __always_inline int answer_too_long(struct __sk_buff *skb, const struct packet *p,
					   enum parsed what, enum keyed how, __u32 mtu)
{
	if (!mtu) /* the string's interface is gone */
		return steal(TRANSIT_ODD);
	if (!may_be_answered(skb, p, what, how)) {
		count(TRANSIT_SLOW_PATH);
		return PASS;
	}
	count(TRANSIT_TOO_BIG);
	if (!may_answer())
		return TC_ACT_STOLEN;
	capture(skb, CAPTURE_ANSWERED);
	if (make_answer(skb, p, mtu))
		return steal(TRANSIT_ODD);
	return bpf_redirect(skb->ifindex, 0);
}

/* Every string is dead: the packet is lost, but the cache sees it. */
static __always_inline int drop(struct __sk_buff *skb, const struct packet *p, enum parsed what)
{
	if (what == PARSED_TCP && !decrement_ttl(skb, p))
		recover_see(skb, p, RECOVER_INTO | NO_STRING << RECOVER_WAY_SHIFT);
	capture(skb, CAPTURE_DROPPED);
	return steal(TRANSIT_NO_STRING);
}

static __always_inline int send_into(struct __sk_buff *skb, const struct packet *p,
				     enum parsed what, enum keyed how,
				     const struct transit_table *t, __u32 string)
{
	const struct string_row *row = &t->strings[string & (STRINGS_MAX - 1)];
	struct bpf_redir_neigh hop = {};
	__u32 ifindex = row->ifindex, mtu;

	if (p->v6 && (row->families & STRING_V6)) {
		hop.nh_family = AF_INET6;
		__builtin_memcpy(hop.ipv6_nh, row->next_hop6, 16);
	} else if (!p->v6 && (row->families & STRING_V4)) {
		hop.nh_family = AF_INET;
		__builtin_memcpy(&hop.ipv4_nh, row->next_hop4, 4);
	} else {
		count(TRANSIT_SLOW_PATH);
		return PASS;
	}
	if (is_too_long(skb, p, ifindex, &mtu)) {
		if (string != routed_string(skb, p))
			return answer_too_long(skb, p, what, how, mtu);
		/* The stack cuts it, or sends the ICMP error. */
		count(TRANSIT_SLOW_PATH);
		return PASS;
	}
	if (decrement_ttl(skb, p))
		return steal(TRANSIT_ODD);
	if (what == PARSED_TCP) {
		regulate_data(skb, p, string);
		recover_see(skb, p, RECOVER_INTO | string << RECOVER_WAY_SHIFT);
	}
	count(TRANSIT_INTO);
	count_traffic(skb, string, 0);
	capture(skb, CAPTURE_REDIRECTED);
	return bpf_redirect_neigh(ifindex, &hop, sizeof(hop), 0);
}

/* Answers where this packet would go: the mark says it, and nothing is counted,
 * remembered or sent (`BPF_PROG_TEST_RUN` carries no redirect out). */
static __always_inline int trace(struct __sk_buff *skb, const struct packet *p,
				 const struct transit_table *t, const struct transit_key *key,
				 enum parsed what, enum keyed how)
{
	struct transit_flow *flow = 0;
	__u32 string, ifindex, mtu;

	if (how != KEYED_PAIR)
		flow = bpf_map_lookup_elem(&transit_flows, key);
	if (flow && goes_home(t, flow))
		string = flow->home;
	else if (flow && is_usable(t, flow->string))
		string = flow->string;
	else
		string = choose(t, key);
	skb->mark = TRACE_BYTE << 24 | (flow ? TRACE_FLOW : TRACE_NEW) << 8 | string;
	if (string == NO_STRING)
		return TC_ACT_STOLEN;
	ifindex = t->strings[string & (STRINGS_MAX - 1)].ifindex;
	if (is_too_long(skb, p, ifindex, &mtu)) {
		/* As send_into and answer_too_long do; an answer is not made. */
		if (string == routed_string(skb, p) || (mtu && !may_be_answered(skb, p, what, how)))
			return PASS;
		return TC_ACT_STOLEN;
	}
	return decrement_ttl(skb, p) ? TC_ACT_STOLEN : bpf_redirect(ifindex, 0);
}

SEC("classifier")
int transit_outside(struct __sk_buff *skb)
{
	struct transit_table *t = table();
	struct transit_key key = {};
	struct packet p = {};
	enum parsed what;
	enum keyed how;
	__u32 string;
	int traced = skb->mark == TRACE_MARK;

	if (!t || (skb->pkt_type != PACKET_HOST && !traced))
		return PASS;
	what = parse(skb, &p);
	/* The stack answers with ICMP Time Exceeded. */
	if (what == PARSED_OTHER || p.ttl <= 1 || routed_string(skb, &p) == NO_STRING)
		return PASS;
	how = key_of(skb, &p, what, &key);
	if (traced)
		return trace(skb, &p, t, &key, what, how);
	string = how == KEYED_FLOW ? string_of(t, &key, &p) : string_by_hash(t, &key, how);
	if (string == NO_STRING)
		return drop(skb, &p, what);
	return send_into(skb, &p, what, how, t, string);
}

SEC("classifier")
int transit_string(struct __sk_buff *skb)
{
	struct transit_table *t = table();
	struct bpf_fib_lookup fib = {};
	struct transit_key key = {};
	struct packet p = {};
	__u8 addresses[ETH_ADDRESSES];
	enum parsed what;
	__u32 string, mtu;
	long found;

	if (!t || skb->pkt_type != PACKET_HOST)
		return PASS;
	string = string_at(t, skb->ifindex);
	what = parse(skb, &p);
	if (string == NO_STRING || what == PARSED_OTHER)
		return PASS;
	found = route(skb, &p, &fib, 0);
	/* For this host, or for nobody, or back into a string. */
	if (found < 0 || found == BPF_FIB_LKUP_RET_NOT_FWDED ||
	    string_at(t, fib.ifindex) != NO_STRING)
		return PASS;
	if (key_of(skb, &p, what, &key) == KEYED_FLOW)
		learn(t, &key, &p, string);
	count_traffic(skb, string, 1);
	if (what == PARSED_TCP) {
		if (regulate_ack(skb, &p))
			return steal(TRANSIT_ODD);
		if (recover_see(skb, &p, RECOVER_OUT | string << RECOVER_WAY_SHIFT))
			return TC_ACT_STOLEN;
	}
	/* Of a frame of many segments the lookup does not check the length. */
	if (p.ttl <= 1 || found != BPF_FIB_LKUP_RET_SUCCESS ||
	    is_too_long(skb, &p, fib.ifindex, &mtu)) {
		count(TRANSIT_SLOW_PATH);
		return PASS;
	}
	__builtin_memcpy(addresses, fib.dmac, 6);
	__builtin_memcpy(addresses + 6, fib.smac, 6);
	if (decrement_ttl(skb, &p) || bpf_skb_store_bytes(skb, 0, addresses, ETH_ADDRESSES, 0))
		return steal(TRANSIT_ODD);
	count(TRANSIT_OUT);
	return bpf_redirect(fib.ifindex, 0);
}

char licence[] SEC("license") = "Dual MIT/GPL";
