package argument

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestValuesCompareAsTheBrokerDoes(t *testing.T) {
	now := time.Now()
	same := [][2]any{
		{int32(5), int64(5)},
		{5, 5.0},
		{uint8(5), int16(5)},
		{"a", []byte("a")},
		{1.5, float32(1.5)},
		{nil, nil},
		{true, true},
		{now, now.Truncate(time.Second)},
		{[]any{1, "a"}, []any{int64(1), "a"}},
		{amqp.Table{"a": 1}, map[string]any{"a": 1.0}},
	}
	for _, p := range same {
		if !Equal(p[0], p[1]) || !Equal(p[1], p[0]) {
			t.Errorf("Equal(%#v, %#v), in this or the other order: got false, want true", p[0], p[1])
		}
	}
	different := [][2]any{
		{5, 6}, {5, "5"}, {5, 5.5},
		{"a", "b"},
		{true, "true"},
		{1, true},
		{nil, 0},
		{nil, ""},
		{[]any{1}, []any{1, 2}},
		{amqp.Table{"a": 1}, amqp.Table{"a": 2}},
		{amqp.Table{"a": nil}, amqp.Table{"b": nil}},
		{amqp.Table{}, nil},
	}
	for _, p := range different {
		if Equal(p[0], p[1]) || Equal(p[1], p[0]) {
			t.Errorf("Equal(%#v, %#v), in this or the other order: got true, want false", p[0], p[1])
		}
	}
}
