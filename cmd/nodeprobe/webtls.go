package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// webTLS is the section tls_server_config.
type webTLS struct {
	Cert             string   `yaml:"cert"`
	Key              string   `yaml:"key"`
	ClientCA         string   `yaml:"client_ca"`
	CertFile         string   `yaml:"cert_file"`
	KeyFile          string   `yaml:"key_file"`
	ClientCAFile     string   `yaml:"client_ca_file"`
	ClientAuthType   string   `yaml:"client_auth_type"`
	AllowedSANs      []string `yaml:"client_allowed_sans"`
	MinVersion       string   `yaml:"min_version"`
	MaxVersion       string   `yaml:"max_version"`
	CipherSuites     []string `yaml:"cipher_suites"`
	CurvePreferences []string `yaml:"curve_preferences"`
	// The library has ignored it since Go 1.17; files still have it.
	PreferServerCipherSuites bool `yaml:"prefer_server_cipher_suites"`
}

var tlsVersions = map[string]uint16{
	"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11, "TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13,
}

var tlsCurves = map[string]tls.CurveID{
	"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519,
}

// clientAuth is what a client_auth_type asks of a client in the handshake, and
// whether a certificate is needed for what is served. The two differ: a kubelet's
// probes have no certificate, and what they want to know is said to anybody. Who
// has the wrong certificate gets no further than the handshake.
type clientAuth struct {
	handshake tls.ClientAuthType
	needCert  bool
}

var clientAuths = map[string]clientAuth{
	"":                           {tls.NoClientCert, false},
	"NoClientCert":               {tls.NoClientCert, false},
	"RequestClientCert":          {tls.RequestClientCert, false},
	"RequireAnyClientCert":       {tls.RequestClientCert, true},
	"RequireClientCert":          {tls.RequestClientCert, true}, // an old name of the same
	"VerifyClientCertIfGiven":    {tls.VerifyClientCertIfGiven, false},
	"RequireAndVerifyClientCert": {tls.VerifyClientCertIfGiven, true},
}

// tls returns what to serve with, and whether clients need a certificate.
func (r *webReader) tls(t *webTLS, http2 bool) (_ *tls.Config, needCert bool) {
	check := func(field string, err error) { r.check("tls_server_config", field, err) }
	config := &tls.Config{NextProtos: []string{"http/1.1"}} // min_version is below
	if http2 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	config.Certificates = r.certificate(t)
	config.MinVersion = named(tlsVersions, t.MinVersion, func(err error) { check("min_version", err) })
	config.MaxVersion = named(tlsVersions, t.MaxVersion, func(err error) { check("max_version", err) })
	if config.MaxVersion != 0 && config.MinVersion > config.MaxVersion {
		check("min_version", fmt.Errorf("%s is above max_version, %s", t.MinVersion, t.MaxVersion))
	}
	ciphers := map[string]uint16{}
	for _, suite := range tls.CipherSuites() {
		ciphers[suite.Name] = suite.ID
	}
	for i, name := range t.CipherSuites {
		id := named(ciphers, name, func(err error) { check(fmt.Sprintf("cipher_suites[%d]", i), err) })
		config.CipherSuites = append(config.CipherSuites, id)
	}
	if http2 && config.CipherSuites != nil && config.MinVersion < tls.VersionTLS13 &&
		!slices.Contains(config.CipherSuites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) &&
		!slices.Contains(config.CipherSuites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) {
		check("cipher_suites", errors.New("HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; or set http2: false in http_server_config"))
	}
	for i, name := range t.CurvePreferences {
		curve := named(tlsCurves, name, func(err error) { check(fmt.Sprintf("curve_preferences[%d]", i), err) })
		config.CurvePreferences = append(config.CurvePreferences, curve)
	}

	auth := named(clientAuths, t.ClientAuthType, func(err error) { check("client_auth_type", err) })
	config.ClientAuth, needCert = auth.handshake, auth.needCert
	config.ClientCAs = r.clientCAs(t, auth.handshake)
	if t.AllowedSANs != nil {
		switch {
		case len(t.AllowedSANs) == 0:
			check("client_allowed_sans", errors.New("an empty list would let nobody in"))
		case auth.handshake == tls.NoClientCert:
			check("client_allowed_sans", errors.New("no client is asked for a certificate; set client_auth_type: RequireAndVerifyClientCert"))
		}
		config.VerifyConnection = func(s tls.ConnectionState) error { return allowSANs(t.AllowedSANs, s.PeerCertificates) }
		needCert = true
	}
	return config, needCert
}

