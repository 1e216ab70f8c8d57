package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
)

// A slow inspection of the broker does not keep readers waiting while the last overview is recent. After a period
// without readers, they wait for a new overview, because the last one may report problems that were fixed long ago.
func TestOverviewAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Look: func(context.Context) (status.Source, error) {
			<-time.After(5 * time.Second)
			return status.Source{}, errors.New("no broker")
		}})
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		for _, x := range []struct{ pause, took, age time.Duration }{
			{0, 5 * time.Second, 5 * time.Second},           // the first one
			{5 * time.Second, waiting, 12 * time.Second},    // the last one, after a short wait
			{4 * time.Second, waiting, 8 * time.Second},     // the one that was being taken at that time
			{time.Minute, 5 * time.Second, 5 * time.Second}, // a new one
		} {
			<-time.After(x.pause)
			began := time.Now()
			o, err := c.Overview(t.Context(), Identity{Role: RoleOperator})
			if err != nil {
				t.Fatal(err)
			}
			if took, age := time.Since(began), time.Since(o.At); took != x.took || age != x.age {
				t.Errorf("after a pause of %v: took %v and is %v old, expected %v and %v", x.pause, took, age, x.took, x.age)
			}
		}
	})
}
