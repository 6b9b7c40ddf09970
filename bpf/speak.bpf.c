// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The service interface of a member of a pair without an edge. Clients' frames go
 * to a hardware address that no host has and from which no frame comes: switches
 * flood them to both members, packet sockets see them, and no stack takes them.
 * Only while this member may speak are they given to its stack, and does anything
 * leave that speaks for a service address. That time is set ahead by user space,
 * and ends by itself when user space stands still. ARP and neighbour discovery
 * show the service's hardware address, so that no router learns a member's own and
 * a takeover changes nothing there.
 */
#include "layout.h"
#define COUNTERS SPEAK_COUNTERS
#include "csum.h"
#include "maps.h"
#include "claims.h"
#include "sound.h"

#define PACKET_HOST 0
#define ETH_P_SIGN 0x88b5 /* between the members, about the segment: linux/src/way.rs */
#define ARP_SENDER_HARDWARE 8 /* offset in an ARP packet */
#define ICMPV6_CHECK 2
#define ND_OPTIONS 24
#define ND_SOURCE_LINK 1 /* options with a hardware address (RFC 4861 §4.6.1) */
#define ND_TARGET_LINK 2

/* Until when this member may speak: ns of the kernel's CLOCK_MONOTONIC; 0: never. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} speak_until SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct speak_macs);
} speak_macs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct speak_relay);
} speak_relay SEC(".maps");

static __always_inline int may_speak(void)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&speak_until, &zero);

	return until && bpf_ktime_get_ns() < *(volatile __u64 *)until;
}

static __always_inline struct speak_macs *macs(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&speak_macs, &zero);
}

static __always_inline int same_mac(const __u8 *a, const __u8 *b)
{
	for (int i = 0; i < 6; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

/* Gives a frame to the stack as if it had been sent to this host. */
static __always_inline int take(struct __sk_buff *skb, const __u8 *own)
{
	__u8 mac[6];

	__builtin_memcpy(mac, own, 6);
	return bpf_skb_store_bytes(skb, 0, mac, 6, 0) || bpf_skb_change_type(skb, PACKET_HOST);
}

