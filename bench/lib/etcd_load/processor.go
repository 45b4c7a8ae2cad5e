package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const tick = 0.01 // seconds: what Linux counts in

// processor returns the user and system time of the processes of -pids so far, in seconds.
func processor() float64 {
	used := 0.0
	for _, pid := range strings.FieldsFunc(*pids, func(r rune) bool { return r == ',' }) {
		said, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
		check(err)
		fields := strings.Fields(string(said[strings.LastIndexByte(string(said), ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			check(err)
			used += float64(ticks) * tick
		}
	}
	return used
}
