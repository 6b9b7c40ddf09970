/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The memory of a redirector: who serves what, and which host server every flow
 * is at. All processors share it.
 *
 * A SYN makes an embryo, of which the table forgets the oldest: a flood of SYNs
 * displaces only its like. The first later packet makes a flow, whose table
 * forgets nobody: full, it refuses new connections and harms no old one (law
 * L6). A datagram's flow is remembered while it is in use, and there is room.
 */
#ifndef HOLDFAST_SPREAD_H
#define HOLDFAST_SPREAD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "look.h"

/* Seconds after which a datagram's flow may go elsewhere. */
#define DATAGRAM_AGE 30
#define NOBODY 255

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spread_config);
} spread_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPREAD_SERVICES_MAX);
	__type(key, struct spread_service_key);
	__type(value, struct spread_service);
} spread_services SEC(".maps");

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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPREAD_FLOWS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_EMBRYOS_MAX);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_embryos SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_DATAGRAMS_MAX);
	__type(key, struct conn_key);
	__type(value, struct spread_flow);
} spread_datagrams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SPREAD_FRAGMENTS_MAX);
	__type(key, struct spread_fragment);
	__type(value, struct spread_flow);
} spread_fragments SEC(".maps");

/* The tick in which the table of flows was found full, plus one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} spread_full SEC(".maps");

/* What is known while one packet is handled. */
struct handling {
	const struct spread_config *config;
	__u64 hash;
	__u32 table;
	__u32 traced; /* neither counted nor remembered */
	__u8 how;     /* enum trace_how */
	__u8 host;
};

static __always_inline void note(const struct handling *h, __u32 which)
{
	if (!h->traced)
		count(which);
}

/* The same in all edges of a group, which share the seed, and for both
 * directions of looking: the client and the service are always in their places. */
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

static __always_inline __u8 by_table(const struct handling *h)
{
	struct spread_table *table = bpf_map_lookup_elem(&spread_tables, &h->table);
	/* The hash as a fraction of the entries; below MAGLEV_ENTRIES by itself. */
	__u64 entry = (h->hash >> 32) * MAGLEV_ENTRIES >> 32;

	return table ? table->hosts[entry] : NOBODY;
}

static __always_inline struct spread_host *host_at(__u8 index)
{
	__u32 key = index;

	return index == NOBODY ? 0 : bpf_map_lookup_elem(&spread_hosts, &key);
}

static __always_inline int is_dead(__u8 index)
{
	struct spread_host *host = host_at(index);

	return !host || host->state == SPREAD_DEAD || host->state == SPREAD_FREE;
}

/* May another life of this flow's tuple begin at the same host server? */
static __always_inline int stays(const struct spread_flow *flow)
{
	struct spread_host *host = host_at(flow->host);

	if (!host)
		return 0;
	return host->state == SPREAD_UP ||
	       (host->state == SPREAD_DRAINING && !(flow->flags & (FLOW_CLIENT_FIN | FLOW_RESET)));
}

static __always_inline int is_full(const struct handling *h)
{
	__u32 zero = 0, *full = bpf_map_lookup_elem(&spread_full, &zero);

	return full && *full && h->config->tick - (*full - 1) <= 1;
}

static __always_inline void found_full(const struct handling *h)
{
	__u32 zero = 0, *full = bpf_map_lookup_elem(&spread_full, &zero);

	if (full)
		*full = h->config->tick + 1;
}

/* A stamp is written only when it changes: processors share the entry. */
static __always_inline void stamp(struct spread_flow *flow, const struct handling *h)
{
	if (flow->tick != h->config->tick && !h->traced)
		flow->tick = h->config->tick;
}

/* How soon the entry may be forgotten. A connection that goes on after a RST
 * was not reset: the RST was forged. */
static __always_inline void note_flags(struct spread_flow *flow, __u8 tcp_flags)
{
	__u8 flags = flow->flags | FLOW_ESTABLISHED;

	if (tcp_flags & TCP_RST)
		flags |= FLOW_RESET;
	else
		flags &= ~FLOW_RESET;
	if (tcp_flags & TCP_FIN)
		flags |= FLOW_CLIENT_FIN;
	if (flags != flow->flags)
		flow->flags = flags;
}

