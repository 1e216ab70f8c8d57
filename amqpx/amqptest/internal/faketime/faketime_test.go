package faketime_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/faketime"
)

func TestInside(t *testing.T) {
	if faketime.Inside() {
		t.Error("Inside outside of a synctest bubble: got true, want false")
	}
	synctest.Test(t, func(t *testing.T) {
		if !faketime.Inside() {
			t.Error("Inside in a synctest bubble: got false, want true")
		}
		<-time.After(20 * 365 * 24 * time.Hour)
		if !faketime.Inside() {
			t.Error("Inside in a bubble after 20 years: got false, want true")
		}
	})
}
