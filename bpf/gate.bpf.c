// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The gate on the primary's service interface. It holds each SYN-ACK until user
 * space has a replicated record of the connection, clamps every ACK to what the
 * backup holds (`stable`), keeps the advertised right edge, and swallows every
 * FIN and RST that the server did not ask for. Payload is never delayed. While
 * the server speaks alone, everything passes unchanged, and slots are only kept
 * so that a backup can join later; new connections without one are refused, as
 * long as somebody frees slots.
 */
#include "layout.h"
#define COUNTERS GATE_COUNTERS
#include "csum.h"
#include "maps.h"

/* LRU: a lost entry withholds one SYN-ACK until the client repeats its SYN. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GATE_SYNS_MAX);
	__type(key, struct conn_key);
	__type(value, struct syn_offer);
} gate_syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GATE_SLOTS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, __u32);
} gate_conns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GATE_SLOTS_DEFAULT);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct gate_slot);
} gate_slots SEC(".maps");

/* First in, first out, so that a freed slot rests as long as possible. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, GATE_SLOTS_DEFAULT);
	__uint(value_size, 4);
} gate_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, GATE_EVENTS_BYTES);
} gate_events SEC(".maps");

/* Whether an RST leaves for a connection without a slot (decision 11): GATE_KEEPS_RESETS
 * once the server's process is dead, GATE_DEFERS_RESETS where another member may speak
 * before this host knows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gate_dead SEC(".maps");

/* When the latest request was sent for which this host got the right to speak:
 * CLOCK_MONOTONIC in ns; 0 if there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} gate_asked SEC(".maps");

/* When a connection without a slot was found here. LRU: a client whose note is lost is
 * told by one more packet of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GATE_UNKNOWN_MAX);
	__type(key, struct conn_key);
	__type(value, __u64);
} gate_unknown SEC(".maps");

/* 1 while the server speaks alone: nothing is withheld or changed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gate_solo SEC(".maps");

/* Until when somebody frees the slots of connections that are over: CLOCK_MONOTONIC
 * in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} gate_minded SEC(".maps");

static __always_inline int is_alone(void)
{
	__u32 zero = 0, *solo = bpf_map_lookup_elem(&gate_solo, &zero);

	return solo && *(volatile __u32 *)solo;
}

/* A daemon that is dead frees nothing: its server would soon be shut off. */
static __always_inline int is_minded(void)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&gate_minded, &zero);

	return until && bpf_ktime_get_coarse_ns() < *(volatile __u64 *)until;
}

/* A client that knows nothing of the connection resets it at the ACK that it was shown
 * (RFC 9293 §3.10.7.1). The stack may have acknowledged more, and would ignore that: for
 * ever, where bytes in between never become stable. */
static __always_inline void aim_reset(struct __sk_buff *skb, const struct packet *p,
				      const struct conn_key *key)
{
	__u32 *index = bpf_map_lookup_elem(&gate_conns, key);
	struct gate_slot *slot = index ? bpf_map_lookup_elem(&gate_slots, index) : 0;

	if (slot && p->seq == slot->last_ack && AFTER(slot->rcv_nxt, p->seq))
		set_tcp_word(skb, p, offsetof(struct tcphdr, seq), bpf_htonl(p->seq),
			     bpf_htonl(slot->rcv_nxt));
}

