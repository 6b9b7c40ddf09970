// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The backup's service interface: copies from the edge's tap are stolen before
 * the IP stack can answer them, after packet sockets have seen them, until the
 * backup is live.
 */
#include "layout.h"
#define COUNTERS TAPDROP_COUNTERS
#include "parse_copy.h"
#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tapdrop_live SEC(".maps");

SEC("classifier")
int tapdrop(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed what = parse(skb, &p);
	__u32 zero = 0, *live = bpf_map_lookup_elem(&tapdrop_live, &zero);
	int ours;

	if (live && *live)
		return PASS;
	ours = what == PARSED_TCP ? is_service(p.target, p.target_port)
				  : what == PARSED_ODD && is_address(p.target);
	return ours ? steal(TAPDROP_DROPPED) : PASS;
}

char licence[] SEC("license") = "Dual MIT/GPL";
