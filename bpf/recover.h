/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Copies of the packets that an outage may swallow, for the cache in user space
 * (HALR, thesis §3.2): into the cluster the SYNs or every segment, out of it
 * the headers that say what has arrived. Switched off, it costs one load of a
 * map's value.
 */
#ifndef HOLDFAST_RECOVER_H
#define HOLDFAST_RECOVER_H

#include "capture.h"
#include "maps.h"
#include "parse_copy.h"

/* Records have few fixed sizes, which spares a second copy: headers only (IPv6
 * and all TCP options fit), one segment of an Ethernet frame, the first and the
 * last segment of a longer one, and the same for large MTUs. */
#define RECOVER_SMALL 104
#define RECOVER_SEGMENT 1536
#define RECOVER_PAIR 3072
#define RECOVER_JUMBO 18432

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} recover_control SEC(".maps");

/* Until when bare acknowledgements are held, ns of the kernel's monotonic clock: a
 * daemon that dies holds nothing for longer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} recover_hold SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RECOVER_RING_BYTES);
} recover_packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct recover_count);
} recover_counts SEC(".maps");

static __always_inline void recover_counted(int copied)
{
	__u32 zero = 0;
	struct recover_count *c = bpf_map_lookup_elem(&recover_counts, &zero);

	if (c && copied)
		c->copied += 1;
	else if (c)
		c->lost += 1;
}

/* Fills a record whose data has `room` bytes, a constant, and hands it over.
 * The comparisons with `room` are for the verifier: the caller chose it. */
static __always_inline int recover_fill(struct __sk_buff *skb, struct recovered *to,
					const struct recovered *r, __u32 room, __u32 wake)
{
	__u32 first = (__u32)r->headers + r->head_bytes, tail = r->tail_bytes;
	__u32 half = tail ? room / 2 : room;
	__u8 *data = (__u8 *)(to + 1);

	*to = *r;
	to->tail_from = half;
	if (first == 0 || first > half || bpf_skb_load_bytes(skb, ETH_HLEN, data, first))
		goto discard;
	if (tail) {
		__u32 at = ETH_HLEN + r->headers + r->tail_at;

		if (tail > room / 2 || bpf_skb_load_bytes(skb, at, data + room / 2, tail))
			goto discard;
	}
	recover_counted(1);
	bpf_ringbuf_submit(to, wake);
	return 1;
discard:
	recover_counted(0);
	bpf_ringbuf_discard(to, BPF_RB_NO_WAKEUP);
	return 0;
}

#define RECOVER_COPY(skb, r, room, wake)                                                      \
	do {                                                                                  \
		struct recovered *to =                                                        \
			bpf_ringbuf_reserve(&recover_packets, sizeof(*to) + (room), 0);       \
		if (to)                                                                       \
			return recover_fill(skb, to, r, room, wake);                          \
	} while (0)

/* Whether the packet is copied. A global function, so that the verifier proves
 * it once. */
__attribute__((noinline)) int recover_copy(struct __sk_buff *skb, struct recovered *r)
{
	__u32 first, wake = BPF_RB_NO_WAKEUP;

	if (!r)
		return 0;
	first = (__u32)r->headers + r->head_bytes;
	/* A wake-up for every packet would cost more than all the rest. */
	if (r->direction == RECOVER_HELD ||
	    bpf_ringbuf_query(&recover_packets, BPF_RB_AVAIL_DATA) >= RECOVER_WAKE_BYTES)
		wake = BPF_RB_FORCE_WAKEUP;
	if (!r->tail_bytes && first <= RECOVER_SMALL)
		RECOVER_COPY(skb, r, RECOVER_SMALL, wake);
	else if (!r->tail_bytes && first <= RECOVER_SEGMENT)
		RECOVER_COPY(skb, r, RECOVER_SEGMENT, wake);
	else if (r->tail_bytes && first <= RECOVER_PAIR / 2)
		RECOVER_COPY(skb, r, RECOVER_PAIR, wake);
	else if (first <= RECOVER_JUMBO / 2)
		RECOVER_COPY(skb, r, RECOVER_JUMBO, wake);
	recover_counted(0);
	return 0;
}

/* While what an outage has swallowed is resent, acknowledgements wait until all
 * of it is out: one acknowledgement makes a sender that takes its timeout for a
 * mistake (RFC 3522) send a whole window, and other flows' segments would queue
 * behind that. */
static __always_inline int recover_holds(const struct packet *p, __u32 control)
{
	__u32 zero = 0;
	__u64 *until, at, now;

	if (!(control & RECOVER_HOLDS) || p->payload || p->ttl <= 1 ||
	    (p->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return 0;
	until = bpf_map_lookup_elem(&recover_hold, &zero);
	if (!until)
		return 0;
	now = bpf_ktime_get_ns();
	at = *(volatile __u64 *)until;
	if (at & RECOVER_FROM_NOW)
		*(volatile __u64 *)until = at = now + (at & ~RECOVER_FROM_NOW);
	return now < at;
}

/* Whether the packet has anything for the cache. */
static __always_inline int recover_wants(const struct packet *p, __u32 into, __u32 what)
{
	if (p->flags & (TCP_SYN | TCP_RST))
		return 1;
	if (what < RECOVER_SEGMENTS)
		return 0;
	return into ? p->payload || (p->flags & TCP_FIN) : p->flags & TCP_ACK;
}

/* Shows the cache a packet as it leaves the edge, after all changes. Returns 1
 * if the daemon sends the packet on, so that the caller must not. */
static __always_inline int recover_see(struct __sk_buff *skb, const struct packet *p,
				       __u32 direction)
{
	__u32 zero = 0, into = (direction & 0xff) == RECOVER_INTO, what, segment;
	__u32 *control = bpf_map_lookup_elem(&recover_control, &zero);
	struct recovered r = {};

	what = control ? *(volatile __u32 *)control : RECOVER_OFF;
	if (what == RECOVER_OFF || !recover_wants(p, into, what & RECOVER_POLICY))
		return 0;
	r.direction = direction & 0xff;
	r.way = direction >> RECOVER_WAY_SHIFT;
	r.headers = p->l4 - ETH_HLEN + p->tcp_header;
	r.payload = p->payload;
	segment = skb->gso_size;
	if (into && segment && segment < p->payload) {
		/* The receiver waits for the first segment, and the last one tells
		 * it of the hole between them (SACK). */
		r.gso_size = segment;
		r.head_bytes = segment;
		r.tail_at = (p->payload - 1) / segment * segment;
		r.tail_bytes = p->payload - r.tail_at;
	} else if (into) {
		r.head_bytes = p->payload > RECOVER_JUMBO ? RECOVER_JUMBO : p->payload;
	} else if (recover_holds(p, what)) {
		r.direction = RECOVER_HELD;
	}
	return recover_copy(skb, &r) && r.direction == RECOVER_HELD;
}

/* The daemon's resent packets leave by a socket and pass no program: it shows
 * their beginning here (`BPF_PROG_TEST_RUN`), with their length as the mark. */
SEC("classifier")
int recover_resent(struct __sk_buff *skb)
{
	capture_beginning(skb, CAPTURE_RESENT, skb->mark);
	return TC_ACT_STOLEN;
}

#endif
