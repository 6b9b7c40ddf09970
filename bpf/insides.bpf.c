// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What /proc does not say about processes: its signal actions, and its threads'
 * alternate stacks and addresses to clear. An iterator over tasks; nothing is asked
 * of the process itself.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define KERNEL __attribute__((preserve_access_index))
#define SIGNALS 64

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL;

struct upid {
	int nr;
} KERNEL;

struct pid {
	unsigned int level;
	struct upid numbers[1];
} KERNEL;

/* The kernel's k_sigaction on the architectures that Holdfast runs on. */
struct k_sigaction {
	__u64 words[4];
};

struct sighand_struct {
	struct k_sigaction action[SIGNALS];
} KERNEL;

struct hrtimer {
	__u8 state;
} KERNEL;

struct hrtimer___queued {
	unsigned char is_queued;
} KERNEL;

struct cpu_itimer {
	__u64 expires;
} KERNEL;

/* Timers that count real time, the process's own time, and its time in user
 * mode. */
struct signal_struct {
	struct hrtimer real_timer;
	struct cpu_itimer it[2];
} KERNEL;

struct mm_struct {
	unsigned long brk;
} KERNEL;

struct cred {
	unsigned int securebits;
} KERNEL;

struct task_struct {
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct sighand_struct *sighand;
	struct signal_struct *signal;
	struct mm_struct *mm;
	const struct cred *cred;
	int *clear_child_tid;
	unsigned long sas_ss_sp;
	unsigned long sas_ss_size;
	unsigned int sas_ss_flags;
} KERNEL;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} KERNEL;

/* Layout of `Record` in src/snapshot/insides.rs. */
struct record {
	__u32 tid;
	__u32 securebits;
	__u64 clear_tid;
	__u64 stack_address;
	__u64 stack_size;
	__u32 stack_flags;
	__u32 alarm_is_set;
	__u64 brk;
	struct k_sigaction actions[SIGNALS];
};

/* The process to describe, numbered as its reader sees it. */
volatile const __u32 wanted = 0;
/* Number of further processes to describe. */
volatile const __u32 others = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u8);
} insides_others SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} insides_record SEC(".maps");

/* Number of a task in the reader's pid namespace. */
static __u32 number(struct task_struct *task)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	unsigned int level = BPF_CORE_READ(reader, thread_pid, level);
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u64 step = bpf_core_type_size(struct upid);
	__u32 nr = 0;

	if (!pid)
		return 0;
	bpf_probe_read_kernel(&nr, sizeof(nr),
			      (char *)__builtin_preserve_access_index(&pid->numbers[0].nr) +
				      level * step);
	return nr;
}

static __u32 alarm_is_set(struct signal_struct *signal)
{
	struct hrtimer___queued *timer = (void *)__builtin_preserve_access_index(&signal->real_timer);
	unsigned char queued = 0;

	if (bpf_core_field_exists(timer->is_queued))
		queued = BPF_CORE_READ(timer, is_queued);
	else
		queued = BPF_CORE_READ(signal, real_timer.state);
	return queued || BPF_CORE_READ(signal, it[0].expires) ||
	       BPF_CORE_READ(signal, it[1].expires);
}

static int is_wanted(struct task_struct *task)
{
	__u32 process = number(BPF_CORE_READ(task, group_leader));

	if (process == wanted)
		return 1;
	return others && bpf_map_lookup_elem(&insides_others, &process);
}

SEC("iter/task")
int insides(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct sighand_struct *sighand;
	struct signal_struct *signal;
	struct record *r;
	__u32 zero = 0;

	if (!task || !is_wanted(task))
		return 0;
	r = bpf_map_lookup_elem(&insides_record, &zero);
	sighand = BPF_CORE_READ(task, sighand);
	signal = BPF_CORE_READ(task, signal);
	if (!r || !sighand || !signal)
		return 0;
	r->tid = number(task);
	r->securebits = BPF_CORE_READ(task, cred, securebits);
	r->clear_tid = (__u64)BPF_CORE_READ(task, clear_child_tid);
	r->stack_address = BPF_CORE_READ(task, sas_ss_sp);
	r->stack_size = BPF_CORE_READ(task, sas_ss_size);
	r->stack_flags = BPF_CORE_READ(task, sas_ss_flags);
	r->alarm_is_set = alarm_is_set(signal);
	r->brk = BPF_CORE_READ(task, mm, brk);
	bpf_probe_read_kernel(r->actions, sizeof(r->actions),
			      __builtin_preserve_access_index(&sighand->action));
	bpf_seq_write(context->meta->seq, r, sizeof(*r));
	return 0;
}

char licence[] SEC("license") = "Dual MIT/GPL";