// named returns what a name stands for, or fails.
func named[V any](known map[string]V, name string, fail func(error)) V {
	value, ok := known[name]
	if !ok {
		var names []string
		for n := range known {
			if n != "" {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		fail(oneOf(name, names...))
	}
	return value
}

// certificate returns the server's own, of which there is one.
func (r *webReader) certificate(t *webTLS) []tls.Certificate {
	before := len(r.problems)
	cert := r.either("cert", t.Cert, t.CertFile)
	key := r.either("key", t.Key, t.KeyFile)
	if cert == nil && len(r.problems) == before {
		r.check("tls_server_config", "cert_file", errors.New("is missing; there is no cert either"))
	}
	if key == nil && len(r.problems) == before {
		r.check("tls_server_config", "key_file", errors.New("is missing; there is no key either"))
	}
	if len(r.problems) > before {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		r.check("tls_server_config", cmp.Or(given("cert_file", t.CertFile), "cert"), fmt.Errorf("no certificate with its key: %s", strings.TrimPrefix(err.Error(), "tls: ")))
	}
	return []tls.Certificate{pair}
}

// given returns the field's name if it has a value.
func given(field, value string) string {
	if value == "" {
		return ""
	}
	return field
}

// either returns what a field holds itself, or the file that its sibling names;
// nil for none.
func (r *webReader) either(field, text, file string) []byte {
	switch {
	case text != "" && file != "":
		r.check("tls_server_config", field, fmt.Errorf("%s_file is set as well", field))
	case text != "":
		return []byte(text)
	case file != "":
		data, err := r.read(file)
		r.check("tls_server_config", field+"_file", err)
		return data
	}
	return nil
}

// clientCAs returns who may have signed the certificates of clients.
func (r *webReader) clientCAs(t *webTLS, asked tls.ClientAuthType) *x509.CertPool {
	before := len(r.problems)
	data := r.either("client_ca", t.ClientCA, t.ClientCAFile)
	if len(r.problems) > before {
		return nil
	}
	field := cmp.Or(given("client_ca_file", t.ClientCAFile), "client_ca")
	switch {
	case data == nil && asked == tls.VerifyClientCertIfGiven && t.ClientAuthType == "RequireAndVerifyClientCert":
		// The library would take a certificate of any public authority.
		r.check("tls_server_config", "client_auth_type", errors.New("without client_ca_file or client_ca, there is nothing to verify with"))
		return nil
	case data == nil:
		return nil
	case asked == tls.NoClientCert:
		r.check("tls_server_config", field, errors.New("no client is asked for a certificate; set client_auth_type: RequireAndVerifyClientCert"))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		r.check("tls_server_config", field, errors.New("no certificate in PEM"))
	}
	return pool
}

// allowSANs returns an error unless one of the names in a client's certificate is
// allowed. Without a certificate there is only the health to be known.
func allowSANs(allowed []string, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return nil
	}
	names := slices.Concat(chain[0].DNSNames, chain[0].EmailAddresses)
	for _, ip := range chain[0].IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range chain[0].URIs {
		names = append(names, uri.String())
	}
	if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(allowed, name) }) {
		return fmt.Errorf("no name in the client's certificate is allowed: %q", names)
	}
	return nil
}
