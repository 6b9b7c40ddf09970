/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Which frames speak for a service address.
 */
#ifndef HOLDFAST_CLAIMS_H
#define HOLDFAST_CLAIMS_H

#include "maps.h"
#include "parse_copy.h"

#define ARP_SENDER 14 /* offset of the sender's IPv4 address in an ARP packet */
#define ND_SOLICIT 135
#define ND_ADVERTISE 136
#define ND_REDIRECT 137

/* Does an ARP packet claim a service address as its sender's? */
static __always_inline int arp_claims(struct __sk_buff *skb)
{
	__u8 address[16];
	__be32 sender;

	if (bpf_skb_load_bytes(skb, ETH_HLEN + ARP_SENDER, &sender, 4))
		return 0;
	map_ipv4(address, sender);
	return is_address(address);
}

/* Does neighbour discovery (RFC 4861 §4.3-4.5) speak about a service address? */
static __always_inline int nd_claims(struct __sk_buff *skb, const struct packet *p)
{
	__u8 address[16], type, head[2] = { p->protocol, 0 };
	__u32 at = p->l4;

	/* Hosts look behind an extension header too (RFC 8200 §4.2). */
	if (is_extension(p->protocol)) {
		if (bpf_skb_load_bytes(skb, p->l4, head, sizeof(head)))
			return 0;
		at += 8 * (head[1] + 1);
	}
	if (head[0] != IPPROTO_ICMPV6 || bpf_skb_load_bytes(skb, at, &type, 1))
		return 0;
	if (type < ND_SOLICIT || type > ND_REDIRECT)
		return 0;
	if (bpf_skb_load_bytes(skb, at + 8, address, 16))
		return 0;
	if (is_address(address))
		return 1;
	/* A redirect names the destination after its target. */
	return type == ND_REDIRECT && !bpf_skb_load_bytes(skb, at + 24, address, 16) &&
	       is_address(address);
}

static __always_inline int claims_service(struct __sk_buff *skb, const struct packet *p,
					  enum parsed what)
{
	if (what == PARSED_OTHER)
		return skb->protocol == bpf_htons(ETH_P_ARP) && arp_claims(skb);
	return is_address(p->source) || (p->v6 && nd_claims(skb, p));
}

#endif
