/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What is free on an ext4 filesystem: the counters that statfs sums up, without
 * what the CPUs have not added to them yet.
 *
 * Nothing here keeps the filesystem mounted. Its structures may be freed at any
 * time, and reading freed memory gives an error or garbage, never a fault, as it
 * is done by bpf_probe_read_kernel. So it is read first, and then checked whether
 * it still belonged to the filesystem that was asked for.
 */
#ifndef NODEPROBE_DISK_H
#define NODEPROBE_DISK_H

#include "decide.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define EXT4_SUPER_MAGIC 0xEF53
#define SB_RDONLY 1UL
/*
 * Errors make a filesystem unwritable in other ways: its journal is aborted (that
 * sets SB_RDONLY as well with errors=remount-ro, but not since 6.12, nor in the
 * stable releases of that time), it is in emergency mode (6.15), or it is shut
 * down (its disk was pulled). The latter two are numbers of bits in s_ext4_flags,
 * whose enum has no name to look up in BTF; they never meant anything else.
 */
#define JBD2_ABORT 2UL
#define EXT4_SHUTDOWN (1UL << 1)
#define EXT4_EMERGENCY_RO (1UL << 3)

/* The filesystem of the current process's open file. */
static __always_inline struct super_block *super_block_of(u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = 0;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return BPF_CORE_READ(file, f_inode, i_sb);
}

/* ext2 has the same magic number, and possibly a driver of its own. */
static __always_inline bool is_ext4(struct super_block *sb)
{
	const char *type = BPF_CORE_READ(sb, s_type, name);
	char name[8] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), type);
	return BPF_CORE_READ(sb, s_magic) == EXT4_SUPER_MAGIC && name[0] == 'e' && name[1] == 'x' &&
	       name[2] == 't' && name[3] == '4' && !name[4];
}

/* A mounted filesystem has a root; unmounting removes that before anything else.
 * And another object at the same address would not match all of this. */
static __always_inline bool same_filesystem(const struct watch *w)
{
	struct super_block *sb = w->sb;

	return w->root && BPF_CORE_READ(sb, s_root) == w->root && BPF_CORE_READ(sb, s_dev) == w->dev &&
	       BPF_CORE_READ(sb, s_magic) == EXT4_SUPER_MAGIC && BPF_CORE_READ(sb, s_fs_info) == (void *)w->ext4;
}

/* Fills in the filesystem of w->want.fd. */
static __always_inline u64 find_filesystem(struct watch *w)
{
	struct ext4_sb_info *ext4;
	struct super_block *sb;

	if (!bpf_core_type_exists(struct ext4_sb_info))
		return REFUSED_NO_TYPES;
	sb = super_block_of(w->want.fd);
	if (!sb)
		return REFUSED_NO_FILE;
	if (!is_ext4(sb))
		return REFUSED_FILESYSTEM;
	ext4 = BPF_CORE_READ(sb, s_fs_info);
	w->sb = sb;
	w->ext4 = ext4;
	w->root = BPF_CORE_READ(sb, s_root);
	w->dev = BPF_CORE_READ(sb, s_dev);
	w->shift = BPF_CORE_READ(sb, s_blocksize_bits) + BPF_CORE_READ(ext4, s_cluster_bits);
	return same_filesystem(w) ? REFUSED_NOT : REFUSED_UNREADABLE;
}

static __always_inline s64 free_bytes(const struct ext4_sb_info *ext4, u32 shift)
{
	s64 clusters = BPF_CORE_READ(ext4, s_freeclusters_counter.count) -
		       BPF_CORE_READ(ext4, s_dirtyclusters_counter.count);

	return not_negative(clusters) << (shift & 63);
}

static __always_inline s64 free_inodes(const struct ext4_sb_info *ext4)
{
	return not_negative(BPF_CORE_READ(ext4, s_freeinodes_counter.count));
}

static __always_inline bool is_read_only(const struct super_block *sb, const struct ext4_sb_info *ext4)
{
	return (BPF_CORE_READ(sb, s_flags) & SB_RDONLY) ||
	       (BPF_CORE_READ(ext4, s_journal, j_flags) & JBD2_ABORT) ||
	       (BPF_CORE_READ(ext4, s_ext4_flags) & (EXT4_SHUTDOWN | EXT4_EMERGENCY_RO));
}

#endif
