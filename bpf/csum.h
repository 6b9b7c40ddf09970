/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Changing header fields with their checksums. BPF_F_PSEUDO_HDR is never set:
 * bpf_l4_csum_replace then leaves CHECKSUM_PARTIAL packets alone (the device
 * will sum them) and corrects complete sums.
 */
#ifndef HOLDFAST_CSUM_H
#define HOLDFAST_CSUM_H

#include "options.h"

#define TCP_CHECK(p) ((p)->l4 + offsetof(struct tcphdr, check))

/* On failure nothing has been sent, and the caller steals the packet. */
static __always_inline int set_tcp_word(struct __sk_buff *skb, const struct packet *p,
					__u32 field, __be32 old, __be32 new)
{
	if (bpf_l4_csum_replace(skb, TCP_CHECK(p), old, new, 4))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4 + field, &new, 4, 0);
}

static __always_inline int set_tcp_half(struct __sk_buff *skb, const struct packet *p,
					__u32 field, __be16 old, __be16 new)
{
	if (bpf_l4_csum_replace(skb, TCP_CHECK(p), old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4 + field, &new, 2, 0);
}

static __always_inline int clear_flag(struct __sk_buff *skb, const struct packet *p, __u8 flag)
{
	__u8 word[2] = { (p->tcp_header / 4) << 4, p->flags };
	__be16 old, new;

	/* The low nibble of the first byte holds reserved bits: keep them. */
	if (bpf_skb_load_bytes(skb, p->l4 + 12, word, 2))
		return -1;
	__builtin_memcpy(&old, word, 2);
	word[1] &= ~flag;
	__builtin_memcpy(&new, word, 2);
	return set_tcp_half(skb, p, 12, old, new);
}

/* Urgent bytes become bytes like any other, as RFC 6093 §5 wants applications to
 * take them: whether a kernel takes such a byte out of the stream depends on what
 * was read before, which no copy of the stream can know. */
static __always_inline int clear_urgent(struct __sk_buff *skb, struct packet *p)
{
	__u32 at = offsetof(struct tcphdr, urg_ptr);
	__be16 old;

	if (bpf_skb_load_bytes(skb, p->l4 + at, &old, 2) || clear_flag(skb, p, TCP_URG) ||
	    set_tcp_half(skb, p, at, old, 0))
		return -1;
	p->flags &= ~TCP_URG;
	return 0;
}

/* Overwrites the SACK option with NOPs, in the packet and in `o`. */
static __always_inline int blank_sack(struct __sk_buff *skb, const struct packet *p,
				      struct tcp_options *o)
{
	__u32 len = p->tcp_header - TCP_HEADER;
	__s64 sum = bpf_csum_diff((__be32 *)o->raw, OPTIONS_MAX, 0, 0, 0);

	if (sum < 0)
		return -1;
	nop_out_sack(o);
	sum = bpf_csum_diff(0, 0, (__be32 *)o->raw, OPTIONS_MAX, sum);
	if (sum < 0 || bpf_l4_csum_replace(skb, TCP_CHECK(p), 0, sum, 0))
		return -1;
	if (len == 0 || len > OPTIONS_MAX)
		return -1;
	return bpf_skb_store_bytes(skb, p->l4 + TCP_HEADER, o->raw, len, 0);
}

/* One hop less (RFC 1812 §5.3.1). The caller has checked that ttl > 1. */
static __always_inline int decrement_ttl(struct __sk_buff *skb, const struct packet *p)
{
	__u8 ttl = p->ttl - 1;

	if (p->v6)
		return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &ttl, 1,
					   BPF_F_RECOMPUTE_CSUM);
	/* TTL is the high byte of its checksum word; the protocol below it stays. */
	__be16 old = bpf_htons(p->ttl << 8 | p->protocol), new = bpf_htons(ttl << 8 | p->protocol);

	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &ttl, 1, 0);
}

#endif
