package cri

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// What differs from the plain case, which TestSampleReadsEverything has.
func TestDecode(t *testing.T) {
	for name, test := range map[string]struct {
		call    Call
		message []byte
		want    Snapshot
		err     error // nil if it can be decoded
	}{
		"empty version": {call: CallVersion},
		"last one counts": {
			call: CallVersion, message: join(str(2, "a"), str(2, "b")),
			want: Snapshot{Version: Version{RuntimeName: "b"}},
		},
		"fields of other types": {
			call: CallVersion, message: join(num(2, 1), str(3, "1"), protowire.AppendFixed32(protowire.AppendTag(nil, 4, protowire.Fixed32Type), 1)),
			want: Snapshot{Version: Version{RuntimeVersion: "1"}},
		},
		"messages of other types": {
			call: CallImageFsInfo, message: join(num(2, 1), msg(1, str(1, "1"), num(2, 1), num(3, 1), num(4, 1))),
			want: Snapshot{ImageFilesystems: []Filesystem{{}}},
		},
		"unknown fields": {
			call: CallVersion, message: join(num(99, 1), str(98, "\xff"), group(97, str(3, "no")), str(3, "1")),
			want: Snapshot{Version: Version{RuntimeVersion: "1"}},
		},
		"not UTF-8":   {call: CallVersion, message: str(3, "\xff"), err: errUTF8},
		"cut in tag":  {call: CallVersion, message: []byte{0x80}, err: io.ErrUnexpectedEOF},
		"cut in text": {call: CallVersion, message: str(3, "abc")[:4], err: io.ErrUnexpectedEOF},
		"status in parts": {
			call: CallStatus, message: join(
				msg(1, condition("RuntimeReady", true, "", "")), msg(1, condition("NetworkReady", true, "", "")),
				msg(1, condition("RuntimeReady", false, "second", "")), msg(4), msg(4, num(2, 1)),
			),
			want: Snapshot{Status: Status{
				Runtime:  Condition{Type: "RuntimeReady", Status: true},
				Network:  Condition{Type: "NetworkReady", Status: true},
				Features: Features{Reported: true, UserNamespacesHostNetwork: true},
			}},
		},
		"other conditions": {
			call: CallStatus, message: msg(1, condition("A", true, "", ""), condition("B", true, "", "")),
		},
		"one condition": {
			call: CallStatus, message: msg(1, condition("RuntimeReady", true, "", "")), err: errMissing,
		},
		"bad handler":    {call: CallStatus, message: join(statusMessage, msg(3, msg(2, []byte{0x80}))), err: io.ErrUnexpectedEOF},
		"no images":      {call: CallListImages},
		"bad image":      {call: CallListImages, message: msg(1, str(2, "\xff")), err: errUTF8},
		"no filesystems": {call: CallImageFsInfo},
		"bad filesystem": {call: CallImageFsInfo, message: msg(2, msg(2, str(1, "\xff"))), err: errUTF8},
		"largest figures": {
			call: CallImageFsInfo, message: msg(1, msg(3, num(1, math.MaxUint64))),
			want: Snapshot{ImageFilesystems: []Filesystem{{Bytes: Usage{math.MaxUint64, true}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got Snapshot
			err := got.decode(test.call, test.message)
			got.LastReady = test.want.LastReady
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if !errors.Is(err, test.err) {
				t.Errorf("error %v; want %v", err, test.err)
			}
		})
	}
}

// group is a field of the oldest kind.
func group(number protowire.Number, fields ...[]byte) []byte {
	b := append(protowire.AppendTag(nil, number, protowire.StartGroupType), join(fields...)...)
	return protowire.AppendTag(b, number, protowire.EndGroupType)
}

// Any bytes decode or fail; those that decode do so the same way with an
// unknown field behind them, and those that fail leave the snapshot alone.
func FuzzDecode(f *testing.F) {
	for c, message := range [][]byte{statusMessage, versionMessage, filesystemsMessage, imagesMessage} {
		f.Add(uint8(c), message)
		f.Add(uint8(c), message[:len(message)/2])
	}
	f.Fuzz(func(t *testing.T, call uint8, message []byte) {
		c := Call(call % uint8(NumCalls))
		var got, again Snapshot
		if err := got.decode(c, message); err != nil {
			if diff := cmp.Diff(Snapshot{}, got); diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
			return
		}
		message = append(bytes.Clone(message), str(1000, "news")...)
		if err := again.decode(c, message); err != nil {
			t.Fatal(err)
		}
		if !got.same(&again) {
			t.Error(cmp.Diff(got, again))
		}
	})
}
