package faketime_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/faketime"
)

func TestInside(t *testing.T) {
	if faketime.Inside() {
		t.Error("Inside is true outside of a synctest bubble")
	}
	synctest.Test(t, func(t *testing.T) {
		if !faketime.Inside() {
			t.Error("Inside is false inside a synctest bubble")
		}
		<-time.After(20 * 365 * 24 * time.Hour)
		if !faketime.Inside() {
			t.Error("Inside is false in a bubble after 20 years")
		}
	})
}
