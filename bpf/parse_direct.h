/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Finds what redirection needs in a frame's headers, reading in place, which
 * takes a third of the time of copying them. Nothing is written in place: a
 * program that does so unshares every packet, even those that it lets pass.
 */
#ifndef HOLDFAST_PARSE_DIRECT_H
#define HOLDFAST_PARSE_DIRECT_H

#include <linux/udp.h>
#include "encap.h"
#include "layout.h"
#include "parse_copy.h"

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_OFFSET 0x1fff
#define IPV4_HEADER_MAX 60
#define IPV6_FRAGMENT_HEADER 8
/* Bytes of the longest headers that are looked at. */
#define LINEAR_BYTES (ETH_HLEN + IPV4_HEADER_MAX + TCP_HEADER)

enum looked {
	LOOKED_OTHER,    /* not IP, or headers that nothing is known of */
	LOOKED_FLOW,     /* TCP or UDP with its ports */
	LOOKED_FRAGMENT, /* a later fragment: addresses, protocol and id */
	LOOKED_ICMP,
};

struct look {
	/* Key of the flow; a fragment's has no ports. Aligned, or the compiler would
	 * load the addresses byte by byte. */
	struct conn_key key __attribute__((aligned(8)));
	__u32 l3_len;        /* bytes from the IP header on, or of a GSO frame */
	__u32 segment;       /* bytes of the largest packet on the wire */
	__u32 id;            /* of a fragment */
	__u16 l4;            /* offset of the transport header in the frame */
	__u16 headers;       /* bytes from the IP header to the payload */
	__u8 protocol;
	__u8 tos;
	__u8 tcp_flags;
	__u8 v6;
	__u8 ttl;
	__u8 first_fragment;
	__u8 df; /* may not be cut; always so in IPv6 */
	__u8 options;
	__be32 start[INNER4_BYTES / 4]; /* of the IP header */
};

static __always_inline enum looked look_transport(void *data, void *end, struct look *k)
{
	struct tcphdr *tcp = data + k->l4;
	struct udphdr *udp = data + k->l4;

	if (k->protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return LOOKED_OTHER;
		k->key.client_port = bpf_ntohs(tcp->source);
		k->key.server_port = bpf_ntohs(tcp->dest);
		k->tcp_flags = ((__u8 *)tcp)[13];
		k->headers = k->l4 - ETH_HLEN + tcp->doff * 4;
		return tcp->doff < 5 ? LOOKED_OTHER : LOOKED_FLOW;
	}
	if (k->protocol == IPPROTO_UDP) {
		if ((void *)(udp + 1) > end)
			return LOOKED_OTHER;
		k->key.client_port = bpf_ntohs(udp->source);
		k->key.server_port = bpf_ntohs(udp->dest);
		k->headers = k->l4 - ETH_HLEN + sizeof(*udp);
		return LOOKED_FLOW;
	}
	return k->protocol == (k->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) ? LOOKED_ICMP : LOOKED_OTHER;
}

static __always_inline enum looked look4(void *data, void *end, struct look *k)
{
	struct iphdr *ip = data + ETH_HLEN;
	__u16 fragment;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return LOOKED_OTHER;
	map_ipv4(k->key.client, ip->saddr);
	map_ipv4(k->key.server, ip->daddr);
	__builtin_memcpy(k->start, ip, INNER4_BYTES);
	k->protocol = ip->protocol;
	k->tos = ip->tos;
	k->ttl = ip->ttl;
	k->l3_len = bpf_ntohs(ip->tot_len);
	k->l4 = ETH_HLEN + ip->ihl * 4;
	k->options = ip->ihl > 5;
	fragment = bpf_ntohs(ip->frag_off);
	k->df = (fragment & IPV4_DF) != 0;
	k->id = ip->id;
	if (fragment & IPV4_OFFSET)
		return LOOKED_FRAGMENT;
	k->first_fragment = (fragment & IPV4_MORE_FRAGMENTS) != 0;
	return look_transport(data, end, k);
}

/* Packets with other extension headers than a fragment's go the plain way. */
static __always_inline enum looked look6(void *data, void *end, struct look *k)
{
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct {
		__u8 next;
		__u8 zero;
		__be16 offset;
		__be32 id;
	} *fragment = data + ETH_HLEN + IPV6_HEADER;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return LOOKED_OTHER;
	__builtin_memcpy(k->key.client, &ip->saddr, 16);
	__builtin_memcpy(k->key.server, &ip->daddr, 16);
	__builtin_memcpy(k->start, ip, INNER6_BYTES);
	k->v6 = 1;
	k->df = 1;
	k->protocol = ip->nexthdr;
	k->tos = (bpf_ntohs(*(__be16 *)ip) >> 4) & 0xff;
	k->ttl = ip->hop_limit;
	/* A length of 0 is a GSO frame longer than the field can say. */
	k->l3_len = ip->payload_len ? bpf_ntohs(ip->payload_len) + IPV6_HEADER : 0;
	k->l4 = ETH_HLEN + IPV6_HEADER;
	if (ip->nexthdr != IPPROTO_FRAGMENT)
		return look_transport(data, end, k);
	if ((void *)(fragment + 1) > end)
		return LOOKED_OTHER;
	k->protocol = fragment->next;
	k->id = fragment->id;
	k->l4 += IPV6_FRAGMENT_HEADER;
	if (fragment->offset & bpf_htons(0xfff8))
		return LOOKED_FRAGMENT;
	k->first_fragment = (fragment->offset & bpf_htons(1)) != 0;
	return look_transport(data, end, k);
}

/* Bytes that must lie in the linear part. No byte more: pulling copies what is
 * shared, as every segment is that a sender on this machine still holds. */
static __always_inline __u32 bytes_of_headers(struct __sk_buff *skb, void *data, void *end)
{
	struct iphdr *ip4 = data + ETH_HLEN;
	struct ipv6hdr *ip6 = data + ETH_HLEN;
	__u32 bytes = ETH_HLEN;
	__u8 protocol;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end)
			return LINEAR_BYTES;
		protocol = ip4->protocol;
		bytes += ip4->ihl * 4;
	} else {
		if ((void *)(ip6 + 1) > end)
			return LINEAR_BYTES;
		protocol = ip6->nexthdr;
		bytes += IPV6_HEADER;
		if (protocol == IPPROTO_FRAGMENT)
			return bytes + IPV6_FRAGMENT_HEADER + TCP_HEADER;
	}
	return bytes + (protocol == IPPROTO_TCP ? TCP_HEADER : sizeof(struct udphdr));
}

/* `k` must be zeroed. */
static __always_inline enum looked look(struct __sk_buff *skb, struct look *k)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 have = end - data, want;
	enum looked what = LOOKED_OTHER;

	if (have < LINEAR_BYTES && have < skb->len) {
		want = bytes_of_headers(skb, data, end);
		/* If this fails, the packet stays as it is, and the checks
		 * below see that. */
		if (have < want)
			bpf_skb_pull_data(skb, want < skb->len ? want : skb->len);
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	if (skb->protocol == bpf_htons(ETH_P_IP))
		what = look4(data, end, k);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		what = look6(data, end, k);
	if (!k->l3_len || skb->gso_size)
		k->l3_len = skb->len - ETH_HLEN;
	/* The stack drops a packet that claims to be longer than it is. */
	if (k->l3_len > skb->len - ETH_HLEN || k->headers > k->l3_len)
		return LOOKED_OTHER;
	k->segment = k->l3_len;
	if (skb->gso_size && what == LOOKED_FLOW)
		k->segment = k->headers + skb->gso_size;
	return what;
}

#endif
