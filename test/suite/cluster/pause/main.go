// Command pause is what the pods of package cluster run besides nodeprobe. It sleeps
// until it is terminated, as the process that holds a sandbox does; with a number of
// MiB as its argument it takes so much memory first.
package main

import (
	"bytes"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
)

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGINT, syscall.SIGTERM)
	mebibytes := 0
	if len(os.Args) > 1 {
		mebibytes, _ = strconv.Atoi(os.Args[1])
	}
	held := bytes.Repeat([]byte{1}, mebibytes<<20)
	<-terminated
	runtime.KeepAlive(held)
}
