// Package web serves HTTP for nodeprobe: routes that it is given, and profiles. It is
// prometheus/exporter-toolkit, with bounds on what clients can cost.
//
// # TLS and users
//
// The file of --web.config.file has the format that Prometheus exporters share
// (https://prometheus.io/docs/prometheus/latest/configuration/https/);
// "nodeprobe config check" and "promtool check web-config" check it:
//
//	tls_server_config:
//	  cert_file: tls.crt            # relative to this file
//	  key_file: tls.key
//	  client_auth_type: RequireAndVerifyClientCert
//	  client_ca_file: ca.crt
//	basic_auth_users:
//	  prometheus: $2y$10$...        # htpasswd -nBC 10 prometheus
//
// It, and the files that it names, are read again when they change. An invalid file ends
// run at the start, with exit code 2. Later the last good one stays in force,
// nodeprobe_web_config_last_reload_successful is 0, and the log has the reason. Turning
// TLS on or off and changing http2 or rate_limit need a restart.
//
// Users and client certificates are required for every path. A kubelet's probes have
// neither: for them, webHealthListenAddress serves /livez and /readyz and nothing else,
// over plain HTTP, without the reasons for a failure. With TLS alone, probes may as well
// use "scheme: HTTPS". The rate limit does not apply to the health endpoints unless
// credentials are required for them.
//
// # Clients
//
// At most 128 clients are connected at a time, to both addresses together. One more
// replaces the least recently active connection of the address that has the most, so a
// kubelet's probes and a Prometheus are served however many connections others hold open.
// nodeprobe_web_connections and nodeprobe_web_connections_evicted_total count them.
//
// One request at a time is handled, except for health endpoints and profiles. Passwords
// that were right before are not hashed again while the toolkit remembers them. Others are
// hashed one at a time; after a wrong one, its client waits a second, and gets a 429
// meanwhile.
package web
