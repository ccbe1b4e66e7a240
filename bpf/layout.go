//go:build linux && (amd64 || arm64)

package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// layout tells the programs where the fields are that they read in the structures of
// filesystems, see watch.h.
type layout struct {
	known   uint64 // the filesystems that have all of theirs, one bit each
	offsets [len(nodeprobeWatchConfig{}.Fields)]uint32
}

// noField is NO_FIELD in watch.h.
const noField = ^uint32(0)

// kernelField is a field that the programs read.
type kernelField struct {
	name string // in enum field of watch.h
	of   Filesystem
	size uint32 // in bytes
	// paths are where kernels have it, the newest first: a type and its members. Of an
	// array it is the first element. A dash means that a kernel may lack it.
	paths string
}

// fields lists them in the order of enum field.
func fields() []kernelField {
	return []kernelField{
		{"EXT4_FREE", Ext4, 8, "ext4_sb_info.s_freeclusters_counter.count"},
		{"EXT4_FREE_PARTS", Ext4, 8, "ext4_sb_info.s_freeclusters_counter.counters -"},
		{"EXT4_DIRTY", Ext4, 8, "ext4_sb_info.s_dirtyclusters_counter.count"},
		{"EXT4_DIRTY_PARTS", Ext4, 8, "ext4_sb_info.s_dirtyclusters_counter.counters -"},
		{"EXT4_INODES", Ext4, 8, "ext4_sb_info.s_freeinodes_counter.count"},
		{"EXT4_INODES_PARTS", Ext4, 8, "ext4_sb_info.s_freeinodes_counter.counters -"},
		{"EXT4_CLUSTER_BITS", Ext4, 4, "ext4_sb_info.s_cluster_bits"},
		{"EXT4_FLAGS", Ext4, 8, "ext4_sb_info.s_ext4_flags"},
		{"EXT4_JOURNAL", Ext4, 8, "ext4_sb_info.s_journal"},
		{"EXT4_JOURNAL_FLAGS", Ext4, 8, "journal_s.j_flags"},
		{"EXT4_SUPER", Ext4, 8, "ext4_sb_info.s_sb -"},
		{"XFS_FREE", XFS, 8, "xfs_mount.m_free.count.count xfs_mount.m_fdblocks.count"}, // 6.15, before
		{"XFS_FREE_PARTS", XFS, 8, "xfs_mount.m_free.count.counters xfs_mount.m_fdblocks.counters -"},
		{"XFS_SET_ASIDE", XFS, 4, "xfs_mount.m_alloc_set_aside"},
		{"XFS_BTREES", XFS, 8, "xfs_mount.m_allocbt_blks.counter -"}, // 5.13
		{"XFS_INODES", XFS, 8, "xfs_mount.m_icount.count"},
		{"XFS_INODES_PARTS", XFS, 8, "xfs_mount.m_icount.counters -"},
		{"XFS_FREE_INODES", XFS, 8, "xfs_mount.m_ifree.count"},
		{"XFS_FREE_INODES_PARTS", XFS, 8, "xfs_mount.m_ifree.counters -"},
		{"XFS_MAX_INODES", XFS, 8, "xfs_mount.m_ino_geo.maxicount"},
		{"XFS_BLOCK_INODES", XFS, 1, "xfs_mount.m_sb.sb_inopblog"},
		{"XFS_STATE", XFS, 8, "xfs_mount.m_opstate -"}, // 5.15
		{"XFS_FLAGS", XFS, 8, "xfs_mount.m_flags -"},   // before
		{"XFS_SUPER", XFS, 8, "xfs_mount.m_super -"},
		{"BTRFS_DATA", Btrfs, 8, "btrfs_fs_info.data_sinfo"},
		{"BTRFS_UNALLOCATED", Btrfs, 8, "btrfs_fs_info.free_chunk_space.counter"},
		{"BTRFS_TOTAL", Btrfs, 8, "btrfs_space_info.total_bytes"},
		{"BTRFS_USED", Btrfs, 8, "btrfs_space_info.bytes_used"},
		{"BTRFS_ON_DISK", Btrfs, 8, "btrfs_space_info.disk_total"},
		{"BTRFS_SUPER", Btrfs, 8, "btrfs_fs_info.sb -"},
	}
}

// findLayout looks the fields up in the types of a kernel and its modules.
func findLayout(types ...*btf.Spec) layout {
	var l layout
	for i := range l.offsets {
		l.offsets[i] = noField
	}
	for f := range filesystems() {
		l.known |= 1 << f
	}
	for i, f := range fields() {
		offset, ok := f.find(types)
		if l.offsets[i] = offset; !ok {
			l.known &^= 1 << f.of
		}
	}
	return l
}

// find returns the field's offset; noField for one that a kernel may lack.
func (f kernelField) find(types []*btf.Spec) (offset uint32, ok bool) {
	for path := range strings.FieldsSeq(f.paths) {
		if path == "-" {
			return noField, true
		}
		name, members, _ := strings.Cut(path, ".")
		for _, spec := range types {
			named, _ := spec.AnyTypesByName(name) // none in most of them
			for _, typ := range named {
				if offset, size := member(typ, members); size == f.size {
					return offset, true
				}
			}
		}
	}
	return noField, false
}

// member returns where a member of a type begins, and its size, which is 0 if there is no
// such member.
func member(typ btf.Type, path string) (offset, size uint32) {
	for name := range strings.SplitSeq(path, ".") {
		if array, ok := btf.As[*btf.Array](typ); ok {
			typ = array.Type
		}
		of, ok := btf.As[*btf.Struct](typ)
		if !ok {
			return 0, 0
		}
		i := slices.IndexFunc(of.Members, func(m btf.Member) bool { return m.Name == name })
		if i < 0 || of.Members[i].BitfieldSize != 0 {
			return 0, 0
		}
		offset += of.Members[i].Offset.Bytes()
		typ = of.Members[i].Type
	}
	n, err := btf.Sizeof(typ)
	if err != nil {
		return 0, 0
	}
	return offset, uint32(n)
}

// filesystemTypes returns the types of the kernel, and of those modules of filesystems
// that are loaded.
func filesystemTypes(kernel *btf.Spec, cache *btf.Cache) []*btf.Spec {
	types := []*btf.Spec{kernel}
	for f := range filesystems() {
		if module, err := cache.Module(f.String()); err == nil {
			types = append(types, module)
		}
	}
	return types
}

// findModules looks again for filesystems that are not known, if their modules have been
// loaded since, and reports whether that found any. It takes some 30 ms if there is
// something to look at, and so looks at each once. It needs no privilege.
func (t *timer) findModules() bool {
	due := false
	for f := range filesystems() {
		info, err := os.Stat(filepath.Join(filepath.Dir(kernelBTF), f.String()))
		if t.layout.known&(1<<f) != 0 || err != nil || t.modules[f] != nil && os.SameFile(t.modules[f], info) {
			continue
		}
		t.modules[f], due = info, true
	}
	if !due {
		return false
	}
	cache := btf.NewCache()
	types, err := kernelTypes("", cache)
	if err != nil {
		return false
	}
	before := t.layout.known
	t.layout = findLayout(filesystemTypes(types, cache)...)
	return t.layout.known != before
}
