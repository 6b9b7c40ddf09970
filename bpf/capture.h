/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What `holdfast capture` shows: the beginning of every packet that a program
 * changed, moved or dropped, and why. Off, it costs one load of a map's value.
 * A reader asks for a number of packets, and asks again, so that a reader that
 * dies is forgotten.
 */
#ifndef HOLDFAST_CAPTURE_H
#define HOLDFAST_CAPTURE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __s64);
} capture_credit SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURE_RING_BYTES);
} captures SEC(".maps");

/* `wire_bytes` is the length of the whole packet; `skb` may be only its
 * beginning. */
static __always_inline void capture_beginning(struct __sk_buff *skb, __u32 what, __u32 wire_bytes)
{
	__u32 zero = 0, len = skb->len;
	__s64 *credit = bpf_map_lookup_elem(&capture_credit, &zero);
	struct captured *c;

	if (!credit || *(volatile __s64 *)credit <= 0)
		return;
	__sync_fetch_and_add(credit, -1);
	c = bpf_ringbuf_reserve(&captures, sizeof(*c), 0);
	if (!c) /* the reader is slow: it misses packets, nobody waits */
		return;
	c->at_ns = bpf_ktime_get_boot_ns();
	c->ifindex = skb->ifindex;
	c->what = what;
	c->wire_bytes = wire_bytes;
	if (len > CAPTURE_BYTES_MAX)
		len = CAPTURE_BYTES_MAX;
	c->bytes = len;
	/* The bounds are for the verifier, which does not follow the two lines above. */
	if (len == 0 || len > CAPTURE_BYTES_MAX || bpf_skb_load_bytes(skb, 0, c->data, len)) {
		bpf_ringbuf_discard(c, BPF_RB_NO_WAKEUP);
		return;
	}
	bpf_ringbuf_submit(c, 0);
}

static __always_inline void capture(struct __sk_buff *skb, __u32 what)
{
	capture_beginning(skb, what, skb->len);
}

#endif