/* A connection begins, or its SYN is repeated. */
static __always_inline int place_syn(struct handling *h, const struct conn_key *key)
{
	struct spread_flow *flow = bpf_map_lookup_elem(&spread_flows, key), fresh = {};

	if (flow && stays(flow)) {
		/* A SYN into a connection: its server answers with a challenge (RFC 5961 §4). */
		h->how = TRACE_FLOW;
		h->host = flow->host;
		if (!h->traced && (flow->flags & (FLOW_CLIENT_FIN | FLOW_RESET))) {
			flow->tick = h->config->tick;
			flow->flags = 0;
		}
		return 1;
	}
	if (!flow) {
		struct spread_flow *embryo = bpf_map_lookup_elem(&spread_embryos, key);

		if (embryo && !is_dead(embryo->host)) {
			h->how = TRACE_EMBRYO;
			h->host = embryo->host;
			return 1;
		}
	}
	h->how = TRACE_NEW;
	h->host = by_table(h);
	if (h->traced || h->host == NOBODY)
		return 1;
	fresh.tick = h->config->tick;
	fresh.host = h->host;
	if (flow) {
		/* The entry begins a new life: there is room for it. */
		*flow = fresh;
	} else if (is_full(h) || bpf_map_update_elem(&spread_embryos, key, &fresh, BPF_ANY)) {
		return 0;
	}
	count(SPREAD_NEW_FLOWS);
	return 1;
}

/* 0: refused, the table is full. */
static __always_inline int place_segment(struct handling *h, const struct look *k)
{
	struct spread_flow *flow = bpf_map_lookup_elem(&spread_flows, &k->key), fresh = {};

	if (!flow) {
		flow = bpf_map_lookup_elem(&spread_embryos, &k->key);
		h->how = flow ? TRACE_EMBRYO : TRACE_STRAY;
		h->host = flow ? flow->host : by_table(h);
		if (!flow)
			note(h, SPREAD_STRAY);
		if (!flow || h->traced || (k->tcp_flags & TCP_RST))
			return 1;
		fresh.host = flow->host;
		fresh.tick = h->config->tick;
		fresh.flags = k->tcp_flags & TCP_FIN ? FLOW_CLIENT_FIN : 0;
		if (bpf_map_update_elem(&spread_flows, &k->key, &fresh, BPF_NOEXIST)) {
			/* Another processor may have been faster. */
			flow = bpf_map_lookup_elem(&spread_flows, &k->key);
			if (!flow)
				found_full(h);
			return flow != 0;
		}
		bpf_map_delete_elem(&spread_embryos, &k->key);
		count(SPREAD_ESTABLISHED);
		return 1;
	}
	h->how = TRACE_FLOW;
	h->host = flow->host;
	stamp(flow, h);
	if (!h->traced)
		note_flags(flow, k->tcp_flags);
	return 1;
}

static __always_inline int place_datagram(struct handling *h, const struct conn_key *key)
{
	struct spread_flow *flow = bpf_map_lookup_elem(&spread_datagrams, key), fresh = {};

	if (flow && h->config->tick - flow->tick <= DATAGRAM_AGE && !is_dead(flow->host)) {
		h->how = TRACE_FLOW;
		h->host = flow->host;
		stamp(flow, h);
		return 1;
	}
	h->how = TRACE_NEW;
	h->host = by_table(h);
	if (h->traced || h->host == NOBODY)
		return 1;
	fresh.tick = h->config->tick;
	fresh.host = h->host;
	bpf_map_update_elem(&spread_datagrams, key, &fresh, BPF_ANY);
	count(SPREAD_NEW_FLOWS);
	return 1;
}

/* Where is the flow that an ICMP error speaks of? */
static __always_inline void place_quoted(struct handling *h, const struct conn_key *key,
					 __u8 protocol)
{
	struct spread_flow *flow;

	if (protocol == IPPROTO_UDP) {
		flow = bpf_map_lookup_elem(&spread_datagrams, key);
	} else {
		flow = bpf_map_lookup_elem(&spread_flows, key);
		if (!flow)
			flow = bpf_map_lookup_elem(&spread_embryos, key);
	}
	h->how = flow ? TRACE_FLOW : TRACE_STRAY;
	h->host = flow ? flow->host : by_table(h);
}

/* 0: not one of the services. */
static __always_inline int find_service(struct handling *h, const struct conn_key *key,
					__u8 protocol)
{
	struct spread_service_key service = { .port = key->server_port, .protocol = protocol };
	struct spread_service *found;

	__builtin_memcpy(service.address, key->server, 16);
	found = bpf_map_lookup_elem(&spread_services, &service);
	if (!found)
		return 0;
	h->table = found->table;
	h->hash = flow_hash(h->config, key);
	return 1;
}

#endif
