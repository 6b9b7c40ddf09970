/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * IP in IP: RFC 2003 (IPv4), RFC 2473 (IPv6), ECN as in RFC 6040 §4.1 (normal
 * mode: the outer header has the inner one's).
 */
#ifndef HOLDFAST_ENCAP_H
#define HOLDFAST_ENCAP_H

#include "parse_copy.h"

#define OUTER_TTL 64
#define IPV4_DF 0x4000
/* Bytes of the inner header that are written along with the outer one: up to
 * and including TTL and checksum, or the hop limit. */
#define INNER4_BYTES 12
#define INNER6_BYTES 8

/* Written and read by words: the load of a word whose bytes were stored one by
 * one waits until the stores have reached the cache. */
struct outer4 {
	__be32 ip[IPV4_HEADER / 4];
	__be32 inner[INNER4_BYTES / 4];
};

struct outer6 {
	__be32 ip[IPV6_HEADER / 4];
	__be32 inner[INNER6_BYTES / 4];
};

static __always_inline int same_address(const void *a, const void *b)
{
	__u64 x[2], y[2];

	__builtin_memcpy(x, a, 16);
	__builtin_memcpy(y, b, 16);
	return x[0] == y[0] && x[1] == y[1];
}

/* The complement of the sum of an IPv4 header without options, whose own
 * checksum field is zero (RFC 1071). */
static __always_inline __u16 ipv4_checksum(const struct iphdr *ip)
{
	const __u16 *word = (const __u16 *)ip;
	__u32 sum = 0;

	for (int i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

/* The same sum for such a header in words, in host order. */
static __always_inline __u32 sum_header(const __be32 *words)
{
	__u64 sum = 0;

	for (int i = 0; i < IPV4_HEADER / 4; i++)
		sum += bpf_ntohl(words[i]);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum & 0xffff;
}

/* Makes room and writes the outer header, and the first bytes of the inner one,
 * in which the caller has already decremented the hop limit. `flags` are those of
 * bpf_skb_adjust_room for this family; a GSO frame's segments keep their size. */
static __always_inline int encapsulate4(struct __sk_buff *skb, struct outer4 *o, __u64 flags)
{
	if (bpf_skb_adjust_room(skb, IPV4_HEADER, BPF_ADJ_ROOM_MAC,
				flags | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, o, sizeof(*o), 0);
}

static __always_inline int encapsulate6(struct __sk_buff *skb, struct outer6 *o, __u64 flags)
{
	if (bpf_skb_adjust_room(skb, IPV6_HEADER, BPF_ADJ_ROOM_MAC,
				flags | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, o, sizeof(*o), BPF_F_RECOMPUTE_CSUM);
}

/* Removes the outer header and writes the beginning of the inner one back: for
 * measuring the same packet over and over again. */
static __always_inline int undo4(struct __sk_buff *skb, const __be32 *inner)
{
	return bpf_skb_adjust_room(skb, -IPV4_HEADER, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, inner, INNER4_BYTES, 0);
}

static __always_inline int undo6(struct __sk_buff *skb, const __be32 *inner)
{
	return bpf_skb_adjust_room(skb, -IPV6_HEADER, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, inner, INNER6_BYTES, BPF_F_RECOMPUTE_CSUM);
}

#endif
