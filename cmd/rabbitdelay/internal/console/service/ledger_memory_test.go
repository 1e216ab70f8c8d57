package service

import (
	"fmt"
	"testing"
)

// When a job is continued, work that is still running for the previous owner stops.
func TestMemoryKnowsOwners(t *testing.T) {
	m := &memory{}
	ctx := t.Context()
	old := record{Job: Job{ID: "j", State: JobRunning}, owner: "a"}
	must := func(_ bool, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := m.add(ctx, old); err != nil {
		t.Fatal(err)
	}
	must(m.stop(ctx, "j"))
	must(m.take(ctx, "j", "b"))
	old.Done, old.State = 7, JobFailed
	if mine, err := m.alive(ctx, old); mine || err != nil {
		t.Errorf("alive for the previous owner: got %v, %v, want false and no error", mine, err)
	}
	if mine, err := m.reached(ctx, nil, old, nil); mine || err != nil {
		t.Errorf("reached for the previous owner: got %v, %v, want false and no error", mine, err)
	}
	if err := m.end(ctx, old); err != nil {
		t.Fatal(err)
	}
	list, err := m.jobs(ctx, "j", 1)
	if err != nil || len(list) != 1 || list[0].State != JobRunning || list[0].Done != 0 || list[0].owner != "b" {
		t.Errorf(`got the jobs %+v, %v, want no error and one job with State = %v, Done = 0 and owner = "b"`, list, err, JobRunning)
	}
}

// The oldest jobs are deleted from memory, except a running one, because deleting it would stop it.
func TestMemoryKeepsWhatRuns(t *testing.T) {
	m := &memory{}
	r := record{Job: Job{ID: "0", State: JobRunning}, owner: "a"}
	for i := range 2 * remembered {
		if err := m.add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		r = record{Job: Job{ID: fmt.Sprint(i + 1)}}
	}
	if len(m.list) != remembered {
		t.Errorf("the memory has %d entries, want %d", len(m.list), remembered)
	}
	if mine, err := m.alive(t.Context(), m.list[0]); !mine || err != nil || m.list[0].ID != "0" {
		t.Errorf("got alive = %v (error %v) and the oldest entry %s, want true and the running job 0", mine, err, m.list[0].ID)
	}
}
