// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The host server's end of a spread group: takes what the edge encapsulated out
 * of its outer header and gives it to the local stack, which has the service
 * address, and tells clients in the SYN-ACK how much fits the path through the
 * edge (the answers do not pass the redirector, so nobody else can).
 */
#include "layout.h"
#define COUNTERS HOST_COUNTERS
#include "capture.h"
#include "csum.h"
#include "group.h"
#include "maps.h"
#include "encap.h"

#define ECN_MASK 3
#define ECN_NONE 0
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3
#define NOT_OURS (-1)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct host_config);
} host_config SEC(".maps");

static __always_inline int same_words(const void *a, const __u64 *b)
{
	const __u64 *words = a;

	return words[0] == b[0] && words[1] == b[1];
}

/* The TOS of the inner packet (RFC 6040 §4.2); -1 if congestion was marked and the
 * inner packet cannot say so. */
static __always_inline int inner_tos(__u8 outer, __u8 inner)
{
	__u8 outer_ecn = outer & ECN_MASK, inner_ecn = inner & ECN_MASK;

	if (outer_ecn == ECN_CE)
		return inner_ecn == ECN_NONE ? -1 : inner | ECN_CE;
	if (outer_ecn == ECN_ECT1 && inner_ecn == ECN_ECT0)
		return (inner & ~ECN_MASK) | ECN_ECT1;
	return inner;
}

static __always_inline int set_tos4(struct __sk_buff *skb, const struct iphdr *ip, __u8 tos)
{
	__be16 old = bpf_htons(0x4000 | ip->ihl << 8 | ip->tos);
	__be16 new = bpf_htons(0x4000 | ip->ihl << 8 | tos);

	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, tos), &tos, 1, 0);
}

/* If this fails, the packet stays as it is, and the checks behind it see that.
 * No more is pulled than needed, since pulling copies what is shared. */
static __always_inline void make_linear(struct __sk_buff *skb)
{
	int v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 have = skb->data_end - skb->data;
	__u32 want = ETH_HLEN + 2 * (v4 ? IPV4_HEADER : IPV6_HEADER);

	if (have < want && have < skb->len)
		bpf_skb_pull_data(skb, skb->len < want ? skb->len : want);
}

/* The headers are read in place: only this packet's own bytes are written
 * to. */
