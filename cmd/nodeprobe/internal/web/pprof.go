package web

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"
	"time"
)

const pprofPath = "/debug/pprof/"

// maxProfile is the longest profile or trace.
const maxProfile = 10 * time.Minute

// pprofRoutes are net/http/pprof's handlers. That package adds them to
// http.DefaultServeMux as well, which is not served. The heap's profile has what is
// allocated from now on.
func pprofRoutes() Routes {
	const bytesPerSample = 512 << 10 // Go's default
	runtime.MemProfileRate = bytesPerSample
	return Routes{
		"GET " + pprofPath:             slow(pprof.Index), // and the profiles that have a name
		"GET " + pprofPath + "cmdline": slow(pprof.Cmdline),
		"GET " + pprofPath + "profile": slow(pprof.Profile),
		"GET " + pprofPath + "symbol":  slow(pprof.Symbol),
		"POST " + pprofPath + "symbol": slow(pprof.Symbol),
		"GET " + pprofPath + "trace":   slow(pprof.Trace),
	}
}

// slow lifts the read deadline, which would cancel a request that takes ?seconds. The
// handlers extend the write deadline themselves.
func slow(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
		if err == nil && seconds > maxProfile.Seconds() {
			http.Error(w, "seconds: at most "+maxProfile.String(), http.StatusBadRequest)
			return
		}
		// If that fails, the profile is cut short.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(maxProfile + time.Minute))
		h(w, r)
	})
}
