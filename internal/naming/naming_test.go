package naming

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
)

func TestForeignNames(t *testing.T) {
	for name, want := range map[string]string{
		"nsb.v2.delay-level-00": foreign.NServiceBus, "nsb.v2.delay-level-27": foreign.NServiceBus, "nsb.v2.delay-delivery": foreign.NServiceBus,
		"celery_delayed_0": foreign.Celery, "celery_delayed_27": foreign.Celery, "celery_delayed_delivery": foreign.Celery,
		"nsb.v2.delay-level-28": "", "nsb.v2.delay-level-0": "", "nsb.delay-level-00": "", "celery_delayed_28": "",
		"celery_delayed_07": "", "celery_delayed_+7": "", "celery_delayed_": "", "celery": "", "": "",
	} {
		if got, ok := foreign.System(name); got != want || ok != (want != "") || Reserved("delay", name) != ok {
			t.Errorf("System(%q) = %q, %t, want %q; Reserved: got %t, want %t", name, got, ok, want, Reserved("delay", name), ok)
		}
	}
}
