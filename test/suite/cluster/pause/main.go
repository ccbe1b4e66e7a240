// Command pause is all that the pods of package cluster run besides nodeprobe.
// It sleeps until it is told to end, as the process that holds a sandbox does;
// with a number of MiB as its argument it takes so much memory first.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	var held [][]byte
	if len(os.Args) > 1 {
		var mebibytes int
		if _, err := fmt.Sscan(os.Args[1], &mebibytes); err != nil {
			fmt.Fprintln(os.Stderr, "pause:", err)
			os.Exit(2)
		}
		for range mebibytes {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = 1
			}
			held = append(held, page)
		}
	}
	fmt.Println("holding", len(held), "MiB")
	<-ended
}
