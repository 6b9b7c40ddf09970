/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Finds what the programs need of a frame's IP and TCP headers. Headers are
 * copied with bpf_skb_load_bytes, which also reads non-linear packets.
 */
#ifndef HOLDFAST_PARSE_COPY_H
#define HOLDFAST_PARSE_COPY_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_ECE 0x40
#define TCP_CWR 0x80

#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define TCP_HEADER 20
#define IPV4_FRAGMENT 0x3fff /* offset and more-fragments */
#define LENGTH_MAX 65535     /* what a header's length field can say */

/* Not ours: the next filter, or the stack, decides. TC_ACT_OK would end the
 * classification and hide the packet from later filters. */
#define PASS TC_ACT_UNSPEC

/* The hop-by-hop header with a jumbo payload option (RFC 2675 §2). */
#define JUMBO_BYTES 8
#define JUMBO_OPTION 0xc2

/* Sequence arithmetic, RFC 9293 §3.4. */
#define AFTER(a, b) ((__s32)((__u32)(a) - (__u32)(b)) > 0)

enum parsed {
	PARSED_OTHER, /* not IP: nothing is filled */
	PARSED_IP,    /* not TCP: addresses and protocol are filled */
	PARSED_ODD,   /* TCP behind options, extensions or in fragments: addresses */
	PARSED_TCP,   /* everything is filled */
};

struct packet {
	__u8 source[16];
	__u8 target[16];
	__u32 seq;
	__u32 ack;
	__u32 payload; /* bytes */
	__u32 l3_len;  /* bytes from the IP header on, without Ethernet padding */
	__u16 source_port;
	__u16 target_port;
	__u16 window;
	__u16 l4; /* offset of the transport header in the frame */
	__u8 flags;
	__u8 tcp_header; /* bytes */
	__u8 protocol;
	__u8 ttl;
	__u8 v6;
};

static __always_inline void map_ipv4(__u8 *to, __be32 address)
{
	__builtin_memset(to, 0, 10);
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, &address, 4);
}

static __always_inline enum parsed parse_ipv4(struct __sk_buff *skb, struct packet *p)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 4)
		return PARSED_OTHER;
	map_ipv4(p->source, ip.saddr);
	map_ipv4(p->target, ip.daddr);
	p->protocol = ip.protocol;
	p->ttl = ip.ttl;
	p->l3_len = bpf_ntohs(ip.tot_len);
	p->l4 = ETH_HLEN + IPV4_HEADER;
	if (ip.protocol != IPPROTO_TCP)
		return PARSED_IP;
	if (ip.ihl != 5 || (ip.frag_off & bpf_htons(IPV4_FRAGMENT)))
		return PARSED_ODD;
	return PARSED_TCP;
}

static __always_inline int is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING ||
	       header == IPPROTO_FRAGMENT || header == IPPROTO_DSTOPTS;
}

/* Whether a frame of segments is longer than its length field can say, so that Linux
 * has put a hop-by-hop header before TCP (BIG TCP). It goes when the frame is cut; on
 * a wire there is no such packet. */
static __always_inline int is_jumbo(struct __sk_buff *skb, const struct ipv6hdr *ip)
{
	__u8 header[4];

	return ip->nexthdr == IPPROTO_HOPOPTS && !ip->payload_len && skb->gso_size &&
	       !bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_HEADER, header, sizeof(header)) &&
	       header[0] == IPPROTO_TCP && header[1] == 0 && header[2] == JUMBO_OPTION;
}

static __always_inline enum parsed parse_ipv6(struct __sk_buff *skb, struct packet *p)
{
	struct ipv6hdr ip;
	__u8 next;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6)
		return PARSED_OTHER;
	__builtin_memcpy(p->source, &ip.saddr, 16);
	__builtin_memcpy(p->target, &ip.daddr, 16);
	p->v6 = 1;
	p->protocol = ip.nexthdr;
	p->ttl = ip.hop_limit;
	p->l3_len = ip.payload_len ? bpf_ntohs(ip.payload_len) + IPV6_HEADER : 0;
	p->l4 = ETH_HLEN + IPV6_HEADER;
	if (ip.nexthdr == IPPROTO_TCP)
		return PARSED_TCP;
	if (is_jumbo(skb, &ip)) {
		p->protocol = IPPROTO_TCP;
		p->l4 += JUMBO_BYTES;
		return PARSED_TCP;
	}
	if (!is_extension(ip.nexthdr))
		return PARSED_IP;
	/* Multicast listener reports carry a hop-by-hop header and are not ours;
	 * a longer chain is treated as hidden TCP. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_HEADER, &next, 1))
		return PARSED_ODD;
	return next == IPPROTO_TCP || is_extension(next) ? PARSED_ODD : PARSED_IP;
}

static __always_inline enum parsed parse_tcp(struct __sk_buff *skb, struct packet *p)
{
	struct tcphdr tcp;
	__u32 headers;

	if (bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)))
		return PARSED_ODD;
	p->source_port = bpf_ntohs(tcp.source);
	p->target_port = bpf_ntohs(tcp.dest);
	p->seq = bpf_ntohl(tcp.seq);
	p->ack = bpf_ntohl(tcp.ack_seq);
	p->window = bpf_ntohs(tcp.window);
	p->flags = ((__u8 *)&tcp)[13];
	p->tcp_header = tcp.doff * 4;
	/* A length of 0 is a GSO frame longer than the field can say, or else a
	 * lie. */
	if (!p->l3_len && skb->len > ETH_HLEN + LENGTH_MAX)
		p->l3_len = skb->len - ETH_HLEN;
	headers = p->l4 - ETH_HLEN + p->tcp_header;
	if (p->tcp_header < TCP_HEADER || p->l3_len < headers ||
	    p->l3_len > skb->len - ETH_HLEN)
		return PARSED_ODD;
	p->payload = p->l3_len - headers;
	return PARSED_TCP;
}

/* `p` must be zeroed. */
static __always_inline enum parsed parse(struct __sk_buff *skb, struct packet *p)
{
	enum parsed what;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		what = parse_ipv4(skb, p);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		what = parse_ipv6(skb, p);
	else
		return PARSED_OTHER;
	return what == PARSED_TCP ? parse_tcp(skb, p) : what;
}

/* Bytes of the largest segment on the wire, of a TCP frame of segments; otherwise 0. */
static __always_inline __u32 segment_bytes(struct __sk_buff *skb, const struct packet *p)
{
	if (!p->tcp_header || !skb->gso_size)
		return 0;
	return (p->v6 ? IPV6_HEADER : IPV4_HEADER) + p->tcp_header + skb->gso_size;
}

/* Whether the packet, or a segment of it, does not fit; `mtu` is set, if there is
 * such an interface. */
static __always_inline int is_too_long(struct __sk_buff *skb, const struct packet *p,
				       __u32 ifindex, __u32 *mtu)
{
	__u32 segment = segment_bytes(skb, p);

	*mtu = 0;
	if (bpf_check_mtu(skb, ifindex, mtu, 0, segment ? 0 : BPF_MTU_CHK_SEGS))
		return 1;
	return segment > *mtu;
}

#endif
