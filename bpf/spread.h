/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The memory of a redirector: who serves what, and which host server every flow
 * is at. All processors share it.
 *
 * A SYN makes an embryo, in a table that forgets the oldest: a flood of SYNs
 * displaces only other SYNs. The next packet makes a flow, in a table that
 * forgets nobody: full, it refuses new connections and harms no old one (law
 * L6). A connection whose handshake passed before the edge booted begins as an
 * embryo, too, with whatever it says first. A datagram's flow is remembered while
 * it is in use, and there is room.
 */
#ifndef HOLDFAST_SPREAD_H
#define HOLDFAST_SPREAD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "parse_direct.h"

/* Seconds after which a datagram's flow may go elsewhere. */
#define DATAGRAM_AGE 30
/* Seconds for which a client must come back that sends no payload, as one that only
 * downloads, until its connection counts as established. */
#define ESTABLISHED_AFTER 30
#define LIVED_MAX 0xffff
#define NOBODY 255

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spread_config);
} spread_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SPREAD_DIRECTORIES);
	__type(key, __u32);
	__type(value, struct spread_directory);
} spread_directories SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SPREAD_TABLES);
	__type(key, __u32);
	__type(value, struct spread_table);
} spread_tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SPREAD_HOSTS_MAX);
	__type(key, __u32);
	__type(value, struct spread_host);
} spread_hosts SEC(".maps");

/* IPv4 has tables of its own, since hashing 12 bytes costs half of hashing 36. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPREAD_FLOWS_DEFAULT);
	__type(key, struct spread_key4);
	__type(value, struct spread_flow);
} spread_flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPREAD_FLOWS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_flows6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_EMBRYOS_MAX);
	__type(key, struct spread_key4);
	__type(value, struct spread_flow);
} spread_embryos4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_EMBRYOS_MAX);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_embryos6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_DATAGRAMS_MAX);
	__type(key, struct spread_key4);
	__type(value, struct spread_flow);
} spread_datagrams4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_DATAGRAMS_MAX);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_datagrams6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_FRAGMENTS_MAX);
	__type(key, struct spread_fragment);
	__type(value, struct spread_flow);
} spread_fragments SEC(".maps");

/* The tick in which the table of flows was found full, plus one; of IPv4, then
 * of IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} spread_full SEC(".maps");

/* What is known while one packet is handled. */
struct handling {
	const struct spread_config *config;
	__u32 table;
	__u32 source; /* the bits of the outer source that are the flow's own */
	__u32 traced; /* neither counted nor remembered */
	__u8 how;     /* enum trace_how */
	__u8 host;
	__u8 v6;
	__u8 opened; /* the first packet after a handshake */
};

static __always_inline void note(const struct handling *h, __u32 which)
{
	if (!h->traced)
		count(which);
}

/* Hash of a flow. It is the same in all edges of a group, which share the seed,
 * and for both directions: client and service are always in their places. */
static __always_inline __u64 flow_hash(const struct spread_config *config,
				       const struct conn_key *key)
{
	__u64 words[4], hash = config->seed;

	__builtin_memcpy(words, key, sizeof(words));
	for (int i = 0; i < 4; i++) {
		hash = (hash ^ words[i]) * 0xff51afd7ed558ccdull;
		hash ^= hash >> 32;
	}
	hash = (hash ^ ((__u64)key->client_port << 16 | key->server_port)) * 0xc4ceb9fe1a85ec53ull;
	return hash ^ hash >> 29;
}

/* Chooses the host server of a flow that has none yet. */
static __always_inline void choose(struct handling *h, const struct conn_key *key)
{
	struct spread_table *table = bpf_map_lookup_elem(&spread_tables, &h->table);
	__u64 hash = flow_hash(h->config, key);
	/* The hash as a fraction of the entries, below MAGLEV_ENTRIES by
	 * construction. */
	__u64 entry = (hash >> 32) * MAGLEV_ENTRIES >> 32;

	h->source = hash;
	h->host = table ? table->hosts[entry] : NOBODY;
}

/* Sends the packet to the flow's remembered host server. */
static __always_inline void follow(struct handling *h, const struct spread_flow *flow, __u8 how)
{
	h->how = how;
	h->host = flow->host;
	h->source = flow->hash;
}

static __always_inline struct spread_host *host_at(__u8 index)
{
	__u32 key = index;

	return index == NOBODY ? 0 : bpf_map_lookup_elem(&spread_hosts, &key);
}

static __always_inline int is_dead(__u8 index)
{
	struct spread_host *host = host_at(index);

	return !host || (host->state != SPREAD_UP && host->state != SPREAD_DRAINING);
}

/* Whether another life of this flow's tuple may begin at the same host
 * server. */
static __always_inline int stays(const struct spread_flow *flow)
{
	struct spread_host *host = host_at(flow->host);

	if (!host)
		return 0;
	return host->state == SPREAD_UP ||
	       (host->state == SPREAD_DRAINING && !(flow->flags & (FLOW_CLIENT_FIN | FLOW_RESET)));
}

