package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Credentials in files end, and others take their place: nodeprobe says so, and
// uses the new ones without a restart.
func TestRotatedCredentials(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, kind := range map[string]func(n *node, cp *controlplane.ControlPlane) credentials{
		"client certificate": certificates, "token": tokens,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
			c := kind(n, cp)
			n.useFiles(cp, c.user)
			a := n.startReady()
			c.end()
			const refused = "the credentials of kubeconfig "
			waitComplaint(t, a, "node status is not posted", refused+n.spec.Kubeconfig+" are refused, or have expired: Unauthorized")
			waitComplaint(t, a, "failed to renew the lease", refused)
			wantReadyz(t, a, refused)
			began := time.Now()
			c.renew()
			n.waitReady(a)
			n.waitRenewed(began)
			t.Logf("the new ones were in use after %s", time.Since(began).Round(100*time.Millisecond))
			checkOnce(t, a)
		})
	}
}

// credentials are those of a user of a kubeconfig: what ends them, and what puts
// others in their place.
type credentials struct {
	user       *clientcmdapi.AuthInfo
	end, renew func()
}

// useFiles makes a kubeconfig for the user.
func (n *node) useFiles(cp *controlplane.ControlPlane, user *clientcmdapi.AuthInfo) {
	n.t.Helper()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "x"
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: cp.Config().Host, CertificateAuthorityData: cp.Config().CAData}
	config.AuthInfos["x"] = user
	n.spec.Kubeconfig = filepath.Join(n.spec.Dir, "kubeconfig")
	must.OK(n.t, clientcmd.WriteToFile(*config, n.spec.Kubeconfig))
}

// write replaces a file in one step.
func (n *node) write(path string, data []byte) {
	n.t.Helper()
	must.OK(n.t, os.WriteFile(path+".new", data, 0o600))
	must.OK(n.t, os.Rename(path+".new", path))
}

// certificates that end by themselves, once nodeprobe has had the time to start.
func certificates(n *node, cp *controlplane.ControlPlane) credentials {
	n.t.Helper()
	user := &clientcmdapi.AuthInfo{ClientCertificate: filepath.Join(n.spec.Dir, "client.crt"), ClientKey: filepath.Join(n.spec.Dir, "client.key")}
	issue := func(validity time.Duration) {
		n.t.Helper()
		name, groups := controlplane.NodeUser(n.name)
		cert, key, err := cp.ClientCertificate(validity, name, groups...)
		must.OK(n.t, err)
		n.write(user.ClientKey, key)
		n.write(user.ClientCertificate, cert)
	}
	issue(25 * time.Second)
	return credentials{user, func() {}, func() { issue(time.Hour) }}
}

// tokens of service accounts. That of an account that is deleted ends within the
// ten seconds for which the API server remembers it.
func tokens(n *node, _ *controlplane.ControlPlane) credentials {
	n.t.Helper()
	accounts := n.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	user := &clientcmdapi.AuthInfo{TokenFile: filepath.Join(n.spec.Dir, "token")}
	first, second := n.name+"-1", n.name+"-2"
	issue := func(account string) {
		n.t.Helper()
		must.Get(accounts.Create(n.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}))(n.t)
		request := must.Get(accounts.CreateToken(n.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(n.t)
		n.write(user.TokenFile, []byte(request.Status.Token))
	}
	const prefix = "system:serviceaccount:" + metav1.NamespaceDefault + ":"
	n.grant(permission{}, prefix+first, prefix+second)
	issue(first)
	return credentials{
		user,
		func() {
			must.OK(n.t, accounts.Delete(n.t.Context(), first, metav1.DeleteOptions{}))
		},
		func() { issue(second) },
	}
}