static __always_inline int decapsulate4(struct __sk_buff *skb, const struct host_config *c)
{
	struct iphdr *outer = (void *)(long)skb->data + ETH_HLEN, *inner = outer + 1;
	void *end = (void *)(long)skb->data_end;
	struct iphdr before;
	__u8 target[16];
	int tos;

	if ((void *)(outer + 1) > end || outer->protocol != IPPROTO_IPIP ||
	    outer->daddr != c->tunnel4)
		return NOT_OURS;
	if ((outer->saddr ^ c->outer4) & c->outer4_mask)
		return steal(HOST_STRANGERS);
	if (outer->ihl != 5 || (outer->frag_off & bpf_htons(IPV4_FRAGMENT)) ||
	    (void *)(inner + 1) > end || inner->version != 4)
		return steal(HOST_ODD);
	map_ipv4(target, inner->daddr);
	if (!is_address(target))
		return steal(HOST_NOT_OURS);
	tos = inner_tos(outer->tos, inner->tos);
	if (tos < 0)
		return steal(HOST_CONGESTED);
	before = *inner;
	if (bpf_skb_adjust_room(skb, -IPV4_HEADER, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    (tos != before.tos && set_tos4(skb, &before, tos)))
		return steal(HOST_ODD);
	count(HOST_DECAPSULATED);
	return PASS;
}

static __always_inline __u8 traffic_class(const struct ipv6hdr *ip)
{
	return ip->priority << 4 | ip->flow_lbl[0] >> 4;
}

static __always_inline int decapsulate6(struct __sk_buff *skb, const struct host_config *c)
{
	struct ipv6hdr *outer = (void *)(long)skb->data + ETH_HLEN, *inner = outer + 1;
	void *end = (void *)(long)skb->data_end;
	const __u64 *from = (const __u64 *)&outer->saddr;
	__u64 target[2];
	int tos, before;
	__be16 word;

	if ((void *)(outer + 1) > end || outer->nexthdr != IPPROTO_IPV6 ||
	    !same_words(&outer->daddr, c->tunnel6))
		return NOT_OURS;
	if (((from[0] ^ c->outer6[0]) & c->outer6_mask[0]) ||
	    ((from[1] ^ c->outer6[1]) & c->outer6_mask[1]))
		return steal(HOST_STRANGERS);
	if ((void *)(inner + 1) > end || inner->version != 6)
		return steal(HOST_ODD);
	__builtin_memcpy(target, &inner->daddr, 16);
	if (!is_address(target))
		return steal(HOST_NOT_OURS);
	before = traffic_class(inner);
	tos = inner_tos(traffic_class(outer), before);
	if (tos < 0)
		return steal(HOST_CONGESTED);
	word = bpf_htons(6 << 12 | tos << 4 | (inner->flow_lbl[0] & 15));
	if (bpf_skb_adjust_room(skb, -IPV6_HEADER, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return steal(HOST_ODD);
	if (tos != before && bpf_skb_store_bytes(skb, ETH_HLEN, &word, 2, BPF_F_RECOMPUTE_CSUM))
		return steal(HOST_ODD);
	count(HOST_DECAPSULATED);
	return PASS;
}

SEC("classifier")
int host_ingress(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct host_config *c = bpf_map_lookup_elem(&host_config, &zero);
	int verdict = NOT_OURS;

	if (!c)
		return PASS;
	make_linear(skb);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = decapsulate4(skb, c);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		verdict = decapsulate6(skb, c);
	if (verdict == TC_ACT_STOLEN)
		capture(skb, CAPTURE_DROPPED);
	return verdict;
}

/* Almost no packet is a SYN-ACK. If the headers lie in one piece, that is seen in
 * place; only packets with neither options nor extensions are looked at
 * further. */
static __always_inline int may_be_syn_ack(struct __sk_buff *skb)
{
	int header = skb->protocol == bpf_htons(ETH_P_IP) ? IPV4_HEADER : IPV6_HEADER;
	__u8 *flags = (void *)(long)skb->data + ETH_HLEN + header + 13;

	if ((void *)(flags + 1) > (void *)(long)skb->data_end)
		return 1;
	return (*flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

/* Lowers the segment size that clients are told they may send (RFC 6691). */
SEC("classifier")
int host_egress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct tcp_options o = {};
	__u32 zero = 0, largest, at;
	struct host_config *c;
	__be16 old, new;

	if (!may_be_syn_ack(skb) || parse(skb, &p) != PARSED_TCP ||
	    (p.flags & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK) || !is_address(p.source))
		return PASS;
	c = bpf_map_lookup_elem(&host_config, &zero);
	if (!c || !c->mtu)
		return PASS;
	largest = c->mtu - 2 * (p.v6 ? IPV6_HEADER : IPV4_HEADER) - TCP_HEADER;
	if (p.tcp_header > TCP_HEADER)
		options_of(skb, &p, &o);
	/* Without the option a client sends no more than 536 or 1220 bytes. */
	if (!o.mss || o.mss <= largest)
		return PASS;
	at = p.l4 + TCP_HEADER + o.mss_at + 2;
	old = bpf_htons(o.mss);
	new = bpf_htons(largest);
	/* An option may begin at an odd offset; its bytes then lie in two
	 * words. */
	if (o.mss_at & 1) {
		old = bpf_htons((o.mss & 0xff) << 8 | o.mss >> 8);
		new = bpf_htons((largest & 0xff) << 8 | largest >> 8);
	}
	if (bpf_l4_csum_replace(skb, TCP_CHECK(&p), old, new, 2))
		return PASS;
	new = bpf_htons(largest);
	if (bpf_skb_store_bytes(skb, at, &new, 2, 0))
		return steal(HOST_ODD);
	count(HOST_CLAMPED);
	capture(skb, CAPTURE_CLAMPED);
	return PASS;
}

char licence[] SEC("license") = "Dual MIT/GPL";
