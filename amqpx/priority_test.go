package amqpx

import (
	"errors"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestPriorityProblem(t *testing.T) {
	bucket := func(qt topology.QueueType) Strategy {
		b, err := dlx.NewBucket(dlx.BucketConfig{QueueType: qt})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	quorum, classic := bucket(topology.Quorum), bucket(topology.Classic)
	delayed, err := plugin.New(plugin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		broker   string
		strategy Strategy
		priority uint8
		refused  bool
	}{
		{"RabbitMQ 4.0.5", quorum, 5, true},
		{"RabbitMQ 4.0.5", quorum, 255, true},
		{"RabbitMQ 4.0.5", quorum, 4, false},
		{"RabbitMQ 4.0.5", quorum, 0, false},
		{"RabbitMQ 4.2.9", quorum, 5, true},
		{"RabbitMQ 4.3.0", quorum, 5, false},
		{"RabbitMQ 4.3.0-rc.1", quorum, 5, false},
		{"RabbitMQ 5.0.0", quorum, 5, false},
		{"RabbitMQ 3.10.8", quorum, 9, false},
		{"RabbitMQ 3.13.7", quorum, 9, false},
		{"RabbitMQ 4.0.5", classic, 9, false},
		{"RabbitMQ 4.0.5", delayed, 9, false},
		{"unknown", quorum, 5, true},
		{"unknown", quorum, 4, false},
		{"unknown", classic, 5, false},
		{"RabbitMQ", quorum, 5, true},
	} {
		err := priorityProblem(test.broker, test.strategy, test.priority)
		if (err != nil) != test.refused {
			t.Errorf("%s, %s, priority %d: got %v, want an error: %t", test.broker, test.strategy.Name(), test.priority, err, test.refused)
		}
		if err != nil && (!errors.Is(err, ErrMessage) || !strings.Contains(err.Error(), test.broker)) {
			t.Errorf("%s: got %v, want ErrMessage with a text that names the broker", test.broker, err)
		}
	}
}