SEC("classifier")
int gate_ingress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct tcp_options o = {};
	struct conn_key key = {};
	struct syn_offer offer = {};

	if (parse(skb, &p) != PARSED_TCP || !(p.flags & (TCP_SYN | TCP_RST)))
		return PASS;
	if (!is_service(p.target, p.target_port))
		return PASS;
	__builtin_memcpy(key.server, p.target, 16);
	__builtin_memcpy(key.client, p.source, 16);
	key.server_port = p.target_port;
	key.client_port = p.source_port;
	if ((p.flags & (TCP_SYN | TCP_RST)) == TCP_RST)
		aim_reset(skb, &p, &key);
	if ((p.flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return PASS;
	options_of(skb, &p, &o);
	if (o.cut)
		return PASS;
	offer.seq = p.seq;
	offer.mss = o.mss;
	offer.wscale = o.wscale;
	offer.sack = o.sack_permitted;
	offer.ts = o.has_ts;
	bpf_map_update_elem(&gate_syns, &key, &offer, BPF_ANY);
	count(GATE_SYNS);
	return PASS;
}

static __always_inline void fill_slot(struct gate_slot *slot, const struct packet *p,
				      const struct tcp_options *o, const struct syn_offer *offer,
				      const struct conn_key *key, int alone)
{
	__u32 gen = slot->gen + 1;

	if (gen == 0) /* 0 is what user space's words hold before their first store */
		gen = 1;
	slot->gen = gen;
	if (alone)
		slot->open_gen = gen;
	slot->stable = (__u64)gen << 32 | p->ack;
	slot->iss = p->seq;
	slot->irs = p->ack - 1;
	slot->snd_una = slot->snd_nxt = p->seq + 1;
	slot->rcv_nxt = slot->last_ack = p->ack;
	/* Windows on SYNs are unscaled (RFC 7323 §2.2). */
	slot->right_edge = slot->last_edge = p->ack + p->window;
	slot->tsval = o->tsval;
	slot->tsecr = o->tsecr;
	slot->mss = o->mss;
	slot->peer_mss = offer->mss;
	slot->window = p->window;
	slot->rcv_wscale = o->wscale;
	/* Both sides scale or neither does (RFC 7323 §2.2). */
	slot->snd_wscale = o->wscale == NO_SCALE ? NO_SCALE : offer->wscale;
	slot->sack = o->sack_permitted;
	slot->has_ts = o->has_ts;
	slot->key = *key;
}

static __always_inline void fill_event(struct gate_event *event, const struct gate_slot *slot,
				       __u32 index, int alone)
{
	event->passed = alone;
	event->index = index;
	event->gen = slot->gen;
	event->iss = slot->iss;
	event->irs = slot->irs;
	event->tsval = slot->tsval;
	event->tsecr = slot->tsecr;
	event->mss = slot->mss;
	event->peer_mss = slot->peer_mss;
	event->window = slot->window;
	event->rcv_wscale = slot->rcv_wscale;
	event->snd_wscale = slot->snd_wscale;
	event->sack = slot->sack;
	event->has_ts = slot->has_ts;
	event->key = slot->key;
}

/* Whether the handshake is open. A handshake that passed alone is: it cannot be
 * called back. */
static __always_inline int may_pass(struct gate_slot *slot, int alone)
{
	if (*(volatile __u32 *)&slot->open_gen == slot->gen)
		return 1;
	if (alone)
		slot->open_gen = slot->gen;
	return alone;
}

/* Learns the client's view of the server's clock: the timestamps that it has
 * seen, or will see. */
static __always_inline void learn_clock(struct gate_slot *slot, const struct tcp_options *o)
{
	if (o->has_ts && !AFTER(slot->tsval, o->tsval)) {
		slot->tsval = o->tsval;
		/* What a takeover sends by itself echoes nothing. */
		if (o->tsecr)
			slot->tsecr = o->tsecr;
	}
}

/* Makes a slot for a new connection and hands the packet to user space: returns
 * GATE_HELD_SYN_ACKS, or the counter of what prevents that. The event is reserved
 * first, so that nothing is left behind if a step fails. */
static __always_inline __u32 make_slot(struct __sk_buff *skb, const struct packet *p,
				       const struct tcp_options *o, const struct syn_offer *offer,
				       const struct conn_key *key, __u64 insert, int alone)
{
	struct gate_event *event = bpf_ringbuf_reserve(&gate_events, sizeof(*event), 0);
	__u32 index, len = p->l3_len;
	struct gate_slot *slot;

	if (!event)
		return GATE_REFUSED_EVENTS;
	/* The request's cookie becomes the cookie of the accepted socket. */
	event->socket = bpf_get_socket_cookie(skb);
	if (!event->socket) {
		bpf_ringbuf_discard(event, 0);
		return GATE_ODD;
	}
	if (len > SYN_ACK_BYTES_MAX)
		len = SYN_ACK_BYTES_MAX;
	if (len == 0 || bpf_skb_load_bytes(skb, ETH_HLEN, event->packet, len)) {
		bpf_ringbuf_discard(event, 0);
		return GATE_ODD;
	}
	event->packet_len = len;
	if (bpf_map_pop_elem(&gate_free, &index)) {
		bpf_ringbuf_discard(event, 0);
		return GATE_REFUSED_SLOTS;
	}
	slot = bpf_map_lookup_elem(&gate_slots, &index);
	if (!slot) {
		bpf_ringbuf_discard(event, 0);
		return GATE_REFUSED_SLOTS;
	}
	fill_slot(slot, p, o, offer, key, alone);
	if (bpf_map_update_elem(&gate_conns, key, &index, insert)) {
		bpf_map_push_elem(&gate_free, &index, 0);
		bpf_ringbuf_discard(event, 0);
		return GATE_REFUSED_SLOTS;
	}
	fill_event(event, slot, index, alone);
	bpf_ringbuf_submit(event, 0);
	return GATE_HELD_SYN_ACKS;
}

static __always_inline __u32 on_new(struct __sk_buff *skb, const struct packet *p,
				    const struct conn_key *key, __u64 insert, int alone)
{
	struct tcp_options o = {};
	struct syn_offer *offer;

	options_of(skb, p, &o);
	if (o.refused || o.cut || p->payload)
		return GATE_REFUSED_OPTIONS;
	offer = bpf_map_lookup_elem(&gate_syns, key);
	if (!offer || offer->seq != p->ack - 1)
		return GATE_REFUSED_UNKNOWN_SYN;
	return make_slot(skb, p, &o, offer, key, insert, alone);
}

static __always_inline int on_syn_ack(struct __sk_buff *skb, const struct packet *p,
				      const struct conn_key *key, struct gate_slot *slot,
				      int alone)
{
	struct tcp_options o = {};
	__u32 what;

	if (slot && slot->iss == p->seq && slot->irs == p->ack - 1) {
		if (!may_pass(slot, alone))
			return steal(GATE_HELD_REPEATS);
		options_of(skb, p, &o);
		learn_clock(slot, &o);
		return PASS;
	}
	what = on_new(skb, p, key, slot ? BPF_ANY : BPF_NOEXIST, alone);
	if (alone && what == GATE_HELD_SYN_ACKS)
		return PASS;
	/* A connection without a slot would end when a backup has joined. */
	if (!alone || is_minded())
		return steal(what);
	/* What the slot knows of the tuple's former life is not true of this one. */
	if (slot)
		bpf_map_delete_elem(&gate_conns, key);
	count(GATE_UNKNOWN_ALONE);
	return PASS;
}

/* Where this host may have been replaced without knowing it, the other member may have
 * the connection. The client's next packet asks again. If this host was still the one
 * that speaks after the first one had come, nobody had the connection. */
static __always_inline int on_deferred_reset(const struct conn_key *key)
{
	__u64 now = bpf_ktime_get_ns(), *found = bpf_map_lookup_elem(&gate_unknown, key);
	__u32 zero = 0;
	__u64 *asked = bpf_map_lookup_elem(&gate_asked, &zero);

	if (found && now - *found < GATE_UNKNOWN_NS) {
		if (!asked || *(volatile __u64 *)asked <= *found)
			return steal(GATE_DEAD_RESETS);
		count(GATE_LATE_RESETS);
		return PASS;
	}
	bpf_map_update_elem(&gate_unknown, key, &now, BPF_ANY);
	return steal(GATE_DEAD_RESETS);
}

static __always_inline int on_no_slot(const struct packet *p, const struct conn_key *key)
{
	__u32 zero = 0, *dead;

	if (!(p->flags & TCP_RST))
		return steal(GATE_STRAY);
	/* RFC 9293 §3.10.7.1: the answer to a segment without ACK has SEQ=0. A
	 * client whose SYN met no listener shall try again, not give up. */
	if ((p->flags & TCP_ACK) && p->seq == 0)
		return steal(GATE_SYN_RESETS);
	dead = bpf_map_lookup_elem(&gate_dead, &zero);
	if (!dead || *dead == GATE_KEEPS_RESETS)
		return steal(GATE_DEAD_RESETS);
	return *dead == GATE_DEFERS_RESETS ? on_deferred_reset(key) : PASS;
}

/* Tracks what the kernel itself holds acknowledged. It is never learnt from
 * packets: one forged ACK would discard output that the client lacks (decision
 * 9). */
static __always_inline void track_snd_una(struct __sk_buff *skb, struct gate_slot *slot)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;
	__u32 snd_una;

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return;
	snd_una = tcp->snd_una;
	if (AFTER(snd_una, slot->snd_una) && !AFTER(snd_una, slot->snd_nxt))
		slot->snd_una = snd_una;
}

