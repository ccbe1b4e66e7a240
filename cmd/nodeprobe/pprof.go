package main

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/pprof"
	"strconv"
	"time"
)

const pprofPath = "/debug/pprof/"

// pprofRoutes are Go's profiles of this process, where net/http/pprof has them,
// for "go tool pprof". That package has more, and is half a megabyte of program.
// The heap's profile has what is allocated from now on.
func pprofRoutes() []route {
	const bytesPerSample = 512 << 10 // Go's default
	runtime.MemProfileRate = bytesPerSample
	return []route{
		{"GET " + pprofPath + "{$}", http.HandlerFunc(listProfiles)},
		{"GET " + pprofPath + "profile", http.HandlerFunc(profileCPU)},
		{"GET " + pprofPath + "{name}", http.HandlerFunc(profile)},
	}
}

// listProfiles says which profiles there are.
func listProfiles(w http.ResponseWriter, _ *http.Request) {
	plainText(w)
	for _, p := range pprof.Profiles() {
		fmt.Fprintf(w, "%s %d\n", p.Name(), p.Count())
	}
	fmt.Fprintln(w, "profile (CPU, ?seconds=30)")
}

// profile serves a profile by its name; as text with ?debug=1 or 2, and after a
// garbage collection with ?gc=1.
func profile(w http.ResponseWriter, r *http.Request) {
	p := pprof.Lookup(r.PathValue("name"))
	if p == nil {
		http.NotFound(w, r)
		return
	}
	debug, _ := strconv.Atoi(r.FormValue("debug"))
	if gc, _ := strconv.Atoi(r.FormValue("gc")); gc > 0 && p.Name() == "heap" {
		runtime.GC()
	}
	if debug > 0 {
		plainText(w)
	}
	_ = p.WriteTo(w, debug) // a client that is gone
}

// profileCPU serves what the CPU does for a while.
func profileCPU(w http.ResponseWriter, r *http.Request) {
	const most = 10 * time.Minute
	seconds, err := strconv.Atoi(r.FormValue("seconds"))
	length := time.Duration(seconds) * time.Second
	if err != nil || length <= 0 {
		length = 30 * time.Second
	}
	if length > most {
		http.Error(w, "seconds: at most "+most.String(), http.StatusBadRequest)
		return
	}
	// The server allows a request and its answer less time than this takes.
	control, end := http.NewResponseController(w), time.Now().Add(length+10*time.Second)
	if err := errors.Join(control.SetReadDeadline(end), control.SetWriteDeadline(end)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(length):
	case <-r.Context().Done():
	}
}

// plainText makes the answer text that no browser takes for anything else.
func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
