/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The answer to a packet that does not fit: ICMP fragmentation needed (RFC 1191
 * §4) or ICMPv6 packet too big (RFC 4443 §3.2), from the service address.
 */
#ifndef HOLDFAST_TOOBIG_H
#define HOLDFAST_TOOBIG_H

#include "parse_direct.h"

/* Quoted bytes of the packet that did not fit: its IP header with options and
 * 20 bytes. */
#define QUOTE_BYTES 80
#define ICMP_BYTES 8
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMPV6_TOO_BIG 2
/* Window in which answers are limited, as a power of two: 2^27 ns (134 ms) per
 * processor, which makes 500 answers in a second. */
#define ANSWERS_WINDOW_SHIFT 27
#define ANSWERS_MAX 64

struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 mtu;
};

struct answer_head4 {
	__u8 macs[12];
	__be16 protocol;
	struct iphdr ip;
	struct icmp_error icmp;
} __attribute__((packed));

struct answer_head6 {
	__u8 macs[12];
	__be16 protocol;
	struct ipv6hdr ip;
	struct icmp_error icmp;
} __attribute__((packed));

/* The answer itself is made here, because the stack is short. */
struct answers {
	__u64 window;
	__u64 count;
	__u8 quote[QUOTE_BYTES]; /* of the packet that is answered */
	union {
		struct answer_head4 v4;
		struct answer_head6 v6;
	} head;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct answers);
} too_big_answers SEC(".maps");