static __always_inline void track_sent(struct gate_slot *slot, __u32 seq_end, __u32 ack, __u32 edge)
{
	if (AFTER(seq_end, slot->snd_nxt))
		slot->snd_nxt = seq_end;
	if (AFTER(ack, slot->last_ack))
		slot->last_ack = ack;
	if (AFTER(edge, slot->last_edge))
		slot->last_edge = edge;
}

/* Sets ACK and window so that the right edge stays (law L4). */
static __always_inline int rewrite_ack(struct __sk_buff *skb, const struct packet *p, __u32 ack,
				       __u32 window)
{
	if (set_tcp_word(skb, p, offsetof(struct tcphdr, ack_seq), bpf_htonl(p->ack), bpf_htonl(ack)))
		return -1;
	return set_tcp_half(skb, p, offsetof(struct tcphdr, window), bpf_htons(p->window),
			    bpf_htons(window));
}

static __always_inline int clamp(struct __sk_buff *skb, const struct packet *p,
				 struct gate_slot *slot, __u32 stable, __u32 seq_end, int own,
				 struct tcp_options *o)
{
	__u32 scale = slot->rcv_wscale == NO_SCALE ? 0 : slot->rcv_wscale & 15;
	__u32 edge = p->ack + ((__u32)p->window << scale), window, shown;
	__u32 has_sack = o->sack_len;
	int pure = seq_end == p->seq && !(p->flags & (TCP_RST | TCP_ECE | TCP_CWR));

