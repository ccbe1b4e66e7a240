/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What is free on a filesystem: the counters that statfs sums up.
 *
 * Nothing here keeps the filesystem mounted. Its structures may be freed at any
 * time, and reading freed memory gives an error or garbage, never a fault, as it
 * is done by bpf_probe_read_kernel. So it is read first, and then checked whether
 * it still belonged to the filesystem that was asked for.
 */
#ifndef NODEPROBE_DISK_H
#define NODEPROBE_DISK_H

#include "decide.h"
#include "percpu.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define SB_RDONLY 1UL

/* The names of the drivers, as they are in memory, and the magic numbers. ext2 has
 * that of ext4, and possibly a driver of its own. */
#define EXT4_NAME 0x34747865ULL
#define EXT4_MAGIC 0xEF53UL
#define XFS_NAME 0x736678ULL
#define XFS_MAGIC 0x58465342UL
#define BTRFS_NAME 0x7366727462ULL
#define BTRFS_MAGIC 0x9123683EUL

/*
 * Errors make an ext4 unwritable in other ways than SB_RDONLY: its journal is
 * aborted (that sets SB_RDONLY as well with errors=remount-ro, but not since 6.12,
 * nor in the stable releases of that time), it is in emergency mode (6.15), or it
 * is shut down (its disk was pulled). The latter two are numbers of bits in
 * s_ext4_flags, whose enum has no name to look up in BTF; they never meant anything
 * else.
 */
#define JBD2_ABORT 2UL
#define EXT4_SHUTDOWN (1UL << 1)
#define EXT4_EMERGENCY_RO (1UL << 3)
/* And an xfs: it is shut down. The bit is one of m_opstate (5.15), before of
 * m_flags. A btrfs that gives up sets SB_RDONLY. */
#define XFS_OPSTATE_SHUTDOWN (1UL << 2)
#define XFS_MOUNT_FS_SHUTDOWN (1UL << 4)

/* What the kernel has at a field of a filesystem's structure: 8 bytes, of which
 * the caller casts away what is not the field's; 0 if this kernel has no such field. */
static __always_inline u64 field(const void *structure, enum field which)
{
	u32 offset = config.fields[which];
	u64 v = 0;

	if (offset != NO_FIELD)
		bpf_probe_read_kernel(&v, sizeof(v), structure + offset);
	return v;
}

/* A counter, and what the CPUs have not added to it yet if that can be known. */
static __always_inline s64 counted(const struct watch *w, enum field which)
{
	s64 count = field(w->fs, which);

	return levels.cpus ? count + (s64)sum_of_parts(field(w->fs, which + 1), levels.cpus) : count;
}

static __always_inline s64 ext4_free(const struct watch *w, u32 figure)
{
	s64 clusters;

	if (figure == FIGURE_FREE_INODES)
		return not_negative(counted(w, EXT4_INODES));
	clusters = counted(w, EXT4_FREE) - counted(w, EXT4_DIRTY);
	return not_negative(clusters) << (w->shift & 63);
}

static __always_inline bool ext4_gave_up(const struct watch *w)
{
	const void *journal = (const void *)field(w->fs, EXT4_JOURNAL); /* may be null */

	return (field(journal, EXT4_JOURNAL_FLAGS) & JBD2_ABORT) ||
	       (field(w->fs, EXT4_FLAGS) & (EXT4_SHUTDOWN | EXT4_EMERGENCY_RO));
}

/* Every free block can become inodes, up to a maximum. */
static __always_inline s64 xfs_free(const struct watch *w, u32 figure)
{
	s64 blocks = counted(w, XFS_FREE) - (u32)field(w->fs, XFS_SET_ASIDE) - field(w->fs, XFS_BTREES);
	s64 free = not_negative(blocks) << (w->shift & 63);
	s64 inodes, most;

	if (figure == FIGURE_FREE_BYTES)
		return free;
	inodes = counted(w, XFS_INODES);
	most = field(w->fs, XFS_MAX_INODES);
	if (!most || most > inodes + free)
		most = inodes + free;
	return not_negative(most - inodes + counted(w, XFS_FREE_INODES));
}

static __always_inline bool xfs_gave_up(const struct watch *w)
{
	return (field(w->fs, XFS_STATE) & XFS_OPSTATE_SHUTDOWN) || (field(w->fs, XFS_FLAGS) & XFS_MOUNT_FS_SHUTDOWN);
}

/*
 * Not what statfs says, but it falls when that does: statfs goes through all devices
 * to find out how much of what is in no chunk yet can hold data.
 */
