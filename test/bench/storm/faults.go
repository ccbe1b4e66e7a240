package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// scene is a fault in a storm. Right after it the limit of pid.available is crossed.
type scene struct {
	name string
	// prepare changes how nodeprobe is started, before the storm.
	prepare func(*agent.Spec)
	// early is what happens before the storm, once nodeprobe has settled, and act what
	// happens in it.
	early, act func()
	// tell says after the storm what came of it.
	tell func(*result) string
}

func (s *stage) scenes() []scene {
	unread := make(chan struct{})
	var proxy *fault.Proxy
	var acted, done time.Time
	var victim int
	var three [3][]scrape
	var scrapers sync.WaitGroup
	return []scene{
		{
			name:    "stderr is a pipe that nobody reads",
			prepare: func(spec *agent.Spec) { spec.Unread = unread },
			act:     func() { close(unread); s.Sleep(time.Second) },
		},
		{
			name:    "token file hangs",
			prepare: func(spec *agent.Spec) { spec.Kubeconfig = s.tokenKubeconfig() },
			// A token is read again after a minute.
			early: func() { s.hang(filepath.Join(s.dir, "token")); s.Sleep(45 * time.Second) },
		},
		{
			name: "API server's connections are reset",
			prepare: func(spec *agent.Spec) {
				user, groups := controlplane.NodeUser(oursName)
				proxy = fault.StartForTest(s, s.cp, user, groups...)
				spec.Kubeconfig = s.onDisk(proxy.Kubeconfig())
			},
			act: func() { proxy.Refuse(); must.OK(s, proxy.Accept()) },
		},
		{
			name: "another container is killed for lack of memory",
			act: func() {
				victim = must.Get(pressure.OOMKill())(s)
				done = time.Now()
			},
			tell: func(r *result) string {
				at := s.events.first(fmt.Sprintf("Killed process %d", victim))
				if at.IsZero() {
					return fmt.Sprintf("no Event names process %d", victim)
				}
				return fmt.Sprintf("Event with the victim %d ms after its parent knew", at.Sub(done).Milliseconds())
			},
		},
		{
			name: "three scrape at once",
			act: func() {
				for i := range three {
					scrapers.Go(func() { three[i] = scrapeUntil(s.Context(), timeout(15*time.Second), s.ours.metrics) })
				}
			},
			tell: func(*result) string {
				scrapers.Wait()
				all := millis(slices.Concat(three[:]...))
				return fmt.Sprintf("%d scrapes, p50 %.0f ms, max %.0f", len(all), median(all), slices.Max(all))
			},
		},
		{
			name: "SIGHUP",
			act: func() {
				acted = time.Now()
				must.OK(s, syscall.Kill(s.ours.pid, syscall.SIGHUP))
			},
			tell: func(*result) string {
				for _, line := range must.Get(s.agent.Log())(s) {
					if line.Time.After(acted) && strings.Contains(line.Msg, "configuration") {
						return fmt.Sprintf("%q after %d ms", line.Msg, line.Time.Sub(acted).Milliseconds())
					}
				}
				return "no answer within the storm"
			},
		},
	}
}

func timeout(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// faults plays each scene in a storm of its own.
func (s *stage) faults(only *regexp.Regexp) {
	rows := []string{strings.Replace(head, "storm", "fault", 1) + "\tbesides"}
	for _, scene := range s.scenes() {
		if !only.MatchString(scene.name) {
			continue
		}
		spec := s.spec()
		if scene.prepare != nil {
			scene.prepare(&spec)
		}
		s.startOurs(spec)
		s.calm(s.ours)
		s.Sleep(rehearsed)
		if scene.early != nil {
			scene.early()
		}
		s.Logf("storm: %s", scene.name)
		r := s.blow(plan{act: scene.act, crossed: []corev1.NodeConditionType{corev1.NodePIDPressure}})
		told := ""
		if scene.tell != nil {
			told = scene.tell(r)
		}
		rows = append(rows, r.row(scene.name)+"\t"+told)
		s.Logf("%s", rows[len(rows)-1])
		s.agent.Stop()
	}
	s.Table(rows...)
}

// hang replaces a file with one that nobody who opens it to read comes back from.
func (s *stage) hang(name string) {
	must.OK(s, syscall.Mkfifo(name+".fifo", 0o600))
	must.OK(s, os.Rename(name+".fifo", name))
}

// tokenKubeconfig is nodeprobe's with a token in a file instead of a certificate.
func (s *stage) tokenKubeconfig() string {
	client, meta := s.cp.Client(), metav1.ObjectMeta{Name: "storm", Namespace: metav1.NamespaceDefault}
	must.Get(client.CoreV1().ServiceAccounts(meta.Namespace).Create(s.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}))(s)
	must.Get(client.RbacV1().ClusterRoleBindings().Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: meta.Name, Namespace: meta.Namespace}},
	}, metav1.CreateOptions{}))(s)
	token := must.Get(client.CoreV1().ServiceAccounts(meta.Namespace).CreateToken(s.Context(), meta.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(s)
	file, config := filepath.Join(s.dir, "token"), s.cp.Config()
	must.OK(s, os.WriteFile(file, []byte(token.Status.Token), 0o600))
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = "storm"
	kubeconfig.Contexts["storm"] = &clientcmdapi.Context{Cluster: "storm", AuthInfo: "storm"}
	kubeconfig.Clusters["storm"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["storm"] = &clientcmdapi.AuthInfo{TokenFile: file}
	name := filepath.Join(s.dir, "token.kubeconfig")
	must.OK(s, clientcmd.WriteToFile(*kubeconfig, name))
	return name
}