	window = (edge - stable) >> scale;
	if (window > 65535)
		window = 65535;
	shown = stable + (window << scale);
	/* Above the rewritten ACK a D-SACK (RFC 2883) would read as a SACK of
	 * bytes that are not stable (decision 12). */
	if (has_sack && !AFTER(o->sack_end, p->ack) && AFTER(o->sack_end, stable)) {
		if (blank_sack(skb, p, o))
			return steal(GATE_ODD);
		has_sack = 0;
		count(GATE_DSACKS);
	}
	/* A repeat would count as a duplicate ACK (RFC 5681 §2). It need not
	 * leave: an ACK of more follows when `stable` advances. */
	if (pure && !has_sack && stable == slot->last_ack && !AFTER(shown, slot->last_edge))
		return steal(GATE_REPEATS);
	if (rewrite_ack(skb, p, stable, window))
		return steal(GATE_ODD);
	if (own)
		track_sent(slot, seq_end, stable, shown);
	count(GATE_CLAMPED);
	return PASS;
}

/* What may be acknowledged: what is stable, and what was acknowledged while the
 * server spoke alone. The client no longer keeps the latter; it drops a segment
 * that acknowledges much less (RFC 5961 §5.2), and from there a window may not
 * reach the right edge (law L4). */
static __always_inline __u32 stable_of(const struct gate_slot *slot, __u32 gen)
{
	__u64 word = *(volatile __u64 *)&slot->stable;
	/* A word of another generation says nothing about this connection. */
	__u32 stable = word >> 32 == gen ? (__u32)word : slot->irs + 1;

	return AFTER(slot->last_ack, stable) ? slot->last_ack : stable;
}

/* Whether a reset's number is one of this life of the tuple: it answers an
 * acknowledgement, which covers nothing that was never sent. A client that uses the
 * tuple again, while the slot of its last life is still there, must not be reset by a
 * stack that knows neither: another member may serve it by now. */