static __always_inline int may_answer(void)
{
	__u32 zero = 0;
	struct answers *a = bpf_map_lookup_elem(&too_big_answers, &zero);
	__u64 window = bpf_ktime_get_coarse_ns() >> ANSWERS_WINDOW_SHIFT;

	if (!a)
		return 0;
	if (a->window != window) {
		a->window = window;
		a->count = 0;
	}
	return a->count++ < ANSWERS_MAX;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Sums an even number of bytes. */
static __always_inline __u64 sum_words(const void *at, int words)
{
	const __u16 *word = at;
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* Whether the transport checksum is left to the device. Only otherwise does the
 * helper change its field, which then gets its old value `check` back. */
static __always_inline int is_open(struct __sk_buff *skb, const struct look *k, __be16 *check)
{
	__u32 at = k->l4 + (k->protocol == IPPROTO_TCP ? 16 : 6);
	__be16 after;

	if (!k->headers || bpf_skb_load_bytes(skb, at, check, 2) ||
	    bpf_l4_csum_replace(skb, at, 0, bpf_htons(1), 2) ||
	    bpf_skb_load_bytes(skb, at, &after, 2))
		return 0;
	bpf_skb_store_bytes(skb, at, check, 2, 0);
	return *check == after;
}

/* The sum of the quote as it will be on the wire: where the device completes the
 * quoted checksum, the transport's part sums to the complement of what the field
 * has now. */
static __always_inline __u64 sum_quote(struct __sk_buff *skb, const struct look *k,
				       const __u8 *quote)
{
	__u32 plain = ETH_HLEN + (k->v6 ? IPV6_HEADER : IPV4_HEADER);
	__be16 check = 0;

	/* A frame of segments may have a hop-by-hop header (is_jumbo). */
	if (k->options || (k->l4 != plain && (!k->v6 || k->l4 != plain + JUMBO_BYTES)) ||
	    !is_open(skb, k, &check))
		return sum_words(quote, QUOTE_BYTES / 2);
	if (k->l4 != plain)
		return sum_words(quote, (IPV6_HEADER + JUMBO_BYTES) / 2) + (__u16)~check;
	if (k->v6)
		return sum_words(quote, IPV6_HEADER / 2) + (__u16)~check;
	return sum_words(quote, IPV4_HEADER / 2) + (__u16)~check;
}

static __always_inline int answer4(struct __sk_buff *skb, const struct look *k,
				   struct answer_head4 *head, __u64 sum, __u32 mtu)
{
	struct iphdr ip = {};
	struct icmp_error icmp = {};

	ip.version = 4;
	ip.ihl = 5;
	ip.tot_len = bpf_htons(IPV4_HEADER + ICMP_BYTES + QUOTE_BYTES);
	ip.frag_off = bpf_htons(IPV4_DF);
	ip.ttl = OUTER_TTL;
	ip.protocol = IPPROTO_ICMP;
	__builtin_memcpy(&ip.saddr, k->key.server + 12, 4);
	__builtin_memcpy(&ip.daddr, k->key.client + 12, 4);
	ip.check = ipv4_checksum(&ip);
	icmp.type = ICMP_UNREACHABLE;
	icmp.code = ICMP_FRAGMENTATION_NEEDED;
	icmp.mtu = bpf_htonl(mtu);
	icmp.check = ~fold(sum + sum_words(&icmp, ICMP_BYTES / 2));
	head->protocol = bpf_htons(ETH_P_IP);
	__builtin_memcpy(&head->ip, &ip, sizeof(ip));
	__builtin_memcpy(&head->icmp, &icmp, sizeof(icmp));
	return bpf_skb_store_bytes(skb, 0, head, sizeof(*head), 0);
}

static __always_inline int answer6(struct __sk_buff *skb, const struct look *k,
				   struct answer_head6 *head, __u64 sum, __u32 mtu)
{
	struct icmp_error icmp = {};

	icmp.type = ICMPV6_TOO_BIG;
	icmp.mtu = bpf_htonl(mtu);
	sum += sum_words(k->key.client, 8) + sum_words(k->key.server, 8);
	sum += bpf_htons(ICMP_BYTES + QUOTE_BYTES) + bpf_htons(IPPROTO_ICMPV6);
	icmp.check = ~fold(sum + sum_words(&icmp, ICMP_BYTES / 2));
	head->protocol = bpf_htons(ETH_P_IPV6);
	__builtin_memset(&head->ip, 0, sizeof(head->ip));
	head->ip.version = 6;
	head->ip.payload_len = bpf_htons(ICMP_BYTES + QUOTE_BYTES);
	head->ip.nexthdr = IPPROTO_ICMPV6;
	head->ip.hop_limit = OUTER_TTL;
	__builtin_memcpy(&head->ip.saddr, k->key.server, 16);
	__builtin_memcpy(&head->ip.daddr, k->key.client, 16);
	__builtin_memcpy(&head->icmp, &icmp, sizeof(icmp));
	return bpf_skb_store_bytes(skb, 0, head, sizeof(*head), BPF_F_RECOMPUTE_CSUM);
}

/* Turns the packet into the answer; returns 0 when that is done. The quoted
 * packet stays where it is in memory, for what the device still has to do with
 * it. */
static __always_inline int make_too_big(struct __sk_buff *skb, const struct look *k, __u32 mtu)
{
	__u32 room = (k->v6 ? IPV6_HEADER : IPV4_HEADER) + ICMP_BYTES;
	__u32 zero = 0;
	struct answers *a = bpf_map_lookup_elem(&too_big_answers, &zero);
	__u8 from[12];
	__u64 sum;

	if (!a || bpf_skb_load_bytes(skb, ETH_HLEN, a->quote, QUOTE_BYTES) ||
	    bpf_skb_load_bytes(skb, 0, from, 12))
		return -1;
	sum = sum_quote(skb, k, a->quote);
	if (bpf_skb_change_tail(skb, ETH_HLEN + QUOTE_BYTES, 0) ||
	    bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	/* Both heads begin with the addresses. */
	__builtin_memcpy(a->head.v4.macs, from + 6, 6);
	__builtin_memcpy(a->head.v4.macs + 6, from, 6);
	return k->v6 ? answer6(skb, k, &a->head.v6, sum, mtu) :
		       answer4(skb, k, &a->head.v4, sum, mtu);
}

#endif