static __always_inline struct spread_key4 short_key(const struct conn_key *key)
{
	struct spread_key4 key4 = { .ports = (__u32)key->client_port << 16 | key->server_port };

	__builtin_memcpy(&key4.server, key->server + 12, 4);
	__builtin_memcpy(&key4.client, key->client + 12, 4);
	return key4;
}

/* The compiler may not make one call of two: the verifier turns a lookup into
 * instructions only where it knows the map. */
#define IN_TABLE(table, h, key, call, ...)                                       \
	({                                                                       \
		__typeof__(call(&table##6, key, ##__VA_ARGS__)) found;           \
		if ((h)->v6) {                                                   \
			found = call(&table##6, key, ##__VA_ARGS__);             \
		} else {                                                         \
			struct spread_key4 key4 = short_key(key);                \
			found = call(&table##4, &key4, ##__VA_ARGS__);           \
			asm volatile("");                                        \
		}                                                                \
		found;                                                           \
	})

static __always_inline struct spread_flow *flow_of(const struct handling *h,
						   const struct conn_key *key)
{
	return IN_TABLE(spread_flows, h, key, bpf_map_lookup_elem);
}

static __always_inline struct spread_flow *embryo_of(const struct handling *h,
						     const struct conn_key *key)
{
	return IN_TABLE(spread_embryos, h, key, bpf_map_lookup_elem);
}

static __always_inline struct spread_flow *datagrams_of(const struct handling *h,
							const struct conn_key *key)
{
	return IN_TABLE(spread_datagrams, h, key, bpf_map_lookup_elem);
}

static __always_inline int is_full(const struct handling *h)
{
	__u32 which = h->v6, *full = bpf_map_lookup_elem(&spread_full, &which);

	return full && *full && h->config->tick - (*full - 1) <= 1;
}

static __always_inline void found_full(const struct handling *h)
{
	__u32 which = h->v6, *full = bpf_map_lookup_elem(&spread_full, &which);

	if (full)
		*full = h->config->tick + 1;
}

/* The stamp is written only when it changes, because processors share the
 * entry. */
static __always_inline void stamp(struct spread_flow *flow, const struct handling *h)
{
	__u32 lived = flow->lived + (h->config->tick - flow->tick);

	if (flow->tick == h->config->tick || h->traced)
		return;
	flow->lived = lived > LIVED_MAX ? LIVED_MAX : lived;
	flow->tick = h->config->tick;
}

/* Notes how soon the entry may be forgotten. The answers do not pass here, so nothing
 * proves that there is a client; but it costs more to pretend one that says something,
 * or goes on for long. A connection that goes on after a RST was not reset: the RST was
 * forged. */
static __always_inline void note_flags(struct spread_flow *flow, const struct look *k)
{
	__u8 flags = flow->flags;

	if (k->l3_len > k->headers || flow->lived >= ESTABLISHED_AFTER)
		flags |= FLOW_ESTABLISHED;
	if (k->tcp_flags & TCP_RST)
		flags |= FLOW_RESET;
	else
		flags = (flags & ~FLOW_RESET) | FLOW_OPENED;
	if (k->tcp_flags & TCP_FIN)
		flags |= FLOW_CLIENT_FIN;
	if (flags != flow->flags)
		flow->flags = flags;
}

/* A connection begins, or its SYN is repeated. */
static __always_inline int place_syn(struct handling *h, const struct conn_key *key)
{
	struct spread_flow *flow = flow_of(h, key), fresh = {};

	if (flow && stays(flow)) {
		/* A SYN into an existing connection: its server answers with a challenge (RFC
		 * 5961 §4). */
		follow(h, flow, TRACE_FLOW);
		if (!h->traced && (flow->flags & (FLOW_CLIENT_FIN | FLOW_RESET))) {
			flow->tick = h->config->tick;
			flow->flags = 0;
			flow->lived = 0;
		}
		/* Its client may have begun anew without saying so. */
		if (!h->traced && (flow->flags & FLOW_OPENED))
			flow->flags &= ~FLOW_OPENED;
		return 1;
	}
	if (!flow) {
		struct spread_flow *embryo = embryo_of(h, key);

		if (embryo && !(embryo->flags & FLOW_LEARNT) && !is_dead(embryo->host)) {
			follow(h, embryo, TRACE_EMBRYO);
			return 1;
		}
	}
	h->how = TRACE_NEW;
	choose(h, key);
	if (h->traced || h->host == NOBODY)
		return 1;
	fresh.tick = h->config->tick;
	fresh.host = h->host;
	fresh.hash = h->source;
	if (flow) {
		/* The entry begins a new life in its old place. */
		*flow = fresh;
	} else if (is_full(h) || IN_TABLE(spread_embryos, h, key, bpf_map_update_elem, &fresh, BPF_ANY)) {
		return 0;
	}
	count(SPREAD_NEW_FLOWS);
	return 1;
}

/* A packet of a connection that is not known, as after a boot of the edge, goes by
 * its hash; the next one finds an embryo. Where the table is full nothing is learnt,
 * and it goes on by its hash. */
static __always_inline void place_stray(struct handling *h, const struct look *k)
{
	struct spread_flow fresh = {};

	h->how = TRACE_STRAY;
	choose(h, &k->key);
	note(h, SPREAD_STRAY);
	if (h->traced || h->host == NOBODY || (k->tcp_flags & TCP_RST) || is_full(h))
		return;
	fresh.tick = h->config->tick;
	fresh.host = h->host;
	fresh.hash = h->source;
	fresh.flags = FLOW_LEARNT | (k->tcp_flags & TCP_FIN ? FLOW_CLIENT_FIN : 0);
	IN_TABLE(spread_embryos, h, &k->key, bpf_map_update_elem, &fresh, BPF_ANY);
}

/* The first packet after a handshake, or the second of those that were seen of a
 * connection, makes a flow. 0: refused, the table is full; what was there before the
 * table was goes on without an entry. */
static __always_inline int establish(struct handling *h, const struct look *k,
				     const struct spread_flow *embryo)
{
	__u8 learnt = embryo->flags & FLOW_LEARNT;
	struct spread_flow fresh = {
		.tick = h->config->tick,
		.hash = embryo->hash,
		.host = embryo->host,
		.flags = FLOW_OPENED | (embryo->flags & FLOW_CLIENT_FIN) |
			 (k->tcp_flags & TCP_FIN ? FLOW_CLIENT_FIN : 0),
	};

	if (IN_TABLE(spread_flows, h, &k->key, bpf_map_update_elem, &fresh, BPF_NOEXIST)) {
		/* Another processor may have been faster. */
		if (flow_of(h, &k->key))
			return 1;
		found_full(h);
		return learnt;
	}
	IN_TABLE(spread_embryos, h, &k->key, bpf_map_delete_elem);
	count(learnt ? SPREAD_LEARNT : SPREAD_ESTABLISHED);
	h->opened = !learnt;
	return 1;
}

/* 0: refused, the table is full. */
static __always_inline int place_segment(struct handling *h, const struct look *k)
{
	struct spread_flow *flow = flow_of(h, &k->key);

	if (!flow) {
		flow = embryo_of(h, &k->key);
		if (!flow) {
			place_stray(h, k);
			return 1;
		}
		follow(h, flow, TRACE_EMBRYO);
		if (h->traced || (k->tcp_flags & TCP_RST))
			return 1;
		return establish(h, k, flow);
	}
	follow(h, flow, TRACE_FLOW);
	stamp(flow, h);
	/* A tuple that is used again has its entry already, and no embryo. */
	if (!(flow->flags & FLOW_OPENED) && !(k->tcp_flags & TCP_RST))
		h->opened = 1;
	if (!h->traced)
		note_flags(flow, k);
	return 1;
}

static __always_inline int place_datagram(struct handling *h, const struct conn_key *key)
{
	struct spread_flow *flow = datagrams_of(h, key), fresh = {};

	if (flow && h->config->tick - flow->tick <= DATAGRAM_AGE && !is_dead(flow->host)) {
		follow(h, flow, TRACE_FLOW);
		stamp(flow, h);
		return 1;
	}
	h->how = TRACE_NEW;
	choose(h, key);
	if (h->traced || h->host == NOBODY)
		return 1;
	fresh.tick = h->config->tick;
	fresh.host = h->host;
	fresh.hash = h->source;
	IN_TABLE(spread_datagrams, h, key, bpf_map_update_elem, &fresh, BPF_ANY);
	count(SPREAD_NEW_FLOWS);
	return 1;
}

/* Finds the flow that an ICMP error quotes. */
static __always_inline void place_quoted(struct handling *h, const struct conn_key *key,
					 __u8 protocol)
{
	struct spread_flow *flow;

	if (protocol == IPPROTO_UDP) {
		flow = datagrams_of(h, key);
	} else {
		flow = flow_of(h, key);
		if (!flow)
			flow = embryo_of(h, key);
	}
	if (flow) {
		follow(h, flow, TRACE_FLOW);
		return;
	}
	h->how = TRACE_STRAY;
	choose(h, key);
}

/* Finds the table of the flow's service; 0 if it has none. */
static __always_inline int is_of_service(struct handling *h, const struct conn_key *key,
					 __u8 protocol)
{
	__u32 which = h->config->directory, index;
	struct spread_directory *d = bpf_map_lookup_elem(&spread_directories, &which);
	struct spread_service *s;
	__u64 words[2];

	if (!d)
		return 0;
	__builtin_memcpy(words, key->server, 16);
	/* Multiply-shift (Dietzfelbinger 1997): no product depends on
	 * another. */
	index = d->buckets[(words[0] * d->factors[0] + words[1] * d->factors[1] +
			    ((__u64)protocol << 16 | key->server_port) * d->factors[2]) >>
			   (64 - SPREAD_BUCKETS_SHIFT)];
	if (index >= SPREAD_SERVICES_MAX)
		return 0;
	s = &d->services[index];
	if (s->address[0] != words[0] || s->address[1] != words[1] ||
	    s->port != key->server_port || s->protocol != protocol)
		return 0;
	h->table = s->table;
	return 1;
}

#endif
