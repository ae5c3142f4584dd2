package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// peakRSS returns the peak resident memory of the process since forgetPeak, in MiB.
func peakRSS() (float64, error) { return peakOf("self") }

// peakOf is peakRSS of a process.
func peakOf(pid string) (float64, error) {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(status), "\nVmHWM:")
	var kib float64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		return 0, fmt.Errorf("/proc/%s/status: VmHWM: %w", pid, err)
	}
	return kib / 1024, nil
}

// forgetPeak makes the peak what is resident now.
func forgetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// watchPrograms looks every 20 ms at the programs that the process runs. stop ends that, and
// returns the peak resident memory of the largest one, in MiB. What the kernel counts for an ended child
// includes this process as it was when it started the child.
func watchPrograms() (stop func() float64) {
	ended, peak := make(chan struct{}), make(chan float64)
	go func() {
		most := 0.0
		for {
			select {
			case <-ended:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
				most = max(most, largestChild())
			}
		}
	}()
	return func() float64 { close(ended); return <-peak }
}

// largestChild returns the peak resident memory of the child process with the largest one, in MiB.
// Children that end meanwhile are left out.
func largestChild() (most float64) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, list := range lists {
		children, _ := os.ReadFile(list) // no children if the thread has ended
		for child := range strings.FieldsSeq(string(children)) {
			if exe, err := os.Readlink("/proc/" + child + "/exe"); err != nil || exe == self {
				continue // it has not started its program yet
			}
			if peak, err := peakOf(child); err == nil {
				most = max(most, peak)
			}
		}
	}
	return most
}
