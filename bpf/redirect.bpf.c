// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The redirector of a spread group (HYDRANET), at the edge's client-facing
 * interfaces: packets for a service go to one of its host servers, encapsulated
 * or with another hardware address, all others go the plain way. What does not
 * fit is answered or, where that is not allowed, cut. All of it lives on when
 * the daemon dies.
 */
#include "layout.h"
#define COUNTERS SPREAD_COUNTERS
#include "capture.h"
#include "csum.h"
#include "group.h"
#include "maps.h"
#include "recover.h"
#include "spread.h"
#include "toobig.h"

#define AF_INET 2
#define AF_INET6 10
/* Most pieces of one packet: 9000 bytes cut to an MTU of 1280. */
#define PIECES_MAX 8
/* Mark of a copy that is to become piece `mark & 0xff` of its packet. */
#define PIECE_MARK 0x70696500u

#define ENCAP4 BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
#define ENCAP6 BPF_F_ADJ_ROOM_ENCAP_L3_IPV6

static __always_inline int drop(struct __sk_buff *skb, const struct handling *h, __u32 which)
{
	note(h, which);
	if (!h->traced)
		capture(skb, CAPTURE_DROPPED);
	return TC_ACT_STOLEN;
}

/* One hop less in the copy of the IP header's beginning (RFC 1141). */
static __always_inline void count_hop(struct look *k)
{
	__u32 word, sum;

	if (k->v6) {
		/* The hop limit is the last byte of its word, and more than
		 * 1. */
		k->start[1] = bpf_htonl(bpf_ntohl(k->start[1]) - 1);
		return;
	}
	word = bpf_ntohl(k->start[2]);
	/* The TTL is the high byte of its half word: the complement grows by the
	 * same amount. */
	sum = (word & 0xffff) + 0x100;
	sum += sum >> 16;
	k->start[2] = bpf_htonl((word & 0xffff0000) - 0x01000000 + (sum & 0xffff));
}

static __always_inline int wrap4(struct __sk_buff *skb, struct handling *h, struct look *k,
				 const struct spread_way *way, __u64 flags)
{
	__u32 length = k->l3_len + IPV4_HEADER;
	struct outer4 o;

	if (length > 0xffff)
		length = 0;
	o.ip[0] = bpf_htonl(0x45u << 24 | k->tos << 16 | length);
	/* A packet that may be cut needs an identification (RFC 6864 §4.1). */
	o.ip[1] = bpf_htonl(k->df ? IPV4_DF : bpf_get_prandom_u32() << 16);
	o.ip[2] = bpf_htonl(OUTER_TTL << 24 | IPPROTO_IPIP << 16);
	o.ip[3] = h->config->outer4 | (h->config->outer4_mask & h->source);
	o.ip[4] = *(__be32 *)(way->address + 12);
	o.ip[2] |= bpf_htonl(sum_header(o.ip));
	for (int i = 0; i < INNER4_BYTES / 4; i++)
		o.inner[i] = k->start[i];
	return encapsulate4(skb, &o, flags);
}

static __always_inline int wrap6(struct __sk_buff *skb, struct handling *h, struct look *k,
				 const struct spread_way *way, __u64 flags)
{
	const __be32 *to = (const __be32 *)way->address;
	struct outer6 o;

	o.ip[0] = bpf_htonl(6u << 28 | k->tos << 20);
	o.ip[1] = bpf_htonl((k->l3_len > 0xffff ? 0 : k->l3_len) << 16 | IPPROTO_IPV6 << 8 |
			    OUTER_TTL);
	for (int i = 0; i < 4; i++) {
		o.ip[2 + i] = h->config->outer6[i];
		o.ip[6 + i] = to[i];
	}
	o.ip[5] |= h->config->outer6_mask & h->source;
	for (int i = 0; i < INNER6_BYTES / 4; i++)
		o.inner[i] = k->start[i];
	return encapsulate6(skb, &o, flags);
}

static __always_inline int rewrite(struct __sk_buff *skb, struct handling *h, struct look *k,
				   const struct spread_way *way, __u32 layer2, __u64 flags4,
				   __u64 flags6)
{
	count_hop(k);
	if (layer2 && k->v6)
		return bpf_skb_store_bytes(skb, ETH_HLEN, k->start, INNER6_BYTES,
					   BPF_F_RECOMPUTE_CSUM);
	if (layer2)
		return bpf_skb_store_bytes(skb, ETH_HLEN, k->start, INNER4_BYTES, 0);
	return k->v6 ? wrap6(skb, h, k, way, flags6) : wrap4(skb, h, k, way, flags4);
}

