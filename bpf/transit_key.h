/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The key of a packet's flow, without its direction, so that both edges and
 * both directions agree on it: ports and addresses where there are any, those
 * of the quoted packet for an ICMP error, else the two addresses.
 */
#ifndef HOLDFAST_TRANSIT_KEY_H
#define HOLDFAST_TRANSIT_KEY_H

#include "layout.h"
#include "parse_copy.h"

/* An ICMP error quotes at least the packet's IP header and 8 bytes (RFC 792,
 * RFC 4443 §3), after 8 bytes of its own. */
#define ICMP_HEADER 8
#define IPV4_OFFSET 0x1fff
#define ICMP_UNREACHABLE 3
#define ICMP_SOURCE_QUENCH 4
#define ICMP_REDIRECT 5
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_INFORMATIONAL 128 /* RFC 4443 §2.1: errors are below */

enum keyed {
	KEYED_PAIR,  /* two addresses */
	KEYED_FLOW,  /* two ends of TCP or UDP */
	KEYED_QUOTE, /* the same, of the packet that an ICMP error quotes */
};

static __always_inline void transit_key_of(struct transit_key *key, const __u8 *source,
					   const __u8 *target, __u16 source_port,
					   __u16 target_port, __u32 protocol)
{
	__u64 a[2], b[2];
	int swap;

	__builtin_memcpy(a, source, 16);
	__builtin_memcpy(b, target, 16);
	/* Any order will do as long as both directions share it. */
	if (a[0] != b[0])
		swap = a[0] > b[0];
	else if (a[1] != b[1])
		swap = a[1] > b[1];
	else
		swap = source_port > target_port;
	__builtin_memcpy(key->low, swap ? target : source, 16);
	__builtin_memcpy(key->high, swap ? source : target, 16);
	key->low_port = swap ? target_port : source_port;
	key->high_port = swap ? source_port : target_port;
	key->protocol = protocol;
}

static __always_inline int ports_at(struct __sk_buff *skb, __u32 at, __u16 *source, __u16 *target)
{
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	*source = bpf_ntohs(ports[0]);
	*target = bpf_ntohs(ports[1]);
	return 1;
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Whether what follows the IP header begins at p->l4, in this packet. */
static __always_inline int is_whole(struct __sk_buff *skb, const struct packet *p)
{
	struct iphdr ip;

	if (p->v6)
		return 1; /* an extension header would be the protocol */
	return !bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) && ip.ihl == 5 &&
	       !(ip.frag_off & bpf_htons(IPV4_FRAGMENT));
}

static __always_inline int is_icmp_error(struct __sk_buff *skb, const struct packet *p)
{
	__u8 type;

	if (bpf_skb_load_bytes(skb, p->l4, &type, 1))
		return 0;
	if (p->v6)
		return p->protocol == IPPROTO_ICMPV6 && type < ICMPV6_INFORMATIONAL;
	return p->protocol == IPPROTO_ICMP &&
	       (type == ICMP_UNREACHABLE || type == ICMP_SOURCE_QUENCH || type == ICMP_REDIRECT ||
		type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER_PROBLEM);
}

/* Returns 0 if there is no whole quote of TCP or UDP; `key` is then unchanged.
 * A global function, so that the verifier proves it once. */
__attribute__((noinline)) int quoted_key(struct __sk_buff *skb, __u32 at, __u32 v6,
					 struct transit_key *key)
{
	__u8 source[16], target[16];
	__u16 source_port, target_port;
	__u8 protocol;

	if (!key)
		return 0;
	if (v6) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 6)
			return 0;
		protocol = ip.nexthdr;
		__builtin_memcpy(source, &ip.saddr, 16);
		__builtin_memcpy(target, &ip.daddr, 16);
		at += IPV6_HEADER;
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5 ||
		    (ip.frag_off & bpf_htons(IPV4_OFFSET)))
			return 0;
		protocol = ip.protocol;
		map_ipv4(source, ip.saddr);
		map_ipv4(target, ip.daddr);
		at += ip.ihl * 4;
	}
	if (!has_ports(protocol) || !ports_at(skb, at, &source_port, &target_port))
		return 0;
	transit_key_of(key, source, target, source_port, target_port, protocol);
	return 1;
}

/* `key` is always filled. */
static __always_inline enum keyed key_of(struct __sk_buff *skb, const struct packet *p,
					 enum parsed what, struct transit_key *key)
{
	__u16 source, target;

	if (what == PARSED_TCP) {
		transit_key_of(key, p->source, p->target, p->source_port, p->target_port,
			       IPPROTO_TCP);
		return KEYED_FLOW;
	}
	if (what == PARSED_IP && is_whole(skb, p)) {
		if (p->protocol == IPPROTO_UDP && ports_at(skb, p->l4, &source, &target)) {
			transit_key_of(key, p->source, p->target, source, target, IPPROTO_UDP);
			return KEYED_FLOW;
		}
		if (is_icmp_error(skb, p) && quoted_key(skb, p->l4 + ICMP_HEADER, p->v6, key))
			return KEYED_QUOTE;
	}
	transit_key_of(key, p->source, p->target, 0, 0, 0);
	return KEYED_PAIR;
}

static __always_inline __u32 rotate(__u32 word, __u32 by)
{
	return word << by | word >> (32 - by);
}

/* MurmurHash3 (x86, 32 bits): multiplications and rotations spread every bit. */
static __always_inline __u32 hash_of(const struct transit_key *key, __u32 seed)
{
	const __u32 *words = (const __u32 *)key;
	__u32 hash = seed;

	for (int i = 0; i < (int)(sizeof(*key) / 4); i++) {
		hash ^= rotate(words[i] * 0xcc9e2d51, 15) * 0x1b873593;
		hash = rotate(hash, 13) * 5 + 0xe6546b64;
	}
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

#endif
