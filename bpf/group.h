/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whose programs these are: the group's name. No program reads it; the kernel lists
 * it among their maps, since user space binds it to them.
 */
#ifndef HOLDFAST_GROUP_H
#define HOLDFAST_GROUP_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, GROUP_NAME_BYTES);
} group_name SEC(".maps");

#endif
