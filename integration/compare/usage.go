package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticks is the number of clock ticks per second in /proc, which is the same on all of Linux's architectures.
const ticks = 100

// processes maps the process IDs of the machine to their state.
type processes map[int]process

type process struct {
	name   string
	parent int
	cpu    float64 // seconds of processor time, with that of children that have ended
}

// readProcesses reads /proc.
func readProcesses() (processes, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return nil, errors.Join(errors.New("/proc contains no processes"), err)
	}
	all := processes{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		if id, p, ok := parseStat(text); ok {
			all[id] = p
		}
	}
	return all, nil
}

// parseStat parses a line such as "7 (beam.smp) S 1 …". The name may contain anything.
func parseStat(text []byte) (id int, p process, ok bool) {
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if begin < 1 || end < begin {
		return 0, process{}, false
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text[:begin])))
	fields := strings.Fields(string(text[end+1:]))
	if err != nil || len(fields) < 15 {
		return 0, process{}, false
	}
	p = process{name: string(text[begin+1 : end])}
	p.parent, err = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, perr := strconv.ParseFloat(field, 64)
		err = errors.Join(err, perr)
		p.cpu += n / ticks
	}
	return id, p, err == nil
}

// tree returns a process with its descendants.
func (all processes) tree(root int) []int {
	list := []int{root}
	for i := 0; i < len(list); i++ {
		for id, p := range all {
			if p.parent == list[i] {
				list = append(list, id)
			}
		}
	}
	return list
}

// cpu returns the processor time of a process with its descendants, in seconds.
func (all processes) cpu(root int) (seconds float64) {
	for _, id := range all.tree(root) {
		seconds += all[id].cpu
	}
	return seconds
}

// programs lists the names of the servers' processes. With them, resident and usage check that a process ID really
// belongs to the server, because a container may number its processes differently.
var programs = map[server]string{rabbitMQ: "beam.smp", pluggedRabbitMQ: "beam.smp", postgreSQL: "postgres", redisServer: "redis-server"}

// root returns the process of a server, if it was started for this run and is visible here.
func (e *env) root(ctx context.Context, all processes, s server) (int, error) {
	root, err := e.processID(ctx, s)
	if err != nil {
		return 0, err
	}
	for _, id := range all.tree(root) {
		if all[id].name == programs[s] {
			return root, nil
		}
	}
	return 0, fmt.Errorf("process %d is not a process of %s", root, s)
}

// client is the name of this process in usage.
const client server = "client"

// usage returns the processor time in seconds of this process and of the servers that a contender uses.
func (e *env) usage(ctx context.Context, c contender) (map[server]float64, error) {
	all, err := readProcesses()
	if err != nil {
		return nil, err
	}
	spent := map[server]float64{client: all[os.Getpid()].cpu}
	for s := range programs {
		if !c.uses(s) {
			continue
		}
		root, err := e.root(ctx, all, s)
		if err != nil {
			return nil, err
		}
		spent[s] = all.cpu(root)
	}
	return spent, nil
}

// resident returns the memory of a server's processes in bytes. Memory that several of them share counts once.
func (e *env) resident(ctx context.Context, s server) (float64, error) {
	all, err := readProcesses()
	if err != nil {
		return 0, err
	}
	root, err := e.root(ctx, all, s)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, id := range all.tree(root) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", id))
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.Lines(string(text)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
				total += kib * 1024
			}
		}
	}
	return total, nil
}