static __always_inline int is_of_this_life(const struct packet *p, const struct gate_slot *slot)
{
	return AFTER(p->seq, slot->iss) && !AFTER(p->seq, slot->snd_nxt + 1);
}

static __always_inline int on_segment(struct __sk_buff *skb, const struct packet *p,
				      struct gate_slot *slot, int alone)
{
	__u32 scale = slot->rcv_wscale == NO_SCALE ? 0 : slot->rcv_wscale & 15;
	__u32 edge = p->ack + ((__u32)p->window << scale);
	__u32 seq_end = p->seq + p->payload, gen = slot->gen, stable;
	int asked = alone || *(volatile __u32 *)&slot->fin_gen == gen;
	/* A reset's numbers answer a packet, and need not be the stack's own. A segment
	 * without payload that lies beyond everything sent, a FIN included, belongs to
	 * another life of the tuple: its handshake is not known here, and the stack answers
	 * a SYN that does not fit it. */
	int own = !(p->flags & TCP_RST) && (p->payload || !AFTER(p->seq, slot->snd_nxt + 1));
	struct tcp_options o = {};

	if (!may_pass(slot, alone))
		return steal(GATE_UNOPENED);
	if (alone && (p->flags & (TCP_RST | TCP_ACK)) != TCP_ACK)
		return PASS; /* it says nothing that is sure to be the stack's */
	if ((p->flags & TCP_RST) && (!asked || !is_of_this_life(p, slot)))
		return steal(GATE_HELD_RESETS);
	if (!(p->flags & TCP_ACK))
		return p->flags & TCP_RST ? PASS : steal(GATE_STRAY);
	if (own && AFTER(p->ack, slot->rcv_nxt))
		slot->rcv_nxt = p->ack;
	/* Stolen packets count, too: the ACK that is owed speaks for them. */
	if (p->tcp_header > TCP_HEADER) {
		options_of(skb, p, &o);
		if (own)
			learn_clock(slot, &o);
	}
	if (p->flags & TCP_FIN) {
		if (!asked && p->payload == 0)
			return steal(GATE_HELD_FINS);
		if (alone)
			slot->fin_gen = gen; /* so that it can be repeated later */
		if (asked)
			seq_end++;
		else if (clear_flag(skb, p, TCP_FIN))
			return steal(GATE_ODD);
		else
			count(GATE_CLEARED_FINS);
	} else if (!asked && !p->payload && p->seq == slot->snd_nxt + 1) {
		/* The segment counts a FIN that was withheld. */
		return steal(GATE_HELD_FINS);
	}
	if (own && AFTER(edge, slot->right_edge))
		slot->right_edge = edge;
	stable = stable_of(slot, gen);
	if (!alone && AFTER(p->ack, stable)) {
		int verdict = clamp(skb, p, slot, stable, seq_end, own, &o);

		track_snd_una(skb, slot);
		return verdict;
	}
	if (own)
		track_sent(slot, seq_end, p->ack, edge);
	track_snd_una(skb, slot);
	return PASS;
}

SEC("classifier")
int gate_egress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct conn_key key = {};
	struct gate_slot *slot = 0;
	enum parsed what = parse(skb, &p);
	int alone = is_alone();
	__u32 *index;

	if (what == PARSED_ODD && is_address(p.source) && !alone)
		return steal(GATE_ODD);
	if (what != PARSED_TCP || !is_service(p.source, p.source_port))
		return PASS;
	__builtin_memcpy(key.server, p.source, 16);
	__builtin_memcpy(key.client, p.target, 16);
	key.server_port = p.source_port;
	key.client_port = p.target_port;
	index = bpf_map_lookup_elem(&gate_conns, &key);
	if (index)
		slot = bpf_map_lookup_elem(&gate_slots, index);
	if ((p.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
		return on_syn_ack(skb, &p, &key, slot, alone);
	if (slot)
		return on_segment(skb, &p, slot, alone);
	return alone ? PASS : on_no_slot(&p, &key);
}

char licence[] SEC("license") = "Dual MIT/GPL";
