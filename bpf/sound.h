/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Which segments every kernel takes alike.
 */
#ifndef HOLDFAST_SOUND_H
#define HOLDFAST_SOUND_H

#include "csum.h"

/* NOP, NOP, timestamps: the options of nearly every segment. */
#define USUAL_OPTIONS bpf_htonl(0x0101080a)
#define USUAL_OPTIONS_BYTES 12

/* Refuses what one kernel takes and another does not: the backup would give its
 * server other bytes than the primary's, or ask for each of them. That is: wrong
 * IPv4 header checksums (RFC 1812 §5.2.2), signed segments, for which no protected
 * listener has a key, options of impossible length (Linux has refused them since
 * 6.7 where it can verify signatures, and ignored them before), and more options
 * than are looked at. */
static __always_inline int is_sound(struct __sk_buff *skb, const struct packet *p)
{
	struct tcp_options o = {};
	__be32 first = 0;

	if (!p->v6) {
		__be32 header[IPV4_HEADER / 4];
		__u32 sum;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, header, sizeof(header)))
			return 0;
		sum = bpf_csum_diff(0, 0, header, sizeof(header), 0);
		sum = (sum & 0xffff) + (sum >> 16);
		if (((sum & 0xffff) + (sum >> 16)) != 0xffff)
			return 0;
	}
	if (p->tcp_header == TCP_HEADER)
		return 1;
	if (p->tcp_header == TCP_HEADER + USUAL_OPTIONS_BYTES &&
	    !bpf_skb_load_bytes(skb, p->l4 + TCP_HEADER, &first, sizeof(first)) &&
	    first == USUAL_OPTIONS)
		return 1;
	options_of(skb, p, &o);
	return !o.cut && !o.is_signed;
}

#endif