static __always_inline s64 btrfs_free(const struct watch *w)
{
	const void *data = (const void *)field(w->fs, BTRFS_DATA);
	u64 total = field(data, BTRFS_TOTAL), on_disk = field(data, BTRFS_ON_DISK);
	u64 unallocated = field(w->fs, BTRFS_UNALLOCATED);

	/* So many bytes on disk are one of data. */
	if (total && on_disk / total)
		unallocated /= on_disk / total;
	return not_negative(total - field(data, BTRFS_USED) + unallocated);
}

static __always_inline s64 left_on(const struct watch *w, u32 figure)
{
	switch (w->kind) {
	case FS_EXT4:
		return ext4_free(w, figure);
	case FS_XFS:
		return xfs_free(w, figure);
	case FS_BTRFS:
		return btrfs_free(w);
	}
	return 0;
}

static __always_inline bool is_read_only(const struct watch *w)
{
	struct super_block *sb = w->sb;

	if (BPF_CORE_READ(sb, s_flags) & SB_RDONLY)
		return true;
	if (w->kind == FS_EXT4)
		return ext4_gave_up(w);
	return w->kind == FS_XFS && xfs_gave_up(w);
}

/* The inode of the current process's open file. */
static __always_inline struct inode *inode_of(u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = 0;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return BPF_CORE_READ(file, f_inode);
}

static __always_inline u32 kind_of(struct super_block *sb)
{
	const char *type = BPF_CORE_READ(sb, s_type, name);
	unsigned long magic = BPF_CORE_READ(sb, s_magic);
	u64 name = 0;

	bpf_probe_read_kernel_str(&name, sizeof(name), type);
	if (name == EXT4_NAME && magic == EXT4_MAGIC)
		return FS_EXT4;
	if (name == XFS_NAME && magic == XFS_MAGIC)
		return FS_XFS;
	if (name == BTRFS_NAME && magic == BTRFS_MAGIC)
		return FS_BTRFS;
	return FS_OTHER;
}

/* The filesystem's own structure points back at the super block: else it was freed,
 * or user space took its layout from the types of another kernel. */
static __always_inline bool points_back(const struct watch *w)
{
	u64 super = (u64)w->sb;

	switch (w->kind) {
	case FS_EXT4:
		return config.fields[EXT4_SUPER] == NO_FIELD || field(w->fs, EXT4_SUPER) == super;
	case FS_XFS:
		return config.fields[XFS_SUPER] == NO_FIELD || field(w->fs, XFS_SUPER) == super;
	case FS_BTRFS:
		return config.fields[BTRFS_SUPER] == NO_FIELD || field(w->fs, BTRFS_SUPER) == super;
	}
	return false;
}

/* A mounted filesystem has a root; unmounting removes that before anything else.
 * And another object at the same address would not match all of this. */
static __always_inline bool same_filesystem(const struct watch *w)
{
	struct super_block *sb = w->sb;

	return w->root && BPF_CORE_READ(sb, s_root) == w->root && BPF_CORE_READ(sb, s_dev) == w->dev &&
	       BPF_CORE_READ(sb, s_magic) == w->magic && BPF_CORE_READ(sb, s_fs_info) == w->fs && points_back(w);
}

/* Fills in the filesystem of an open file, for a figure. */
static __always_inline u64 find_filesystem(struct watch *w, const struct want *want)
{
	struct inode *inode = inode_of(want->fd);
	struct super_block *sb = BPF_CORE_READ(inode, i_sb);

	if (!sb)
		return REFUSED_NO_FILE;
	w->kind = kind_of(sb);
	if (w->kind == FS_OTHER || (w->kind == FS_BTRFS && want->figure != FIGURE_FREE_BYTES))
		return REFUSED_FILESYSTEM;
	if (!(config.known & (1U << w->kind)))
		return REFUSED_NO_TYPES;
	w->sb = sb;
	w->fs = BPF_CORE_READ(sb, s_fs_info);
	w->root = BPF_CORE_READ(sb, s_root);
	w->dev = BPF_CORE_READ(sb, s_dev);
	w->magic = BPF_CORE_READ(sb, s_magic);
	w->shift = 0;
	if (want->figure == FIGURE_FREE_BYTES)
		w->shift = BPF_CORE_READ(sb, s_blocksize_bits);
	else if (w->kind == FS_XFS)
		w->shift = (u8)field(w->fs, XFS_BLOCK_INODES);
	if (w->kind == FS_EXT4 && w->shift)
		w->shift += (u32)field(w->fs, EXT4_CLUSTER_BITS);
	return same_filesystem(w) ? REFUSED_NOT : REFUSED_UNREADABLE;
}

#endif
