// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Wakes a host server's daemon when somebody in its network namespace binds what
 * the group is about: one of its addresses, or an address and port that the file
 * names. It hangs at the root of the control groups and so sees the binds of the
 * whole machine; it allows them all. The bind itself is still to come, and for TCP
 * listen(): the daemon looks for a while.
 */
#include "layout.h"
#define COUNTERS BIND_COUNTERS
#include "parse_copy.h"
#include "maps.h"

#define ALLOW 1

/* The cookie of the daemon's network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} bind_cookie SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, BIND_RING_BYTES);
} binds SEC(".maps");

static __always_inline int is_here(struct bpf_sock_addr *ctx)
{
	__u32 zero = 0;
	__u64 *cookie = bpf_map_lookup_elem(&bind_cookie, &zero);

	return cookie && bpf_get_netns_cookie(ctx) == *cookie;
}

static __always_inline void notice(const __u8 *address, __u16 port)
{
	__u32 nothing = 0;

	if (!is_address(address) && !is_service(address, port))
		return;
	count(BIND_BINDS);
	/* This fails while earlier binds still wait for the daemon, which is then
	 * awake. */
	bpf_ringbuf_output(&binds, &nothing, sizeof(nothing), 0);
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	__u8 address[16];

	if (is_here(ctx)) {
		map_ipv4(address, ctx->user_ip4);
		notice(address, bpf_ntohs(ctx->user_port));
	}
	return ALLOW;
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	__u32 address[4];

	if (is_here(ctx)) {
		for (int i = 0; i < 4; i++)
			address[i] = ctx->user_ip6[i];
		notice((const __u8 *)address, bpf_ntohs(ctx->user_port));
	}
	return ALLOW;
}

char licence[] SEC("license") = "Dual MIT/GPL";
