package heartbeat

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// codecs knows no more than what NewLeases asks for.
func codecs(t *testing.T) serializer.CodecFactory {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme)
}

func newTestLeases(t *testing.T, contentType string, handler http.HandlerFunc) Leases {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := rest.RESTClientFor(&rest.Config{
		Host:    server.URL,
		APIPath: "/apis",
		QPS:     -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &coordinationv1.SchemeGroupVersion,
			NegotiatedSerializer: codecs(t).WithoutConversion(),
			ContentType:          contentType,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return NewLeases(client)
}

func testLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: Namespace, UID: "uid", ResourceVersion: "7",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid"}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(node),
			LeaseDurationSeconds: new(int32(40)),
			RenewTime:            micro(epoch.Add(123456 * time.Microsecond).Local()),
		},
	}
}

func TestLeasesRequests(t *testing.T) {
	const protobuf, json = "application/vnd.kubernetes.protobuf", "application/json"
	for configured, mediaType := range map[string]string{"": protobuf, json: json, protobuf: protobuf} {
		for _, test := range []struct {
			name, method, path string
			call               func(context.Context, Leases) (*coordinationv1.Lease, error)
		}{
			{"get", "GET", leasesPath + "/" + node, func(ctx context.Context, l Leases) (*coordinationv1.Lease, error) {
				return l.Get(ctx, node)
			}},
			{"create", "POST", leasesPath, func(ctx context.Context, l Leases) (*coordinationv1.Lease, error) {
				return l.Create(ctx, testLease())
			}},
			{"update", "PUT", leasesPath + "/" + node, func(ctx context.Context, l Leases) (*coordinationv1.Lease, error) {
				return l.Update(ctx, testLease())
			}},
		} {
			t.Run(test.name+" "+configured, func(t *testing.T) {
				info, ok := runtime.SerializerInfoForMediaType(codecs(t).SupportedMediaTypes(), mediaType)
				if !ok {
					t.Fatalf("no serializer for %s", mediaType)
				}
				encoder := codecs(t).EncoderForVersion(info.Serializer, coordinationv1.SchemeGroupVersion)
				answer := testLease()
				answer.ResourceVersion = "8"
				leases := newTestLeases(t, configured, func(w http.ResponseWriter, r *http.Request) {
					if r.Method != test.method || r.URL.String() != test.path {
						t.Errorf("request %s %s, want %s %s", r.Method, r.URL, test.method, test.path)
					}
					if body, _ := io.ReadAll(r.Body); test.method != "GET" {
						if got := r.Header.Get("Content-Type"); got != mediaType {
							t.Errorf("content type %q, want %q", got, mediaType)
						}
						sent := new(coordinationv1.Lease)
						_, kind, err := info.Serializer.Decode(body, nil, sent)
						if err != nil || *kind != coordinationv1.SchemeGroupVersion.WithKind("Lease") {
							t.Errorf("decode body: %v, %v", kind, err)
						}
						sent.TypeMeta = metav1.TypeMeta{}
						if diff := cmp.Diff(testLease(), sent); diff != "" {
							t.Errorf("body (-want +got):\n%s", diff)
						}
					}
					w.Header().Set("Content-Type", mediaType)
					if err := encoder.Encode(answer, w); err != nil {
						t.Error(err)
					}
				})
				got, err := test.call(t.Context(), leases)
				if err != nil {
					t.Fatal(err)
				}
				got.TypeMeta = metav1.TypeMeta{}
				if diff := cmp.Diff(answer, got); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// The errors that a Heartbeater distinguishes arrive as such.
func TestLeasesErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		status *apierrors.StatusError
		is     func(error) bool
	}{
		{"not found", apierrors.NewNotFound(leaseResource, node), apierrors.IsNotFound},
		{"conflict", errConflict, apierrors.IsConflict},
		{"already exists", apierrors.NewAlreadyExists(leaseResource, node), apierrors.IsAlreadyExists},
		{"forbidden", errForbidden, apierrors.IsForbidden},
		{"internal", errServer, apierrors.IsInternalError},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, _ := runtime.SerializerInfoForMediaType(codecs(t).SupportedMediaTypes(), "application/json")
			encoder := codecs(t).EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"})
			leases := newTestLeases(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(int(test.status.ErrStatus.Code))
				if err := encoder.Encode(&test.status.ErrStatus, w); err != nil {
					t.Error(err)
				}
			})
			lease, err := leases.Update(t.Context(), testLease())
			if lease != nil || !test.is(err) {
				t.Errorf("got %v, %v", lease, err)
			}
			// The message shows that the Status was decoded, not only the code.
			if err == nil || err.Error() != test.status.Error() {
				t.Errorf("error %q, want %q", err, test.status)
			}
		})
	}
}

func TestLeasesBrokenAnswers(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
	}{
		{"closed before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"closed within the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","meta`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"not a lease", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }},
		{"nothing", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			lease, err := newTestLeases(t, "", test.answer).Update(t.Context(), testLease())
			if lease != nil || err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				t.Errorf("got %v, %v; want some other error", lease, err)
			}
		})
	}
}

func TestLeasesHonourContext(t *testing.T) {
	release := make(chan struct{})
	leases := newTestLeases(t, "", func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := leases.Get(ctx, node); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

// A failure is logged once for each reason, and not again until all was well.
func TestFailureIsLoggedOncePerReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.fail = failing("GET", errServer, errServer, errForbidden, errServer, errForbidden)
		config := api.config()
		var lines func() []string
		config.Logger, lines = logged()
		run(t, config, func(*Heartbeater) {
			time.Sleep(time.Minute)
			synctest.Wait()
			failed := slices.DeleteFunc(lines(), func(line string) bool { return !strings.Contains(line, "failed to renew") })
			if len(failed) != 2 || !strings.Contains(failed[0], "leader changed") || !strings.Contains(failed[1], "forbidden") {
				t.Errorf("logged %q, want one line for each of two reasons", failed)
			}
		})
	})
}
