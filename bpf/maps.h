/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Maps that every program has: the protected services and the counters.
 * Define COUNTERS before including this file.
 */
#ifndef HOLDFAST_MAPS_H
#define HOLDFAST_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct service_key);
	__type(value, __u32);
} services SEC(".maps");

/* The services' addresses without their ports, for the fence and for
 * fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__uint(key_size, 16);
	__uint(value_size, 4);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		*value += 1;
}

/* Counts a deliberate drop. STOLEN, because SHOT reports congestion to TCP
 * (decision 10). */
static __always_inline int steal(__u32 which)
{
	count(which);
	return TC_ACT_STOLEN;
}

static __always_inline int is_address(const void *address)
{
	return bpf_map_lookup_elem(&addresses, address) != 0;
}

static __always_inline int is_service(const void *address, __u16 port)
{
	struct service_key key = { .port = port };

	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&services, &key) != 0;
}

#endif