/* Leaves only piece `piece` of an IPv4 packet without options; each piece has
 * `room` bytes with its header (RFC 791 §3.2). Copies for the other pieces are
 * made first and come by here again. */
static __always_inline int cut(struct __sk_buff *skb, struct look *k, __u32 room, __u32 piece)
{
	__u32 bytes = (room - IPV4_HEADER) & ~7u, all = k->l3_len - IPV4_HEADER;
	__u32 at = piece * bytes, left = at, length;
	__u16 fragment;
	struct iphdr ip;

	if (at >= all || room < IPV4_HEADER + 8)
		return -1;
	length = all - at < bytes ? all - at : bytes;
	/* The helper removes less than 4096 bytes at a time. */
	for (int i = 0; i < 4 && left; i++) {
		__u32 step = left > 4088 ? 4088 : left;

		if (bpf_skb_adjust_room(skb, -(__s32)step, BPF_ADJ_ROOM_NET, 0))
			return -1;
		left -= step;
	}
	if (left || bpf_skb_change_tail(skb, ETH_HLEN + IPV4_HEADER + length, 0) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return -1;
	fragment = (bpf_ntohs(ip.frag_off) & ~IPV4_DF) + at / 8;
	if (at + length < all)
		fragment |= IPV4_MORE_FRAGMENTS;
	ip.frag_off = bpf_htons(fragment);
	ip.tot_len = bpf_htons(IPV4_HEADER + length);
	ip.check = 0;
	ip.check = ipv4_checksum(&ip);
	__builtin_memcpy(k->start, &ip, INNER4_BYTES);
	k->l3_len = IPV4_HEADER + length;
	return 0;
}

/* Returns 0 if the packet is now one of its own pieces and the others are on
 * their way. */
static __always_inline int cut_to(struct __sk_buff *skb, struct handling *h, struct look *k,
				  __u32 room)
{
	__u32 mark = skb->mark, bytes = (room - IPV4_HEADER) & ~7u;

	if (k->options || skb->gso_size || room < IPV4_HEADER + 8)
		return -1;
	if ((mark & ~0xffu) == PIECE_MARK) {
		skb->mark = 0;
		return cut(skb, k, room, mark & 0xff);
	}
	if (h->traced)
		return cut(skb, k, room, 0);
	if (k->l3_len - IPV4_HEADER > PIECES_MAX * bytes)
		return -1;
	note(h, SPREAD_CUT);
	for (__u32 i = 1; i < PIECES_MAX; i++) {
		if (i * bytes >= k->l3_len - IPV4_HEADER)
			break;
		skb->mark = PIECE_MARK | i;
		if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
			break;
	}
	skb->mark = mark;
	return cut(skb, k, room, 0);
}

/* Answers the client that it may send at most `mtu`. */
static __always_inline int too_big(struct __sk_buff *skb, const struct handling *h,
				   const struct look *k, __u32 mtu)
{
	if (!h->traced && !may_answer())
		return drop(skb, h, SPREAD_TOO_BIG_LIMITED);
	if (!h->traced)
		capture(skb, CAPTURE_ANSWERED);
	if (make_too_big(skb, k, mtu))
		return drop(skb, h, SPREAD_ODD);
	note(h, SPREAD_TOO_BIG);
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline int send(struct __sk_buff *skb, const struct handling *h,
				const struct look *k, const struct spread_way *way)
{
	struct bpf_redir_neigh hop = {};

	note(h, SPREAD_REDIRECTED);
	if (!h->traced)
		capture(skb, CAPTURE_REDIRECTED);
	if (k->v6) {
		hop.nh_family = AF_INET6;
		__builtin_memcpy(hop.ipv6_nh, way->next_hop, 16);
	} else {
		hop.nh_family = AF_INET;
		__builtin_memcpy(&hop.ipv4_nh, way->next_hop + 12, 4);
	}
	return bpf_redirect_neigh(way->ifindex, &hop, sizeof(hop), 0);
}

/* Whether the packet may be cut. TCP can always send less. A checksum that is
 * left to the device (by a sender on the same machine) could not be completed
 * any more. */
static __always_inline int may_be_cut(struct __sk_buff *skb, const struct look *k)
{
	__be16 check;

	return !k->df && !skb->gso_size && k->protocol != IPPROTO_TCP && !is_open(skb, k, &check);
}

static __always_inline int is_syn(const struct look *k)
{
	return k->protocol == IPPROTO_TCP && (k->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Shows the cache a SYN as it came, and the fact that its client was answered:
 * the answers themselves do not pass here. */
static __always_inline void keep_syn(struct __sk_buff *skb, const struct handling *h,
				     const struct look *k)
{
	struct recovered r = {};
	__u32 zero = 0, *control;

	if (h->traced || (!h->opened && !is_syn(k)))
		return;
	control = bpf_map_lookup_elem(&recover_control, &zero);
	if (!control || *(volatile __u32 *)control == RECOVER_OFF)
		return;
	r.direction = h->opened ? RECOVER_OPENED : RECOVER_INTO;
	r.way = h->host;
	r.headers = k->headers;
	r.payload = k->l3_len - k->headers;
	if (!h->opened)
		r.head_bytes = r.payload > RECOVER_SEGMENT ? RECOVER_SEGMENT : r.payload;
	recover_copy(skb, &r);
}

static __always_inline int to_host(struct __sk_buff *skb, struct handling *h, struct look *k,
				   __u64 flags4, __u64 flags6)
{
	struct spread_host *host = host_at(h->host);
	struct spread_way *way;
	__u32 room;

	/* Nobody serves it at the moment: new flows go to the origin. */
	if (!host) {
		note(h, SPREAD_NOBODY);
		return PASS;
	}
	way = k->v6 ? &host->v6 : &host->v4;
	if (!way->ifindex)
		return drop(skb, h, SPREAD_NO_WAY);
	keep_syn(skb, h, k);
	room = way->mtu;
	if (!host->layer2)
		room -= k->v6 ? IPV6_HEADER : IPV4_HEADER;
	if (k->segment > room || (skb->mark & ~0xffu) == PIECE_MARK) {
		if (!may_be_cut(skb, k))
			return too_big(skb, h, k, room);
		if (cut_to(skb, h, k, room))
			return drop(skb, h, SPREAD_ODD);
	}
	if (rewrite(skb, h, k, way, host->layer2, flags4, flags6))
		return drop(skb, h, SPREAD_ODD);
	return send(skb, h, k, way);
}

static __always_inline void fragment_key(struct spread_fragment *key, const struct look *k)
{
	__builtin_memcpy(key->client, k->key.client, 16);
	__builtin_memcpy(key->server, k->key.server, 16);
	key->id = k->id;
	key->protocol = k->protocol;
}

/* Sends later fragments where the first one went; 0 if nobody knows. */
static __always_inline int place_fragment(struct handling *h, const struct look *k)
{
	struct spread_fragment key = {};
	struct spread_flow *first;

	fragment_key(&key, k);
	first = bpf_map_lookup_elem(&spread_fragments, &key);
	if (!first)
		return 0;
	h->how = TRACE_FLOW;
	h->host = first->host;
	h->source = k->id;
	note(h, SPREAD_FRAGMENTS_FOLLOWED);
	return 1;
}

static __always_inline void remember_fragment(const struct handling *h, const struct look *k)
{
	struct spread_fragment key = {};
	struct spread_flow first = { .tick = h->config->tick, .host = h->host };

	if (h->traced)
		return;
	fragment_key(&key, k);
	bpf_map_update_elem(&spread_fragments, &key, &first, BPF_ANY);
}

/* Sends errors about a host server's packets to that host server. A quote has
 * the IP header and at least 8 bytes more (RFC 792, RFC 4443 §3). Returns 0 if
 * it quotes nothing of ours. */
static __always_inline int place_icmp(struct __sk_buff *skb, struct handling *h, struct look *k)
{
	struct conn_key key = {};
	__u32 quoted = k->l4 + ICMP_BYTES, at;
	__u8 type, protocol;
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, k->l4, &type, 1))
		return 0;
	if (k->v6) {
		struct ipv6hdr ip;

		/* Errors have type numbers below 128 (RFC 4443 §2.1). */
		if (type == 0 || type > 4 || bpf_skb_load_bytes(skb, quoted, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(key.server, &ip.saddr, 16);
		__builtin_memcpy(key.client, &ip.daddr, 16);
		protocol = ip.nexthdr;
		at = quoted + IPV6_HEADER;
	} else {
		struct iphdr ip;

		if ((type != ICMP_UNREACHABLE && type != 11 && type != 12) ||
		    bpf_skb_load_bytes(skb, quoted, &ip, sizeof(ip)) || ip.ihl < 5 ||
		    (ip.frag_off & bpf_htons(IPV4_OFFSET)))
			return 0;
		map_ipv4(key.server, ip.saddr);
		map_ipv4(key.client, ip.daddr);
		protocol = ip.protocol;
		at = quoted + ip.ihl * 4;
	}
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, at, ports, 4))
		return 0;
	/* A sender that reports another's packet to a third address has made it
	 * up. */
	if (!same_address(key.server, k->key.server))
		return 0;
	key.server_port = bpf_ntohs(ports[0]);
	key.client_port = bpf_ntohs(ports[1]);
	if (!is_of_service(h, &key, protocol))
		return 0;
	place_quoted(h, &key, protocol);
	note(h, SPREAD_ICMP_FOLLOWED);
	return 1;
}

/* Returns -1 if the packet is refused, and 0 if it goes the plain way. */
static __always_inline int place(struct __sk_buff *skb, struct handling *h, struct look *k,
				 enum looked what)
{
	int placed;

	if (what == LOOKED_FRAGMENT)
		return place_fragment(h, k);
	if (what == LOOKED_ICMP)
		return place_icmp(skb, h, k);
	if (!is_of_service(h, &k->key, k->protocol))
		return 0;
	if (k->protocol == IPPROTO_UDP)
		placed = place_datagram(h, &k->key);
	else if (is_syn(k))
		placed = place_syn(h, &k->key);
	else
		placed = place_segment(h, k);
	if (!placed)
		return -1;
	if (k->first_fragment)
		remember_fragment(h, k);
	return 1;
}

static __always_inline int handle(struct __sk_buff *skb, struct handling *h, struct look *k,
				  __u64 flags4, __u64 flags6)
{
	__u32 zero = 0;
	enum looked what = look(skb, k);
	int placed;

	if (what == LOOKED_OTHER)
		return PASS;
	h->config = bpf_map_lookup_elem(&spread_config, &zero);
	if (!h->config)
		return PASS;
	h->traced = skb->mark == TRACE_MARK;
	h->host = NOBODY;
	h->v6 = k->v6;
	placed = place(skb, h, k, what);
	/* The stack answers with ICMP Time Exceeded. */
	if (placed == 0 || k->ttl <= 1)
		return PASS;
	if (placed < 0)
		return drop(skb, h, SPREAD_REFUSED_FLOWS);
	return to_host(skb, h, k, flags4, flags6);
}

SEC("classifier")
int redirect(struct __sk_buff *skb)
{
	struct handling h = {};
	struct look k = {};
	int verdict = handle(skb, &h, &k, ENCAP4, ENCAP6);

	if (h.traced)
		skb->mark = TRACE_BYTE << 24 | h.how << 8 | h.host;
	return verdict;
}

/* The same, then undone: measures what one packet costs over and over again.
 * The kernel refuses to encapsulate a packet twice if it is marked as
 * encapsulated. */
SEC("classifier")
int redirect_undone(struct __sk_buff *skb)
{
	struct handling h = {};
	struct look k = {};
	int verdict = handle(skb, &h, &k, 0, 0);
	int wrapped = skb->len > ETH_HLEN + k.l3_len;

	if (verdict != TC_ACT_REDIRECT)
		return verdict;
	if (k.v6) {
		k.start[1] = bpf_htonl(bpf_ntohl(k.start[1]) + 1);
		if (wrapped)
			undo6(skb, k.start);
		else
			bpf_skb_store_bytes(skb, ETH_HLEN, k.start, INNER6_BYTES, 0);
	} else {
		k.start[2] = bpf_htonl(bpf_ntohl(k.start[2]) + 0x01000000);
		if (wrapped)
			undo4(skb, k.start);
		else
			bpf_skb_store_bytes(skb, ETH_HLEN, k.start, INNER4_BYTES, 0);
	}
	return verdict;
}

char licence[] SEC("license") = "Dual MIT/GPL";