/* Addresses a frame to the other member, and from this one. */
static __always_inline int readdress(struct __sk_buff *skb, const struct speak_relay *relay,
				     const struct speak_macs *known)
{
	__u8 macs[12];

	__builtin_memcpy(macs, relay->peer, 6);
	__builtin_memcpy(macs + 6, known->own, 6);
	return bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/* Copies a frame to the other member, and leaves it as it was. */
static __always_inline int copy(struct __sk_buff *skb, const struct speak_relay *relay,
				const struct speak_macs *known)
{
	__u8 before[12];

	if (bpf_skb_load_bytes(skb, 0, before, sizeof(before)) || readdress(skb, relay, known))
		return -1;
	count(bpf_clone_redirect(skb, skb->ifindex, 0) ? SPEAK_UNCLONED : SPEAK_CLONED);
	return bpf_skb_store_bytes(skb, 0, before, sizeof(before), 0);
}

static __always_inline int hand_on(struct __sk_buff *skb, const struct speak_relay *relay,
				   const struct speak_macs *known)
{
	if (readdress(skb, relay, known))
		return steal(SPEAK_ODD);
	count(SPEAK_HANDED_ON);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("classifier")
int speak_ingress(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed what = parse(skb, &p);
	struct speak_macs *known = macs();
	int shared, ours = what != PARSED_OTHER && is_address(p.target);
	int clones, hands_on, speaks = may_speak();
	struct speak_relay *relay;
	__u32 zero = 0;
	__u8 to[6];

	relay = bpf_map_lookup_elem(&speak_relay, &zero);
	if (!known || !relay || bpf_skb_load_bytes(skb, 0, to, sizeof(to)))
		return PASS;
	shared = same_mac(to, known->service);
	if (!shared && !ours)
		return PASS;
	clones = shared && speaks && relay->clone;
	hands_on = shared && !speaks && relay->hand_on;
	/* A sign of the members goes where clients' frames go, and is seen on its way. */
	if (what == PARSED_OTHER && skb->protocol == bpf_htons(ETH_P_SIGN)) {
		if (clones || hands_on)
			copy(skb, relay, known);
		return PASS;
	}
	if (hands_on)
		return hand_on(skb, relay, known);
	if (!speaks)
		return steal(SPEAK_LEFT);
	if (ours && what == PARSED_ODD)
		return steal(SPEAK_ODD);
	if (what == PARSED_TCP && is_service(p.target, p.target_port)) {
		if (!is_sound(skb, &p))
			return steal(SPEAK_MALFORMED);
		if ((p.flags & TCP_URG) && clear_urgent(skb, &p))
			return steal(SPEAK_ODD);
	}
	if (clones && ours && copy(skb, relay, known))
		return steal(SPEAK_ODD);
	if (shared && take(skb, known->own))
		return steal(SPEAK_ODD);
	count(SPEAK_TAKEN);
	return PASS;
}

static __always_inline int show_in_arp(struct __sk_buff *skb, const struct speak_macs *known)
{
	__u8 mac[6];

	__builtin_memcpy(mac, known->service, 6);
	return bpf_skb_store_bytes(skb, ETH_HLEN + ARP_SENDER_HARDWARE, mac, sizeof(mac), 0);
}

/* Linux puts the option with the hardware address first. */
static __always_inline int show_in_nd(struct __sk_buff *skb, const struct packet *p,
				      const struct speak_macs *known)
{
	__u8 old[8], new[8];
	__s64 sum;

	if (bpf_skb_load_bytes(skb, p->l4 + ND_OPTIONS, old, sizeof(old)))
		return 0;
	if ((old[0] != ND_SOURCE_LINK && old[0] != ND_TARGET_LINK) || old[1] != 1)
		return 0;
	new[0] = old[0];
	new[1] = old[1];
	__builtin_memcpy(new + 2, known->service, 6);
	sum = bpf_csum_diff((__be32 *)old, sizeof(old), (__be32 *)new, sizeof(new), 0);
	if (sum < 0 || bpf_l4_csum_replace(skb, p->l4 + ICMPV6_CHECK, 0, sum, 0))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4 + ND_OPTIONS, new, sizeof(new), 0);
}

/* Whether a frame only asks for a service address, as every host may. A question
 * without a sender is a claim: that nobody else may have it (RFC 4862 §5.4). */
static __always_inline int only_asks(struct __sk_buff *skb, const struct packet *p)
{
	const __u64 *source = (const __u64 *)p->source;
	__u8 type;

	return p->protocol == IPPROTO_ICMPV6 && !is_address(p->source) &&
	       (source[0] || source[1]) && !bpf_skb_load_bytes(skb, p->l4, &type, 1) &&
	       type == ND_SOLICIT;
}

static __always_inline int is_nd(struct __sk_buff *skb, const struct packet *p)
{
	__u8 type;

	return p->v6 && p->protocol == IPPROTO_ICMPV6 &&
	       !bpf_skb_load_bytes(skb, p->l4, &type, 1) && type >= ND_SOLICIT && type <= ND_REDIRECT;
}

SEC("classifier")
int speak_egress(struct __sk_buff *skb)
{
	struct packet p __attribute__((aligned(8))) = {};
	enum parsed what = parse(skb, &p);
	struct speak_macs *known = macs();

	if (!claims_service(skb, &p, what) || (p.v6 && only_asks(skb, &p)))
		return PASS;
	if (!known || !may_speak())
		return steal(SPEAK_SILENCED);
	if (what == PARSED_OTHER && show_in_arp(skb, known))
		return steal(SPEAK_ODD);
	if (is_nd(skb, &p) && show_in_nd(skb, &p, known))
		return steal(SPEAK_ODD);
	/* No urgent pointer here either, as in what is sent again after a takeover. */
	if (what == PARSED_TCP && (p.flags & TCP_URG) && clear_urgent(skb, &p))
		return steal(SPEAK_ODD);
	count(SPEAK_SENT);
	return PASS;
}

char licence[] SEC("license") = "Dual MIT/GPL";
