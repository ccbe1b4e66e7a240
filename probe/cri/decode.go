package cri

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The functions below merge one message of k8s.io/cri-api, api.proto, package
// runtime.v1, into a value. As in any proto3 decoder the last of several values
// counts, messages that come in parts are merged, and unknown fields, known ones
// of another type among them, are left out. Strings are copied.

var (
	errUTF8    = errors.New("string is not UTF-8")
	errMissing = errors.New("RuntimeReady or NetworkReady is missing")
)

// field is one field of a message: the value is in varint or in bytes.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
}

// eachField gives every field of a message to visit that has a type that we
// read.
func eachField(b []byte, visit func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f := field{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := visit(f); err != nil {
			return fmt.Errorf("field %d: %w", number, err)
		}
	}
	return nil
}

// text, flag, unsigned and message store the field if it has their type.

func (f field) text(s *string) error {
	if f.kind != protowire.BytesType {
		return nil
	}
	if !utf8.Valid(f.bytes) {
		return errUTF8
	}
	*s = string(f.bytes)
	return nil
}

func (f field) texts(list *[]string) error {
	if f.kind != protowire.BytesType {
		return nil
	}
	*list = append(*list, "")
	return f.text(&(*list)[len(*list)-1])
}

func (f field) flag(b *bool) {
	if f.kind == protowire.VarintType {
		*b = f.varint != 0
	}
}

func (f field) unsigned(v *uint64) {
	if f.kind == protowire.VarintType {
		*v = f.varint
	}
}

func (f field) message(visit func(field) error) error {
	if f.kind != protowire.BytesType {
		return nil
	}
	return eachField(f.bytes, visit)
}

// appendMessage decodes one of a list of messages.
func appendMessage[T any](list *[]T, f field, merge func(*T, field) error) error {
	if f.kind != protowire.BytesType {
		return nil
	}
	var item T
	err := eachField(f.bytes, func(f field) error { return merge(&item, f) })
	*list = append(*list, item)
	return err
}

// decodeVersion decodes a VersionResponse.
func decodeVersion(b []byte) (v Version, err error) {
	err = eachField(b, func(f field) error {
		switch f.number {
		case 2:
			return f.text(&v.RuntimeName)
		case 3:
			return f.text(&v.RuntimeVersion)
		case 4:
			return f.text(&v.RuntimeAPIVersion)
		}
		return nil
	})
	return v, err
}

// decodeStatus decodes a StatusResponse. Like the kubelet it wants two
// conditions.
func decodeStatus(b []byte) (s Status, err error) {
	var conditions []Condition
	err = eachField(b, func(f field) error {
		switch f.number {
		case 1:
			return f.message(func(f field) error {
				if f.number == 1 {
					return appendMessage(&conditions, f, (*Condition).merge)
				}
				return nil
			})
		case 3:
			return appendMessage(&s.Handlers, f, (*Handler).merge)
		case 4:
			s.Features.Reported = s.Features.Reported || f.kind == protowire.BytesType
			return f.message(s.Features.merge)
		}
		return nil
	})
	if err == nil && len(conditions) < 2 {
		err = errMissing
	}
	if err != nil {
		return Status{}, err
	}
	s.Runtime, s.Network = find(conditions, "RuntimeReady"), find(conditions, "NetworkReady")
	s.sort()
	return s, nil
}

// find returns the first condition of a type.
func find(conditions []Condition, name string) Condition {
	for _, c := range conditions {
		if c.Type == name {
			return c
		}
	}
	return Condition{}
}

func (c *Condition) merge(f field) error {
	switch f.number {
	case 1:
		return f.text(&c.Type)
	case 2:
		f.flag(&c.Status)
	case 3:
		return f.text(&c.Reason)
	case 4:
		return f.text(&c.Message)
	}
	return nil
}

func (h *Handler) merge(f field) error {
	switch f.number {
	case 1:
		return f.text(&h.Name)
	case 2:
		return f.message(func(f field) error {
			switch f.number {
			case 1:
				f.flag(&h.RecursiveReadOnlyMounts)
			case 2:
				f.flag(&h.UserNamespaces)
			}
			return nil
		})
	}
	return nil
}

func (x *Features) merge(f field) error {
	switch f.number {
	case 1:
		f.flag(&x.SupplementalGroupsPolicy)
	case 2:
		f.flag(&x.UserNamespacesHostNetwork)
	}
	return nil
}

// decodeImages decodes a ListImagesResponse.
func decodeImages(b []byte) (images []Image, err error) {
	err = eachField(b, func(f field) error {
		if f.number == 1 {
			return appendMessage(&images, f, (*Image).merge)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sortImages(images)
	return images, nil
}

func (i *Image) merge(f field) error {
	switch f.number {
	case 1:
		return f.text(&i.ID)
	case 2:
		return f.texts(&i.Tags)
	case 3:
		return f.texts(&i.Digests)
	case 4:
		f.unsigned(&i.Size)
	}
	return nil
}

// decodeFilesystems decodes an ImageFsInfoResponse.
func decodeFilesystems(b []byte) (images, containers []Filesystem, err error) {
	err = eachField(b, func(f field) error {
		switch f.number {
		case 1:
			return appendMessage(&images, f, (*Filesystem).merge)
		case 2:
			return appendMessage(&containers, f, (*Filesystem).merge)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return images, containers, nil
}

func (x *Filesystem) merge(f field) error {
	switch f.number {
	case 1:
		if f.kind == protowire.VarintType {
			x.Time = time.Unix(0, int64(f.varint))
		}
	case 2:
		return f.message(func(f field) error {
			if f.number == 1 {
				return f.text(&x.Mountpoint)
			}
			return nil
		})
	case 3:
		return x.Bytes.merge(f)
	case 4:
		return x.Inodes.merge(f)
	}
	return nil
}

// merge takes a UInt64Value, which is there even when it is empty: that is 0.
func (u *Usage) merge(f field) error {
	u.OK = u.OK || f.kind == protowire.BytesType
	return f.message(func(f field) error {
		if f.number == 1 {
			f.unsigned(&u.Value)
		}
		return nil
	})
}
