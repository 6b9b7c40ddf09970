// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Measures the redirector's overhead: running a program at all, and taking the
 * outer header away again between two runs. Attached to nothing.
 */
#include "encap.h"

SEC("classifier")
int nothing(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

/* Half of this program's cost is the undoing. */
SEC("classifier")
int wrap_and_undo(struct __sk_buff *skb)
{
	struct outer6 six = {};
	struct outer4 four = {};

	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return encapsulate6(skb, &six, 0) || undo6(skb, six.inner);
	return encapsulate4(skb, &four, 0) || undo4(skb, four.inner);
}

char licence[] SEC("license") = "Dual MIT/GPL";
