// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* bpf/regulate.h alone, for bpf_regulate.rs. */
#include "layout.h"
#define COUNTERS 1
#include "csum.h"
#include "maps.h"
#include "regulate.h"

SEC("classifier")
int to_string(struct __sk_buff *skb)
{
	struct packet p = {};

	if (parse(skb, &p) == PARSED_TCP)
		regulate_data(skb, &p, 1);
	return PASS;
}

SEC("classifier")
int from_string(struct __sk_buff *skb)
{
	struct packet p = {};

	if (parse(skb, &p) == PARSED_TCP && regulate_ack(skb, &p))
		return TC_ACT_STOLEN;
	return PASS;
}

char licence[] SEC("license") = "Dual MIT/GPL";
