/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * TCP options: those that a connection's record needs, the timestamps, and the
 * place of the SACK option.
 */
#ifndef HOLDFAST_OPTIONS_H
#define HOLDFAST_OPTIONS_H

#include "layout.h"
#include "parse_copy.h"

#define OPTIONS_MAX 40
#define SCALE_MAX 14 /* RFC 7323 §2.3 */

#define OPT_END 0
#define OPT_NOP 1
#define OPT_MSS 2
#define OPT_WSCALE 3
#define OPT_SACK_PERMITTED 4
#define OPT_SACK 5
#define OPT_TIMESTAMPS 8
#define OPT_MD5 19
#define OPT_AO 29
#define OPT_MPTCP 30
#define OPT_FAST_OPEN 34
#define OPT_EXPERIMENT_1 253
#define OPT_EXPERIMENT_2 254

struct tcp_options {
	__u8 raw[OPTIONS_MAX];
	__u32 tsval;
	__u32 tsecr;
	__u32 sack_end; /* right end of the first block */
	__u16 mss;      /* 0: none */
	__u8 mss_at;    /* offset of the MSS option in raw, if there is one */
	__u8 sack_at;   /* offset of the SACK option in raw */
	__u8 sack_len;  /* its bytes; 0: none */
	__u8 wscale;
	__u8 sack_permitted;
	__u8 has_ts;
	__u8 refused; /* an option that a repaired socket could not have */
	__u8 is_signed; /* TCP-MD5 or TCP-AO */
	__u8 cut;     /* malformed */
};

static __always_inline __u32 be32_at(const __u8 *at)
{
	return (__u32)at[0] << 24 | (__u32)at[1] << 16 | (__u32)at[2] << 8 | at[3];
}

static __always_inline void take_option(struct tcp_options *o, __u32 at, __u8 kind, __u8 len)
{
	if (kind == OPT_MSS && len == 4 && at <= OPTIONS_MAX - 4) {
		o->mss = o->raw[at + 2] << 8 | o->raw[at + 3];
		o->mss_at = at;
	} else if (kind == OPT_WSCALE && len == 3 && at <= OPTIONS_MAX - 3) {
		__u8 scale = o->raw[at + 2];

		o->wscale = scale > SCALE_MAX ? SCALE_MAX : scale;
	} else if (kind == OPT_SACK_PERMITTED) {
		o->sack_permitted = 1;
	} else if (kind == OPT_TIMESTAMPS && len == 10 && at <= OPTIONS_MAX - 10) {
		o->has_ts = 1;
		o->tsval = be32_at(o->raw + at + 2);
		o->tsecr = be32_at(o->raw + at + 6);
	} else if (kind == OPT_SACK && len >= 10 && at <= OPTIONS_MAX - 10) {
		o->sack_at = at;
		o->sack_len = len;
		o->sack_end = be32_at(o->raw + at + 6);
	} else if (kind == OPT_MD5 || kind == OPT_AO || kind == OPT_MPTCP ||
		   kind == OPT_FAST_OPEN || kind == OPT_EXPERIMENT_1 || kind == OPT_EXPERIMENT_2) {
		o->refused = 1;
		o->is_signed |= kind == OPT_MD5 || kind == OPT_AO;
	}
}

/* Takes the option at `next` of `len` bytes of `o->raw`. Returns the place of the one
 * behind it: OPTIONS_MAX behind the last. A global function, so that the verifier
 * proves it for any place, and each step of a list costs it a call: with places that
 * it could tell apart, a daemon's start took seconds. */
__attribute__((noinline)) int next_option(struct tcp_options *o, __u32 next, __u32 len)
{
	__u8 kind, size;

	if (!o || next >= len || next >= OPTIONS_MAX)
		return OPTIONS_MAX;
	kind = o->raw[next];
	if (kind == OPT_END)
		return OPTIONS_MAX;
	if (kind == OPT_NOP)
		return next + 1;
	size = next <= OPTIONS_MAX - 2 ? o->raw[next + 1] : 0;
	if (size < 2 || next + size > len) {
		o->cut = 1;
		return OPTIONS_MAX;
	}
	take_option(o, next, kind, size);
	return next + size;
}

/* Fills `o` with the `len` option bytes at frame offset `at`. A global function,
 * so that the verifier proves it once and not once per caller. */
__attribute__((noinline)) int read_options(struct __sk_buff *skb, __u32 at, __u32 len,
					   struct tcp_options *o)
{
	__u32 next = 0;

	if (!o)
		return 1;
	__builtin_memset(o, 0, sizeof(*o));
	o->wscale = NO_SCALE;
	if (len == 0)
		return 0;
	if (len > OPTIONS_MAX || bpf_skb_load_bytes(skb, at, o->raw, len)) {
		o->cut = 1;
		return 1;
	}
	/* Each step is a byte or more. */
	for (int i = 0; i < OPTIONS_MAX && next < len; i++)
		next = next_option(o, next, len);
	return o->cut;
}

__attribute__((noinline)) int nop_out_sack(struct tcp_options *o)
{
	if (!o)
		return 1;
	for (__u32 i = 0; i < OPTIONS_MAX; i++) {
		__u32 at = o->sack_at + i;

		if (i >= o->sack_len || at >= OPTIONS_MAX)
			break;
		o->raw[at] = OPT_NOP;
	}
	o->sack_len = 0;
	return 0;
}

static __always_inline void options_of(struct __sk_buff *skb, const struct packet *p,
				       struct tcp_options *o)
{
	read_options(skb, p->l4 + TCP_HEADER, p->tcp_header - TCP_HEADER, o);
}

#endif
